"""The page of a run over a graph: buckets filling in order, the buffer and its swaps, bytes read, loss and MRR.

In: a run folder, under way or over, and the graph that it names. Out: the sections of one HTML page. The order is made
again from the seed, as training makes it; everything else stands in what the run wrote down. What a run did not record
is said in a sentence where its chart would be. Nothing is trained, and no row is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee.arrays import Float32, Int32
from foresee.graph import build
from foresee.graph.orders import Traversal
from foresee.graph.trained import run_config
from foresee.io.optional import OptionalModule
from foresee.io.units import in_megabytes
from foresee.tools.report.page import PALETTE, PageTable, Section
from foresee.tools.report.run_figures import colours_of, curve, loss_figure, quality_figure, styled
from foresee.tools.report.run_page import NO_SERIES, time_sections
from foresee.tools.report.run_records import Point, RunRecords, read_run

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots
else:
    go = OptionalModule("plotly.graph_objects")
    subplots: Any = OptionalModule("plotly.subplots")

    def make_subplots(*arguments: Any, **options: Any) -> Any:
        return subplots.make_subplots(*arguments, **options)


BLUE, ORANGE, GREEN, GREY = PALETTE[0], PALETTE[1], PALETTE[2], PALETTE[7]
MEGABYTE = 1e6
NUM_GRIDS = 5
SHADES = "Viridis"
FIGURES = {"mrr": "MRR", "accuracy": "accuracy", "macro_f1": "macro F1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """One epoch as it was planned."""

    traversal: Traversal
    first_step: int
    """Of the run."""
    first_steps: tuple[int, ...]
    """Of each state within the epoch; and the number of all."""
    carried: Int32 | None
    """What the buffer held before."""

    def reads(self) -> list[tuple[int, int]]:
        """(step of the run, partitions that come in then), state by state."""
        before = self.carried if self.carried is not None else np.empty(0, np.int32)
        found = []
        for state, step in zip(self.traversal.states, self.first_steps, strict=False):
            found.append((self.first_step + step, len(np.setdiff1d(state, before))))
            before = state
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRun:
    """What the page is made of."""

    records: RunRecords
    epochs: tuple[Epoch, ...]
    order: str
    task: str
    partition_bytes: int
    table_bytes: int


def open_run(run: Path) -> GraphRun:
    """A run folder and its order."""
    config, records = run_config(run), read_run(run)
    graph = build.open_graph(config)
    chosen = build.choose_order(config, graph)
    stream = build.train_stream(config, graph, chosen)
    epochs: list[Epoch] = []
    for number, first_step in enumerate(stream.first_steps[:-1]):
        before = epochs[-1].traversal.states[-1] if epochs and chosen.order.carries else None
        traversal, first_steps = stream.traversal(number), stream.state_steps(number)
        epochs.append(Epoch(traversal=traversal, first_step=first_step, first_steps=first_steps, carried=before))
    row_bytes = build.table_layout(config, graph).row_bytes
    return GraphRun(
        records=records,
        epochs=tuple(epochs),
        order=chosen.order.name,
        task=config.model.task,
        partition_bytes=int(graph.partition_rows) * row_bytes,
        table_bytes=int(graph.num_nodes) * row_bytes,
    )


def sections_of(run: GraphRun) -> list[Section]:
    """In the order in which a person asks: is it good, what was read and when, and was it fast."""
    points = [point for worker in run.records.workers for point in worker.points]
    return [
        _summary(run, points),
        *_learning(run.records, points),
        *_order(run),
        *_bytes(run, points),
        *time_sections(run.records),
    ]


def _summary(run: GraphRun, points: Sequence[Point]) -> Section:
    rows: list[tuple[str, str, str]] = []
    valid, train = run.records.of_kind("valid"), run.records.of_kind("train")
    for name, words in FIGURES.items():
        if valid and valid[-1].get(name) is not None:
            rows.append((f"{words} on the valid split", f"{valid[-1][name]:.4f}", f"after {valid[-1]['step']:,} steps"))
    if train:
        rows.append(("training loss", f"{train[-1]['loss']:.4f}", f"after {train[-1]['step']:,} steps"))
    first = run.epochs[0].traversal
    states = f"{len(first.states):,} states of {len(first.states[0])} of {first.num_partitions} partitions"
    rows.append((f"order {run.order}", f"{first.swaps:,} swaps", f"in the first epoch: {states}"))
    if points:
        read = sum(sum(link[0] for link in point.store_bytes) for point in points)
        times = f"{read / run.table_bytes:.2f} times the table, which has {in_megabytes(run.table_bytes)}"
        rows.append(("rows read", in_megabytes(read), times))
    table = PageTable(columns=("", "", ""), rows=rows, words=frozenset({2}))
    return Section(heading="Summary", sentence="", content=table)


def _learning(records: RunRecords, points: Sequence[Point]) -> list[Section]:
    train, valid = records.of_kind("train"), records.of_kind("valid")
    if not valid and not any(point.loss is not None for point in points) and not train:
        return [Section(heading="Loss and MRR", sentence="This run has written no metrics yet.")]
    sentence = "Lower is better. Each point is the mean over the steps since the one before."
    loss = loss_figure(points, train, valid, "loss of an edge or node (nats)")
    found = [Section(heading="Loss", sentence=sentence, content=loss, legend=colours_of(loss))]
    if not valid:
        return [*found, Section(heading="MRR", sentence="The valid split has not been ranked yet.")]
    named = {name: words for name, words in FIGURES.items() if any(line.get(name) is not None for line in valid)}
    hits = sorted({name for line in valid for name in line if name.startswith("hits@")}, key=lambda it: int(it[5:]))
    quality = quality_figure({**named, **{name: name.capitalize() for name in hits}}, valid)
    sentence = "1 is the best there is: every right end ranked first, every class found."
    heading = " and ".join(named.values())
    return [*found, Section(heading=heading, sentence=sentence, content=quality, legend=colours_of(quality))]


def _order(run: GraphRun) -> list[Section]:
    if len(run.epochs[0].traversal.states) == 1:
        sentence = "All partitions are in one state: edges come in random order, and rows are planned one by one."
        return [Section(heading="Buckets", sentence=sentence)]
    return [
        Section(
            heading="Buckets filling in order",
            sentence="The first epoch. A cell is the bucket of edges from one partition to another; its colour says in "
            "which state of the buffer it is trained: dark first, light last.",
            content=grids_figure(run.epochs[0].traversal),
        ),
        Section(
            heading="The buffer",
            sentence="The first epoch again: which partitions are in memory, state by state. Where a bar begins, a "
            "partition is read; where it ends, it is written back.",
            content=buffer_figure(run.epochs[0].traversal),
        ),
        Section(
            heading="Swaps over time",
            sentence="Partitions that the order has brought in, one line for each epoch, from its first step on.",
            content=swaps_figure(run.epochs),
        ),
    ]


def grids_figure(traversal: Traversal) -> go.Figure:
    """The grid of buckets at some times of the epoch, what is not trained yet left blank."""
    grid, last = traversal.state_of_bucket(), len(traversal.states) - 1
    ends = sorted({round(last * part / NUM_GRIDS) for part in range(1, NUM_GRIDS + 1)})
    titles = [f"after state {end + 1:,} of {last + 1:,}" for end in ends]
    figure = make_subplots(rows=1, cols=len(ends), subplot_titles=titles, horizontal_spacing=0.02)
    for column, end in enumerate(ends, start=1):
        shown = np.where((grid >= 0) & (grid <= end), grid, np.nan)
        figure.add_heatmap(
            z=shown.tolist(),
            zmin=0,
            zmax=last,
            colorscale=SHADES,
            showscale=False,
            row=1,
            col=column,
            hovertemplate="from partition %{y} to %{x}: state %{z}<extra></extra>",
            name="",
        )
    styled(figure, x="", y="", height_pixels=300)
    size = traversal.num_partitions - 0.5
    figure.update_xaxes(range=[-0.5, size], showgrid=False, zeroline=False, showticklabels=False, constrain="domain")
    figure.update_yaxes(range=[size, -0.5], showgrid=False, zeroline=False, showticklabels=False)
    for column in range(1, len(ends) + 1):
        figure.update_yaxes(scaleanchor=f"x{column if column > 1 else ''}", row=1, col=column)
    figure.update_xaxes(title="to partition")
    figure.update_yaxes(title="from partition", row=1, col=1)
    figure.update_annotations(font_size=12)
    figure.update_layout(margin={"t": 30})
    return figure


def buffer_figure(traversal: Traversal) -> go.Figure:
    """[partitions, states]: what is there."""
    there: Float32 = np.full((traversal.num_partitions, len(traversal.states)), np.nan, np.float32)
    for number, state in enumerate(traversal.states):
        there[state, number] = 1
    figure = go.Figure()
    figure.add_heatmap(
        z=there.tolist(),
        x0=1,
        dx=1,
        showscale=False,
        colorscale=[[0, BLUE], [1, BLUE]],
        xgap=0,
        ygap=1,
        hovertemplate="state %{x}: partition %{y} is there<extra></extra>",
        name="",
    )
    height = max(220, min(520, 90 + 14 * traversal.num_partitions))
    styled(figure, x="state", y="partition", height_pixels=height)
    figure.update_xaxes(showgrid=False, zeroline=False)
    figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed")
    return figure


def swaps_figure(epochs: Sequence[Epoch]) -> go.Figure:
    """Partitions read since the epoch began."""
    figure = go.Figure()
    for number, epoch in enumerate(epochs):
        reads = epoch.reads()
        steps = [step - epoch.first_step for step, _ in reads]
        total = list(accumulate(count for _, count in reads))
        last = number == len(epochs) - 1
        figure.add_scatter(
            x=[*steps, epoch.first_steps[-1]],
            y=[*total, total[-1]],
            mode="lines",
            name=f"epoch {number + 1}",
            line={"shape": "hv", "width": 2 if last else 1, "color": BLUE if last else GREY},
            showlegend=False,
        )
    return styled(figure, x="step of the epoch", y="partitions read", height_pixels=320)


def _bytes(run: GraphRun, points: Sequence[Point]) -> list[Section]:
    heading = "Bytes read and written"
    if not points:
        return [Section(heading=heading, sentence=NO_SERIES)]
    figure, steps = go.Figure(), [point.step for point in points]
    for place, (name, colour) in enumerate((("read", BLUE), ("written back", ORANGE))):
        moved = accumulate(sum(link[place] for link in point.store_bytes) / MEGABYTE for point in points)
        curve(figure, name, list(zip(steps, moved, strict=True)), colour, False)
    reads = [read for epoch in run.epochs for read in epoch.reads()]
    whole = accumulate(count * run.partition_bytes / MEGABYTE for _, count in reads)
    done = [(step, total) for (step, _), total in zip(reads, whole, strict=True) if step <= run.records.steps_done]
    if len(run.epochs[0].traversal.states) > 1:
        curve(figure, "read, if whole partitions moved", done, GREY, False, "dot")
    styled(figure, x="step", y="megabytes in all", height_pixels=320)
    sentence = "Rows between the store and the cache, since the run began. Commits write more: the rows that changed."
    return [Section(heading=heading, sentence=sentence, content=figure, legend=colours_of(figure))]
