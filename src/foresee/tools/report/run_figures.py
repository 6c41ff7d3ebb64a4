"""The charts of a run's page, one function each: records in, a figure out.

Every number in them stands in the records or is a mean over them. Units are in the titles of the axes. Few colours: a
thing has the same one wherever it appears. `colours_of` gives the legend, which the page writes in words.

`skew_of` says how unequal rows are: from how often each row is accessed in some samples, the share of accesses that the
hottest rows take, as a curve of about a hundred points. Rows without an access count as rows, at the cold end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foresee.errors import UsageError
from foresee.io.optional import OptionalModule
from foresee.tools.report.page import PALETTE
from foresee.tools.report.page import styled as styled_with_legend
from foresee.tools.report.run_breakdown import (
    COLOURS,
    IDEAL_PARTS,
    LINK_COLOURS,
    READ,
    WRITTEN,
    Breakdown,
    Direction,
    DiskUse,
    LinkTraffic,
    breakdown,
    disk_use,
)
from foresee.tools.report.run_records import Line, Point, WorkerRecords, figure_words

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from plotly import subplots
else:
    go = OptionalModule("plotly.graph_objects")
    subplots = OptionalModule("plotly.subplots")

NUM_POINTS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Shares between 0 and 1, from the hottest rows on."""

    row_shares: tuple[float, ...]
    access_shares: tuple[float, ...]
    num_rows: int
    num_accesses: int
    num_samples: int

    def of_hottest(self, row_share: float) -> float:
        """The share of accesses that go to this share of the rows."""
        return float(np.interp(row_share, (0.0, *self.row_shares), (0.0, *self.access_shares)))


def skew_of(counts: NDArray[np.int64], *, num_rows: int, num_samples: int) -> Skew:
    """`counts`: how often each touched row was touched, in any order."""
    touched = np.sort(counts[counts > 0])[::-1]
    if not len(touched) or num_rows < len(touched):
        raise UsageError(f"{len(touched)} touched rows of {num_rows} give no curve; count the rows of a whole log")
    running = np.cumsum(touched)
    places = np.unique(np.geomspace(1, len(touched), NUM_POINTS).astype(np.int64))
    rows, accesses = places / num_rows, running[places - 1] / running[-1]
    if places[-1] < num_rows:
        rows, accesses = np.append(rows, 1.0), np.append(accesses, 1.0)
    return Skew(
        row_shares=tuple(rows.tolist()),
        access_shares=tuple(accesses.tolist()),
        num_rows=num_rows,
        num_accesses=int(running[-1]),
        num_samples=num_samples,
    )


BLUE, ORANGE, GREEN, GREY = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[7]
TABLES_MAX = 40
MARKED_POINTS_MAX = 40
LONG_WINDOW_STEPS = 60
MILLISECONDS, MEGABYTE = 1e3, 1e6


def styled(figure: go.Figure, *, x: str, y: str, height_pixels: int) -> go.Figure:
    """In the look of our pages; the legend is the page's."""
    styled_with_legend(figure, x=x, y=y, height_pixels=height_pixels)
    figure.update_layout(showlegend=False)
    return figure


def colours_of(figure: go.Figure) -> dict[str, str]:
    """What the colours of a figure stand for; nothing if there is only one thing to see."""
    found = {}
    for trace in figure.data:
        if trace.visible is not False and trace.showlegend is not False:
            line = trace.line.color if trace.type == "scatter" else None
            found[trace.name] = line or trace.marker.color
    return found if len(found) > 1 else {}


def loss_figure(
    points: Sequence[Point], train: Sequence[Line], valid: Sequence[Line], y: str = "loss (nats)"
) -> go.Figure:
    """Draw the loss from the points, which have it more often than the metrics; an older run has only those."""
    figure = go.Figure()
    losses: list[tuple[int, Any]] = [(point.step, point.loss) for point in points if point.loss is not None]
    losses = losses or [(line["step"], line.get("loss")) for line in train]
    curve(figure, "training loss", losses, BLUE, len(losses) < MARKED_POINTS_MAX)
    judged = [(line["step"], line.get("log_loss")) for line in valid]
    curve(figure, "log loss on the valid split", judged, ORANGE, True)
    return styled(figure, x="step", y=y, height_pixels=320)


