"""The timeline of a run: what every thread of every worker did during some steps, track under track.

In: the spans of all workers. Out: one figure in which windows of a few steps can be chosen, and what part of the work
of other threads is hidden behind training. What a thread waits for on purpose (room in a queue, the write-backs before
a fetch) is left blank: only the training thread's waits cost anything, and they are red.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foresee.io.optional import OptionalModule
from foresee.tools.report.run_breakdown import COLOURS
from foresee.tools.report.run_figures import styled
from foresee.tools.report.run_records import Span, WorkerRecords

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")

TRACKS = {
    "train": "training",
    "update": "row update",
    "exchange": "exchange",
    "reader": "fetch",
    "planner": "plan",
    "writer": "write back",
}
"""From top to bottom. Row update: of workers that update during backward; exchange: in the background, with others."""
SHOWN_STEPS = 6
WINDOWS_MAX = 8
WORKERS_MAX = 8
LANE_PIXELS = 34
HEADER = 0.9
"""How far above its first track a worker is named."""
SEEN_SHARE = 0.001
"""What takes less of a window is not seen and not in the legend."""
MILLISECONDS = 1e3


@dataclass(frozen=True, slots=True)
class _Look:
    name: str
    colour: str


LOOKS = {
    "wait_rows": _Look("waits for rows", "#d0343f"),
    "background_wait": _Look("waits for peers", "#8e1b3a"),
    "dense_wait": _Look("waits for dense sums", "#d9a0ac"),
    "fill": _Look("rows into and out of slots", COLOURS["embedding access"]),
    "gather": _Look("rows into and out of slots", COLOURS["embedding access"]),
    "evict": _Look("rows into and out of slots", COLOURS["embedding access"]),
    "begin": _Look("forward", COLOURS["forward"]),
    "forward": _Look("forward", COLOURS["forward"]),
    "backward": _Look("backward + dense sync", COLOURS["backward + dense sync"]),
    "dense": _Look("backward + dense sync", COLOURS["backward + dense sync"]),
    "compute": _Look("forward + backward", COLOURS["forward + backward"]),
    "update": _Look("row update", COLOURS["row update"]),
    "exchange": _Look("exchange, critical", COLOURS["cache sync"]),
    "background": _Look("exchange, background", "#f0b48a"),
    "fetch": _Look("fetch", "#4bb3b3"),
    "write_back": _Look("write back", "#a45fb8"),
    "plan": _Look("plan", "#6f7fd0"),
    "evaluate": _Look("evaluation, commit", "#5b6472"),
    "commit": _Look("evaluation, commit", "#5b6472"),
}
OTHER_LOOK = _Look("other", "#b9bfc8")
BETWEEN_STEPS = ("other", "evaluate", "commit")
BLANK = ("ahead", "idle", "wait_plan", "wait_writes")


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps in a row, from the first worker's begin of the first to the last worker's end of the last."""

    first_step: int
    last_step: int
    begin: float
    end: float

    @property
    def step_seconds(self) -> float:
        return (self.end - self.begin) / (self.last_step - self.first_step + 1)

    @property
    def name(self) -> str:
        return f"steps {self.first_step:,} to {self.last_step:,}"


def windows(workers: Sequence[WorkerRecords]) -> list[Window]:
    """At most `WINDOWS_MAX`, spread over what was recorded; only steps that every worker has whole."""
    found = [_steps(worker.spans) for worker in workers]
    shared = sorted(set.intersection(*(set(steps) for steps in found))) if found else []
    pieces: list[list[int]] = []
    for step in shared:
        if pieces and step == pieces[-1][-1] + 1 and len(pieces[-1]) < SHOWN_STEPS:
            pieces[-1].append(step)
        else:
            pieces.append([step])
    longest = max(map(len, pieces), default=0)
    whole = [piece for piece in pieces if len(piece) == longest]
    kept = [whole[int(k * len(whole) / WINDOWS_MAX)] for k in range(WINDOWS_MAX)] if len(whole) > WINDOWS_MAX else whole
    return [
        Window(
            piece[0],
            piece[-1],
            min(steps[piece[0]][0] for steps in found),
            max(steps[piece[-1]][1] for steps in found),
        )
        for piece in kept
    ]


