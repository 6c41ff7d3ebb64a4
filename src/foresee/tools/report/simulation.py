"""A simulated cluster as CSV and as a page: where a step's time goes, samples a second, planner and memory.

In: the records of `foresee simulate`, one mapping for each number of trainers, fewest first. Out: text, or a file.
Everything is a prediction, and every heading says so. Never: numbers that are not in the records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from foresee.io.optional import OptionalModule
from foresee.tools.report.frame import Record, Value
from foresee.tools.report.page import PALETTE, PageTable, Section, styled, write_page

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")

PARTS = {
    "compute_ms": "compute",
    "waited_ms": "waiting for rows",
    "exchange_ms": "critical exchange",
    "dense_ms": "dense sum",
    "late_ms": "background late",
    "bound_ms": "a resource that is full",
}
MEMORY = {"trainer_gb": "a trainer", "server_gb": "a server's rows", "planner_gb": "the planner"}


BEST = "knee of all"
"""What the note of a priced record begins with, if no other has less cost × hours."""


def write_simulation_page(
    path: Path, title: str, records: Sequence[Record], *, introduction: str, setting: str
) -> None:
    """`introduction` says what was planned, `setting` what the cluster is taken to be."""
    write_page(path, title, sections(records, setting), introduction)


def sections(records: Sequence[Record], setting: str) -> list[Section]:
    """With prices the bill comes first, and the rest is about the node type with the best knee."""
    if "cost" not in records[0]:
        return [*_of_cluster(records, setting), _table(records)]
    best = next(str(record["node"]) for record in records if str(record["note"]).startswith(BEST))
    of_best = [record for record in records if record["node"] == best]
    return [_bill(records), *_of_cluster(of_best, f"On nodes of type {best}. {setting}"), _table(records)]


def _bill(records: Sequence[Record]) -> Section:
    figure, names = go.Figure(), list(dict.fromkeys(str(record["node"]) for record in records))
    fitting = [record for record in records if record["cost"] is not None]
    for place, name in enumerate(names):
        own = [record for record in fitting if record["node"] == name]
        figure.add_scatter(
            x=[record["hours"] for record in own],
            y=[record["cost"] for record in own],
            name=name,
            text=[f"{record['nodes']}" for record in own],
            textposition="top center",
            mode="lines+markers+text",
            line={"color": PALETTE[place % len(PALETTE)]},
        )
    knees = [record for record in fitting if "knee" in str(record["note"])]
    figure.add_scatter(
        x=[record["hours"] for record in knees],
        y=[record["cost"] for record in knees],
        name="knee",
        mode="markers",
        marker={"symbol": "circle-open", "size": 18, "color": "#8a8f98", "line": {"width": 2}},
    )
    figure = styled(figure, x="predicted hours", y="cost")
    figure.update_xaxes(type="log")
    figure.update_yaxes(type="log")
    refused = {
        f"{record['nodes']} × {record['node']}: {record['note']}" for record in records if record["cost"] is None
    }
    return Section(
        heading="Predicted cost over hours",
        sentence="A point for each number of nodes, which stands beside it. The knee has the least cost × hours."
        + "".join(f" Left out: {it}." for it in sorted(refused)),
        content=figure,
    )


def _of_cluster(records: Sequence[Record], setting: str) -> list[Section]:
    trainers = [str(record["trainers"]) for record in records]
    return [
        Section(heading="Predicted step over trainers", sentence=setting, content=_steps(records, trainers)),
        Section(
            heading="Predicted samples a second",
            sentence="Beside what as many trainers would do if nothing but their own compute took time.",
            content=_throughput(records, trainers),
        ),
        Section(
            heading="Cores that planning needs",
            sentence="To plan as fast as training goes in the prediction: processor time of the planner on the machine "
            "that simulated, over the predicted step.",
            content=_bars(records, trainers, {"planner_cores": "cores"}, "cores of this machine", logarithmic=True),
        ),
        Section(
            heading="Memory",
            sentence="What each needs, gigabytes: a trainer beside its model, a server for its share of the rows.",
            content=_bars(records, trainers, MEMORY, "GB", logarithmic=True),
        ),
    ]


def _steps(records: Sequence[Record], trainers: Sequence[str]) -> go.Figure:
    figure = go.Figure()
    for place, (name, words) in enumerate(PARTS.items()):
        values = [record[name] for record in records]
        figure.add_bar(x=trainers, y=values, name=words, marker_color=PALETTE[place])
    figure.update_layout(barmode="stack")
    return _over_trainers(figure, "predicted ms a step")


def _throughput(records: Sequence[Record], trainers: Sequence[str]) -> go.Figure:
    figure = go.Figure()
    predicted = [record["samples_per_second"] for record in records]
    ideal = [float(record["samples_per_second"] or 0) / float(record["efficiency"] or 1) for record in records]
    figure.add_scatter(x=trainers, y=predicted, name="predicted", mode="lines+markers", line={"color": PALETTE[0]})
    line = {"color": "#8a8f98", "dash": "dot"}
    figure.add_scatter(x=trainers, y=ideal, name="compute alone", mode="lines", line=line)
    return _over_trainers(figure, "samples a second")


def _bars(
    records: Sequence[Record], trainers: Sequence[str], names: Mapping[str, str], title: str, *, logarithmic: bool
) -> go.Figure:
    figure = go.Figure()
    for place, (name, words) in enumerate(names.items()):
        figure.add_bar(x=trainers, y=[record[name] for record in records], name=words, marker_color=PALETTE[place])
    figure = _over_trainers(figure, title)
    if logarithmic:
        figure.update_yaxes(type="log")
    return figure


def _over_trainers(figure: go.Figure, title: str) -> go.Figure:
    figure = styled(figure, x="trainers", y=title)
    figure.update_xaxes(type="category")
    return figure


def _table(records: Sequence[Record]) -> Section:
    columns = list(records[0])
    rows = [[_shown(record[name]) for name in columns] for record in records]
    return Section(
        heading="All figures",
        sentence="As in the CSV. Milliseconds are predictions; plan, hit rate and rows are those of the real planner.",
        content=PageTable(columns=columns, rows=rows),
    )


def _shown(value: Value) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
