"""The page of one or several runs of a cluster's scheduler: Gantt chart, completion times, fairness.

In: runs by name (the first one gets the Gantt chart). Out: the sections of one HTML page.
Never: figures that the tables do not have; the page draws what was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from foresee.cluster.job import in_words
from foresee.cluster.metrics import UNFAIR_ABOVE, measure, rho_static, rho_themis
from foresee.cluster.plan import Plan
from foresee.cluster.simulation import Run
from foresee.io.optional import OptionalModule
from foresee.tools.cli.cluster_tables import TIMES, time_cells
from foresee.tools.report.page import PALETTE, PageTable, Section, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")

HOUR = 3600.0


def sections_of(runs: Mapping[str, Run], plan: Plan | None = None) -> list[Section]:
    """Return the summary, the charts, and for a plan when each job starts and ends."""
    first = next(iter(runs))
    sections = [
        Section(heading="Policies", sentence="", content=_metrics_table(runs)),
        Section(
            heading="Who runs when",
            sentence=f"{first}. Colour is the size of the gang, grey is waiting.",
            content=_gantt(runs[first]),
        ),
        Section(
            heading="Completion times",
            sentence="Share of jobs that were done within so many hours of their arrival.",
            content=_jcts(runs),
        ),
        Section(
            heading="Fairness",
            sentence="Share of jobs with at most this ρ. Above 1 an equal share would have been faster. Solid: "
            "contention of the whole trace; dotted: contention during the job's own life (Themis). The two disagree; "
            "read both.",
            content=_rhos(runs),
        ),
    ]
    if plan is not None:
        rows = [(fate.job.id, str(fate.job.gpus), *time_cells(fate)) for fate in plan.in_order()]
        sections.append(
            Section(
                heading="When each job starts and ends",
                sentence="Four times in five what happens lies within; run times are as wrong as estimates have been, "
                "and jobs keep arriving as they have.",
                content=PageTable(columns=("job", "GPUs", *TIMES), rows=rows),
            )
        )
    return sections


def _metrics_table(runs: Mapping[str, Run]) -> PageTable:
    rows = []
    for name, metrics in ((name, measure(run)) for name, run in runs.items()):
        times = (metrics.makespan_seconds, metrics.bound_seconds, metrics.jct_mean_seconds)
        rows.append(
            (
                name,
                *map(in_words, times),
                f"{metrics.worst_rho:.2f}",
                f"{metrics.unfair_share:.1%}",
                f"{metrics.worst_rho_themis:.2f}",
                f"{metrics.utilisation:.1%}",
                str(metrics.num_starts),
            )
        )
    columns = (
        "policy",
        "makespan",
        "bound",
        "mean JCT",
        "worst ρ",
        "unfair",
        "worst ρ (Themis)",
        "GPUs used",
        "starts",
    )
    return PageTable(columns=columns, rows=rows)


def _gantt(run: Run) -> go.Figure:
    outcomes = sorted(run.outcomes, key=lambda outcome: (outcome.start_seconds, outcome.finish_seconds))
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=[outcome.job.id for outcome in outcomes],
        base=[outcome.job.arrival_seconds / HOUR for outcome in outcomes],
        x=[outcome.jct_seconds / HOUR for outcome in outcomes],
        marker_color="rgba(140,148,160,.3)",
        name="waiting",
        hovertemplate="job %{y} from arrival to end<extra></extra>",
    )
    pieces = _pieces(run)
    for index, gang in enumerate(sorted({outcome.job.gpus for outcome in outcomes})):
        own = [(o, begin, end) for o in outcomes if o.job.gpus == gang for begin, end in pieces[o.job.id]]
        figure.add_bar(
            orientation="h",
            y=[outcome.job.id for outcome, _, _ in own],
            base=[begin / HOUR for _, begin, _ in own],
            x=[(end - begin) / HOUR for _, begin, end in own],
            marker_color=PALETTE[index % len(PALETTE)],
            name=f"{gang} GPU{'s' * (gang > 1)}",
            hovertemplate="job %{y}: %{base:.2f} h, for %{x:.2f} h<extra></extra>",
        )
    figure.update_layout(barmode="overlay", bargap=0.15)
    figure.update_yaxes(type="category", autorange="reversed", showticklabels=len(outcomes) <= 60)
    return styled(figure, x="hours", y="job", height_pixels=max(320, min(900, 80 + 14 * len(outcomes))))


def _pieces(run: Run) -> dict[str, list[tuple[float, float]]]:
    """For each job the stretches in which it runs without a break."""
    finish = {outcome.job.id: outcome.finish_seconds for outcome in run.outcomes}
    pieces: dict[str, list[tuple[float, float]]] = {id: [] for id in finish}
    for round in run.rounds:
        for id in round.ids:
            end = min(round.end_seconds, finish[id])
            if pieces[id] and pieces[id][-1][1] == round.start_seconds:
                pieces[id][-1] = (pieces[id][-1][0], end)
            else:
                pieces[id].append((round.start_seconds, end))
    return pieces


def _jcts(runs: Mapping[str, Run]) -> go.Figure:
    figure = go.Figure()
    for index, (name, run) in enumerate(runs.items()):
        _add_steps(figure, name, [outcome.jct_seconds / HOUR for outcome in run.outcomes], index, "solid")
    return styled(figure, x="hours from arrival to end", y="share of jobs")


def _rhos(runs: Mapping[str, Run]) -> go.Figure:
    figure = go.Figure()
    for index, (name, run) in enumerate(runs.items()):
        _add_steps(figure, name, rho_static(run), index, "solid")
        _add_steps(figure, f"{name} (Themis)", rho_themis(run), index, "dot")
    figure.add_vline(x=UNFAIR_ABOVE, line_dash="dash", line_color="#8a8f98")
    return styled(figure, x="finish-time fairness ρ", y="share of jobs")


def _add_steps(figure: go.Figure, name: str, values: Sequence[float], index: int, dash: str) -> None:
    ordered = sorted(values)
    shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
    line = {"color": PALETTE[index % len(PALETTE)], "dash": dash, "shape": "hv"}
    figure.add_scatter(x=ordered, y=shares, mode="lines", name=name, line=line)
