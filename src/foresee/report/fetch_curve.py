"""The curve "fetches over cache size": one line for each planner, as an HTML page or as CSV.

In: cache sizes, and for each planner the rows it fetches at each of them. Out: text. The page is self-contained:
nothing is loaded from elsewhere, and it follows the reader's light or dark setting. Never: numbers nobody counted.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

COLOURS = {
    "lookahead": "#3b82c4", "belady": "#8a8f98", "lru": "#e07b39", "lfu": "#3fa66b", "static": "#a45fb8",
    "none": "#c8515f",
}  # fmt: skip

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6472; --line: #d5dae1; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --line: #39424f; --paper: #14181f; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } p { color: var(--soft); }
"""

# Plotly draws its own text, so ink and lines are handed over, again when the reader's setting changes.
SCRIPT = """
function paint() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue('--ink').trim(), line = style.getPropertyValue('--line').trim();
  for (const chart of document.querySelectorAll('.js-plotly-plot')) Plotly.relayout(chart, {
    'font.color': ink, 'xaxis.gridcolor': line, 'yaxis.gridcolor': line });
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint); paint();
"""


def as_csv(capacities: Sequence[int], fetched: Mapping[str, Sequence[int]]) -> str:
    """One line for each cache size."""
    lines = [",".join(["cache_rows", *fetched])]
    lines += [",".join(map(str, row)) for row in zip(capacities, *fetched.values(), strict=True)]
    return "\n".join(lines) + "\n"


def as_page(
    title: str, note: str, capacities: Sequence[int], fetched: Mapping[str, Sequence[int]], *, capacity_rows: int,
    num_steps: int,
) -> str:  # fmt: skip
    """`capacity_rows` is the run's own cache, marked in the picture."""
    figure = go.Figure()
    for name, rows in fetched.items():
        line = {"color": COLOURS.get(name), "dash": "dot" if name == "belady" else "solid"}
        figure.add_scatter(
            x=list(capacities), y=[count / num_steps for count in rows], name=name, mode="lines+markers", line=line
        )
    # A line of its own and not a shape: plotly places the labels of shapes wrongly on logarithmic axes.
    most = max(max(rows, default=0) for rows in fetched.values()) / num_steps
    mark = {"color": "#8a8f98", "dash": "dash", "width": 1}
    figure.add_scatter(x=[capacity_rows] * 2, y=[0, most], name="this run's cache", mode="lines", line=mark)
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", margin={"l": 60, "r": 20, "t": 30, "b": 50},
        xaxis={"title": "rows in the cache", "type": "log"},
        yaxis={"title": "rows fetched a step", "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.08},
    )  # fmt: skip
    chart = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False, "responsive": True})
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<script>{get_plotlyjs()}</script></head><body><h1>{html.escape(title)}</h1>"
        f"<p>{html.escape(note)}</p>{chart}<script>{SCRIPT}</script></body></html>\n"
    )