def quality_figure(names: Mapping[str, str], valid: Sequence[Line]) -> go.Figure:
    """Draw several figures of the valid split, each under the name that it has in the legend."""
    figure = go.Figure()
    for colour, (key, name) in zip(PALETTE, names.items(), strict=False):
        curve(figure, name, [(line["step"], line.get(key)) for line in valid], colour, True)
    return styled(figure, x="step", y="on the valid split", height_pixels=300)


def task_figure(name: str, train: Sequence[Line], valid: Sequence[Line], best: float | None) -> go.Figure:
    """How good a task is over the run, by one of its figures; `best` is the best that can be reached."""
    figure = go.Figure()
    latest = [(line["step"], line.get(name)) for line in train]
    curve(figure, "training, before learning from the sample", latest, BLUE, len(train) < MARKED_POINTS_MAX)
    curve(figure, "valid split", [(line["step"], line.get(name)) for line in valid], ORANGE, True)
    if best is not None:
        last = max((line["step"] for line in [*train, *valid]), default=0)
        curve(figure, f"best reachable: {best:.4f}", [(0, best), (last, best)], GREY, False, "dot")
    return styled(figure, x="step", y=figure_words(name), height_pixels=320)


def breakdown_figure(of_workers: dict[str, Breakdown]) -> go.Figure:
    """The ideal, and below it one bar for each worker."""
    figure, names = go.Figure(), list(of_workers)
    mean_ideal = {part: sum(one.parts[part] for one in of_workers.values()) / len(of_workers) for part in IDEAL_PARTS}
    longest = max(one.step_seconds for one in of_workers.values())
    for part, colour in COLOURS.items():
        if not any(part in one.visible_parts for one in of_workers.values()):
            continue
        values = [mean_ideal.get(part, 0.0), *(of_workers[name].parts[part] for name in names)]
        figure.add_bar(
            orientation="h",
            name=part,
            y=["ideal", *names],
            x=_milliseconds(values),
            marker_color=colour,
            text=[_duration(value) if value > 0.06 * longest else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"color": "#10151c"},
            hovertemplate="%{y}, " + part + ": %{x:.3f} ms a step<extra></extra>",
        )
    totals = [sum(mean_ideal.values()), *(of_workers[name].step_seconds for name in names)]
    figure.add_scatter(
        mode="text",
        y=["ideal", *names],
        x=_milliseconds(totals),
        text=[f" {_duration(total)}" for total in totals],
        textposition="middle right",
        showlegend=False,
        hoverinfo="skip",
        name="step",
        cliponaxis=False,
    )
    styled(figure, x="milliseconds a step", y="", height_pixels=90 + 46 * (len(names) + 1))
    figure.update_layout(barmode="stack", bargap=0.3, margin={"r": 70}, uniformtext={"mode": "hide", "minsize": 9})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    return figure


def breakdown_over_run_figure(points: Sequence[Point]) -> go.Figure:
    """The same parts, point by point, one on top of the other."""
    figure, parts = go.Figure(), [breakdown([point]).parts for point in points]
    visible = breakdown(points).visible_parts
    for part, colour in COLOURS.items():
        if part in visible:
            figure.add_scatter(
                x=[point.step for point in points],
                y=_milliseconds(one[part] for one in parts),
                name=part,
                mode="lines",
                line={"width": 0.5, "color": colour},
                fillcolor=colour,
                stackgroup="step",
                hovertemplate=part + ": %{y:.3f} ms<extra></extra>",
            )
    styled(figure, x="step", y="milliseconds a step", height_pixels=340)
    figure.update_yaxes(rangemode="tozero")
    return figure


