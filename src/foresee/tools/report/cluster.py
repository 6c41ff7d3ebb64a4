"""One self-contained HTML page of one or several runs: Gantt chart, completion times, fairness.

In: runs by name (the first one gets the Gantt chart). Out: HTML with everything in it, nothing is loaded from
elsewhere. It follows the reader's light or dark setting.
Never: figures that the tables do not have; the page draws what was simulated.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foresee.cluster.job import in_words
from foresee.cluster.metrics import UNFAIR_ABOVE, Metrics, measure, rho_static, rho_themis
from foresee.cluster.plan import Plan
from foresee.cluster.simulation import Outcome, Run
from foresee.io.optional import OptionalModule
from foresee.tools.cli.cluster_tables import TIMES, time_cells

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")
offline: Any = OptionalModule("plotly.offline")

PALETTE = ("#3b82c4", "#e07b39", "#3fa66b", "#a45fb8", "#c9a227", "#c8515f", "#4bb3b3", "#8a8f98")
HOUR = 3600.0

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6472; --line: #d5dae1; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --line: #39424f; --paper: #14181f; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } p { color: var(--soft); max-width: 60rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--line); padding: .3rem .8rem; text-align: right; }
td:first-child, th:first-child { text-align: left; }
"""

# Plotly draws its own text, so ink and lines are handed over, again when the reader's setting changes.
SCRIPT = """
function paint() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue('--ink').trim(), line = style.getPropertyValue('--line').trim();
  for (const chart of document.querySelectorAll('.js-plotly-plot')) Plotly.relayout(chart, {
    'font.color': ink, 'xaxis.gridcolor': line, 'yaxis.gridcolor': line, 'xaxis.zerolinecolor': line,
    'yaxis.zerolinecolor': line });
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint); paint();
"""


def page(title: str, runs: Mapping[str, Run], plan: Plan | None = None) -> str:
    first = next(iter(runs))
    charts = [
        ("Who runs when", f"{first}. Colour is the size of the gang, grey is waiting.", _gantt(runs[first])),
        ("Completion times", "Share of jobs that were done within so many hours of their arrival.", _jcts(runs)),
        (
            "Fairness",
            "Share of jobs with at most this ρ. Above 1 an equal share would have been faster. Solid: contention of "
            "the whole trace; dotted: contention during the job's own life (Themis). The two disagree; read both.",
            _rhos(runs),
        ),
    ]
    sections = "".join(
        f"<h2>{html.escape(name)}</h2><p>{html.escape(text)}</p>{_chart(figure)}" for name, text, figure in charts
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<script>{offline.get_plotlyjs()}</script></head><body><h1>{html.escape(title)}</h1>"
        f"{_table({name: measure(run) for name, run in runs.items()})}{sections}{_predictions(plan)}"
        f"<script>{SCRIPT}</script></body></html>"
    )


def _chart(figure: go.Figure) -> str:
    return str(
        figure.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False, "responsive": True})
    )


def _table(rows: Mapping[str, Metrics]) -> str:
    head = ("policy", "makespan", "bound", "mean JCT", "worst ρ", "unfair", "worst ρ (Themis)", "GPUs used", "starts")
    body = "".join(
        "<tr>"
        + "".join(
            f"<td>{html.escape(cell)}</td>"
            for cell in (
                name,
                in_words(metrics.makespan_seconds),
                in_words(metrics.bound_seconds),
                in_words(metrics.jct_mean_seconds),
                f"{metrics.worst_rho:.2f}",
                f"{metrics.unfair_share:.1%}",
                f"{metrics.worst_rho_themis:.2f}",
                f"{metrics.utilisation:.1%}",
                str(metrics.num_starts),
            )
        )
        + "</tr>"
        for name, metrics in rows.items()
    )
    return f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{body}</table>"


def _predictions(plan: Plan | None) -> str:
    """When each job of a plan starts and ends, and between what."""
    if plan is None:
        return ""
    head = ("job", "GPUs", *TIMES)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in (f.job.id, str(f.job.gpus), *time_cells(f))) + "</tr>"
        for f in plan.in_order()
    )
    return (
        "<h2>When each job starts and ends</h2><p>Four times in five what happens lies within; run times are as wrong "
        "as estimates have been, and jobs keep arriving as they have.</p>"
        f"<table><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr>{rows}</table>"
    )


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
    figure.update_yaxes(type="category", autorange="reversed", showticklabels=len(outcomes) <= 60, title="job")
    return _styled(figure, "hours", height=max(320, min(900, 80 + 14 * len(outcomes))))


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
        _add_steps(figure, name, [_jct_hours(outcome) for outcome in run.outcomes], index, "solid")
    return _styled(figure, "hours from arrival to end")


def _jct_hours(outcome: Outcome) -> float:
    return outcome.jct_seconds / HOUR


def _rhos(runs: Mapping[str, Run]) -> go.Figure:
    figure = go.Figure()
    for index, (name, run) in enumerate(runs.items()):
        _add_steps(figure, name, rho_static(run), index, "solid")
        _add_steps(figure, f"{name} (Themis)", rho_themis(run), index, "dot")
    figure.add_vline(x=UNFAIR_ABOVE, line_dash="dash", line_color="#8a8f98")
    return _styled(figure, "finish-time fairness ρ")


def _add_steps(figure: go.Figure, name: str, values: Sequence[float], index: int, dash: str) -> None:
    ordered = sorted(values)
    shares = [(rank + 1) / len(ordered) for rank in range(len(ordered))]
    line = {"color": PALETTE[index % len(PALETTE)], "dash": dash, "shape": "hv"}
    figure.add_scatter(x=ordered, y=shares, mode="lines", name=name, line=line)


def _styled(figure: go.Figure, x_title: str, height: int = 380) -> go.Figure:
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height,
        margin={"l": 60, "r": 20, "t": 20, "b": 50},
        legend={"orientation": "h", "y": 1.08},
    )
    figure.update_xaxes(title=x_title)
    return figure