def _steps(spans: Sequence[Span]) -> dict[int, tuple[float, float]]:
    """Begin and end of every step that was recorded from its wait for rows on."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for span in spans:
        if span.track != "train":
            continue
        if span.what == "wait_rows":
            begun[span.step] = span.begin
        elif span.what not in BETWEEN_STEPS:
            ended[span.step] = max(span.end, ended.get(span.step, 0.0))
    return {step: (begun[step], ended[step]) for step in begun if step in ended}


def typical(found: Sequence[Window]) -> int:
    """Position of the window with the median time of a step."""
    order = sorted(range(len(found)), key=lambda number: found[number].step_seconds)
    return order[len(order) // 2]


def timeline_figure(workers: Sequence[WorkerRecords], found: Sequence[Window]) -> go.Figure:
    """One window is shown, the others can be chosen."""
    figure, owner = go.Figure(), list[int]()
    shown, places = typical(found), _places(workers)
    for number, window in enumerate(found):
        traces = [_steps_of(window, workers, places), *_bars(window, workers, places)]
        for trace in traces:
            trace.visible = number == shown
        figure.add_traces(traces)
        owner += [number] * len(traces)
    titles = {place: TRACKS[track] for (_, track), place in places.items()} | _headers(workers, places)
    height = 120 + int(LANE_PIXELS * (max(places.values()) + 1))
    styled(figure, x="milliseconds", y="", height_pixels=height)
    figure.update_layout(barmode="overlay", bargap=0.2)
    figure.update_xaxes(rangemode="tozero", showgrid=False, zeroline=False)
    figure.update_yaxes(
        tickvals=sorted(titles),
        ticktext=[titles[place] for place in sorted(titles)],
        showgrid=False,
        zeroline=False,
        range=[max(places.values()) + 0.6, -1.4],
    )
    if len(found) > 1:
        _offer(figure, found, owner, shown)
    return figure


def _places(workers: Sequence[WorkerRecords]) -> dict[tuple[int, str], float]:
    """Where each track of each worker is drawn, from the top; a gap between workers."""
    places: dict[tuple[int, str], float] = {}
    place = 0.0
    for worker in workers:
        there = {span.track for span in worker.spans}
        for track in TRACKS:
            if track in there:
                places[worker.worker, track] = place
                place += 1.0
        place += 1.0
    return places


def _bars(window: Window, workers: Sequence[WorkerRecords], places: dict[tuple[int, str], float]) -> list[go.Bar]:
    by_look: dict[str, list[tuple[float, Span, _Look]]] = {}
    for worker in workers:
        for span in worker.spans:
            if _is_blank(span) or span.end <= window.begin or span.begin >= window.end or span.track not in TRACKS:
                continue
            look = LOOKS.get(span.what, OTHER_LOOK)
            by_look.setdefault(look.name, []).append((places[worker.worker, span.track], span, look))
    order = [look.name for look in [*LOOKS.values(), OTHER_LOOK]]
    least = SEEN_SHARE * (window.end - window.begin)
    seen = [name for name, drawn in by_look.items() if sum(span.seconds for _, span, _ in drawn) > least]
    return [_bar(window, by_look[name]) for name in sorted(seen, key=order.index)]


def _is_blank(span: Span) -> bool:
    """What no thread but the training one calls "other" is waiting for work."""
    return span.what in BLANK or (span.what == "other" and span.track != "train")


def _bar(window: Window, drawn: list[tuple[float, Span, _Look]]) -> go.Bar:
    begins = [max(span.begin, window.begin) - window.begin for _, span, _ in drawn]
    ends = [min(span.end, window.end) - window.begin for _, span, _ in drawn]
    return go.Bar(
        orientation="h",
        name=drawn[0][2].name,
        marker={"color": drawn[0][2].colour, "line": {"width": 0}},
        y=[place for place, _, _ in drawn],
        width=0.78,
        base=[round(begin * MILLISECONDS, 3) for begin in begins],
        x=[round((end - begin) * MILLISECONDS, 3) for begin, end in zip(begins, ends, strict=True)],
        customdata=[
            [span.what.replace("_", " "), span.step, round(span.seconds * MILLISECONDS, 3), _bytes(span.num_bytes)]
            for _, span, _ in drawn
        ],
        hovertemplate="%{customdata[0]}, step %{customdata[1]}: %{customdata[2]} ms%{customdata[3]}<extra></extra>",
    )


def _bytes(num_bytes: int) -> str:
    return f", {num_bytes / 1e3:,.1f} kB" if num_bytes else ""


def _steps_of(window: Window, workers: Sequence[WorkerRecords], places: dict[tuple[int, str], float]) -> go.Scatter:
    """The number of every step over its first moment, at the first worker."""
    steps = _steps(workers[0].spans)
    numbers = range(window.first_step, window.last_step + 1)
    return go.Scatter(
        x=[round((steps[step][0] - window.begin) * MILLISECONDS, 3) for step in numbers],
        y=[-HEADER] * len(numbers),
        text=[f"▏{step:,}" for step in numbers],
        mode="text",
        textposition="middle right",
        name="steps",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
    )


def _headers(workers: Sequence[WorkerRecords], places: dict[tuple[int, str], float]) -> dict[float, str]:
    """The line above a worker's tracks says which worker it is; above a single one, what the numbers are."""
    if len(workers) == 1:
        return {-HEADER: "step"}
    tops: dict[int, float] = {}
    for (worker, _), place in places.items():
        tops[worker] = min(place, tops.get(worker, place))
    return {top - HEADER: f"<b>worker {worker}</b>" for worker, top in tops.items()}


def _offer(figure: go.Figure, found: Sequence[Window], owner: list[int], shown: int) -> None:
    buttons = [
        {
            "label": window.name,
            "method": "update",
            "args": [{"visible": [one == number for one in owner]}, {"xaxis.autorange": True}],
        }
        for number, window in enumerate(found)
    ]
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 6}}
    menu = {"buttons": buttons, "active": shown, **place}
    figure.update_layout(updatemenus=[menu], margin={"t": 50})