def occupancy_figure(workers: Sequence[WorkerRecords]) -> go.Figure:
    figure = go.Figure()
    for number, worker in enumerate(workers):
        name = f"worker {worker.worker}" if len(workers) > 1 else "rows in the cache"
        curve(figure, name, [(point.step, point.occupied) for point in worker.points], PALETTE[number % 7], False)
    capacity = max(worker.start["capacity_rows"] for worker in workers)
    steps = [point.step for worker in workers for point in worker.points]
    ends = [(min(steps), capacity), (max(steps), capacity)]
    curve(figure, f"slots: {capacity:,}", ends, GREY, False, "dot")
    styled(figure, x="step", y="rows", height_pixels=300)
    figure.update_yaxes(rangemode="tozero")
    return figure


AHEAD = {"looked_at": "batches the planner has read", "planned": "steps planned", "fetched": "steps with rows here"}


def window_figure(points: Sequence[Point]) -> go.Figure:
    """How far ahead of training everybody is. A window much longer than the rest needs a logarithmic axis."""
    figure = go.Figure()
    for number, (key, name) in enumerate(AHEAD.items()):
        there = [(point.step, point.ahead[key]) for point in points if key in point.ahead]
        if there:
            curve(figure, name, there, PALETTE[number], False)
    styled(figure, x="step", y="steps ahead of training", height_pixels=300)
    if max((max(point.ahead.values(), default=0) for point in points), default=0) >= LONG_WINDOW_STEPS:
        figure.update_yaxes(type="log", dtick=1)
    else:
        figure.update_yaxes(rangemode="tozero")
    return figure


def links_figure(links: Sequence[LinkTraffic]) -> go.Figure:
    """Bytes a step on every link."""
    figure, names = go.Figure(), [link.name for link in links][::-1]
    for kind, colour in LINK_COLOURS.items():
        of_kind = {link.name: link.bytes_a_step[kind] for link in links if kind in link.bytes_a_step}
        if any(of_kind.values()):
            figure.add_bar(
                orientation="h",
                name=kind,
                y=names,
                x=[of_kind.get(name, 0.0) / MEGABYTE for name in names],
                marker_color=colour,
                hovertemplate="%{y}, " + kind + ": %{x:.4f} MB a step<extra></extra>",
            )
    styled(figure, x="megabytes a step", y="", height_pixels=90 + 34 * len(names))
    figure.update_layout(barmode="stack", bargap=0.3)
    figure.update_yaxes(showgrid=False)
    return figure


def traffic_figure(series: dict[str, list[tuple[int, float]]]) -> go.Figure:
    """Bytes a step over the run, all links together."""
    figure = go.Figure()
    for kind, points in series.items():
        if any(value for _, value in points):
            curve(figure, kind, [(step, value / MEGABYTE) for step, value in points], LINK_COLOURS[kind], False)
    styled(figure, x="step", y="megabytes a step", height_pixels=300)
    figure.update_yaxes(rangemode="tozero")
    return figure


def disk_figure(points: Sequence[Point]) -> go.Figure:
    """Six small charts of all disks together, over the run."""
    charts: dict[str, Callable[[Direction, DiskUse], float | None]] = {
        "megabytes a step": lambda moved, use: moved.num_bytes / use.steps / MEGABYTE,
        "requests a step": lambda moved, use: moved.requests / use.steps,
        "kilobytes a request": lambda moved, use: moved.request_bytes / 1e3 if moved.requests else None,
        "requests at once": lambda moved, use: moved.depth if moved.requests else None,
        "ms of a processor a step": lambda moved, use: moved.processor_seconds / use.steps * MILLISECONDS,
        "ms under way a step": lambda moved, use: moved.seconds / use.steps * MILLISECONDS,
    }
    figure: go.Figure = subplots.make_subplots(
        rows=3, cols=2, subplot_titles=list(charts), vertical_spacing=0.13, horizontal_spacing=0.09
    )
    uses = [(point.step, use) for point in points if (use := disk_use([point])) is not None]
    for place, value in enumerate(charts.values()):
        for name, colour in (("read", LINK_COLOURS[READ]), ("written", LINK_COLOURS[WRITTEN])):
            curve = [(step, value(getattr(use, name), use)) for step, use in uses]
            there = [(step, y) for step, y in curve if y is not None]
            figure.add_scatter(
                x=[step for step, _ in there],
                y=[y for _, y in there],
                name=name,
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker={"size": 4},
                showlegend=not place,
                row=place // 2 + 1,
                col=place % 2 + 1,
            )
    styled(figure, x="", y="", height_pixels=640)
    figure.update_layout(margin={"t": 34})
    figure.update_annotations(font_size=13)
    figure.update_xaxes(matches="x")
    figure.update_yaxes(rangemode="tozero")
    return figure


def hit_rate_figure(points: Sequence[Point]) -> go.Figure:
    """The share of a step's rows that were not fetched, over the run."""
    figure = go.Figure()
    curve(figure, "hit rate", [(point.step, 100 * point.hit_rate) for point in points], GREEN, False)
    styled(figure, x="step", y="percent of a step's rows", height_pixels=280)
    return figure


def tables_figure(names: Sequence[str], sizes: Sequence[int], rates: Sequence[float]) -> go.Figure:
    """Hit rate of each table, the largest at the top."""
    labels = [f"{name} · {size:,} rows" for name, size in zip(names, sizes, strict=True)]
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=labels[::-1],
        x=[100 * rate for rate in rates][::-1],
        marker_color=GREEN,
        name="hit rate",
        text=[f"{rate:.1%}" for rate in rates][::-1],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="%{y}: %{x:.2f} %<extra></extra>",
    )
    styled(figure, x="percent of the distinct rows of a step", y="", height_pixels=90 + 24 * len(labels))
    figure.update_xaxes(range=[0, 112], tickvals=[0, 25, 50, 75, 100])
    figure.update_yaxes(type="category", dtick=1, tickfont={"size": 11}, showgrid=False)
    figure.update_layout(bargap=0.25, margin={"r": 20})
    return figure


def skew_figure(skew: Skew, cache_share: float | None) -> go.Figure:
    figure = go.Figure()
    shares = [(100 * rows, 100 * accesses) for rows, accesses in zip(skew.row_shares, skew.access_shares, strict=True)]
    curve(figure, "accesses", shares, BLUE, False)
    marks = sorted({0.001, 0.01, 0.1} | ({float(f"{cache_share:.2g}")} if cache_share else set()))
    marks = [share for share in marks if skew.row_shares[0] <= share <= 1]
    figure.add_scatter(
        mode="markers+text",
        x=[100 * share for share in marks],
        y=[100 * skew.of_hottest(share) for share in marks],
        text=[f"{100 * share:.3g} % of rows: {skew.of_hottest(share):.0%}" for share in marks],
        textposition="bottom right",
        marker={"color": ORANGE, "size": 8},
        name="marks",
        showlegend=False,
        hoverinfo="skip",
    )
    styled(figure, x="hottest rows, percent of all rows", y="percent of all accesses", height_pixels=340)
    figure.update_xaxes(type="log", dtick=1, range=[None, 2.25])
    figure.update_yaxes(range=[0, 106])
    return figure


def curve(
    figure: go.Figure, name: str, points: Iterable[tuple[float, Any]], colour: str, markers: bool, dash: str = "solid"
) -> None:
    """Adds a line through the points that have a value."""
    there = [(x, y) for x, y in points if y is not None]
    if there:
        figure.add_scatter(
            x=[x for x, _ in there],
            y=[y for _, y in there],
            name=name,
            mode="lines+markers" if markers else "lines",
            line={"color": colour, "width": 2, "dash": dash},
        )


def _milliseconds(seconds: Iterable[float]) -> list[float]:
    return [round(one * MILLISECONDS, 6) for one in seconds]


def _duration(seconds: float) -> str:
    return f"{seconds * MILLISECONDS:.3g} ms"
