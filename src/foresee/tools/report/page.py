"""The frame of our HTML pages: a title, then sections, each with a heading, a sentence, and a chart or a table.

In: sections. Out: one file with everything in it, plotly included. It follows the reader's light or dark setting, fits
a phone and prints. The same sections give the same bytes.
Never: a request to anywhere; the page forbids itself to load anything.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foresee.io.folders import write_whole
from foresee.io.optional import OptionalModule

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")
offline: Any = OptionalModule("plotly.offline")

PALETTE = (
    "#3b82c4",
    "#e07b39",
    "#3fa66b",
    "#a45fb8",
    "#c8515f",
    "#4bb3b3",
    "#c9a227",
    "#8a8f98",
    "#6f7fd0",
    "#b86f8f",
    "#7a9a3a",
)
"""Told apart on white and on black."""

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6472; --line: #d5dae1; --paper: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa4b2; --line: #39424f; --paper: #14181f; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
p { color: var(--soft); max-width: 60rem; margin: .3rem 0 .8rem; }
.wide { overflow-x: auto; } .chart { margin: 0; min-width: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { border-bottom: 1px solid var(--line); padding: .25rem .7rem; text-align: right; white-space: nowrap; }
td:first-child, th:first-child, td.words { text-align: left; } td.words { white-space: normal; color: var(--soft); }
.legend span { white-space: nowrap; margin-right: 1.1rem; } .legend { font-size: .9rem; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
.legend i { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
tr.marked { font-weight: 600; }
@media (max-width: 40rem) {
  body { margin: 1rem auto; font-size: 15px; } td, th { padding: .2rem .45rem; }
  tr:has(td.words) { display: grid; grid-template-columns: 1fr auto; border-bottom: 1px solid var(--line); }
  tr:has(td.words) td { border: 0; } td.words { grid-column: 1 / 3; padding-top: 0; } td.words:empty { display: none; }
}
@media print {
  :root { --ink: #000000; --soft: #333333; --line: #bbbbbb; --paper: #ffffff; }
  body { margin: 0; max-width: none; } section { break-inside: avoid; } .wide { overflow: visible; }
  table { font-size: 9pt; }
}
"""

# Plotly draws its own text, so ink and lines are handed over: again when the reader's setting changes, and on paper.
SCRIPT = """
function paint(ink, line) {
  const style = getComputedStyle(document.documentElement);
  ink = ink || style.getPropertyValue('--ink').trim(); line = line || style.getPropertyValue('--line').trim();
  for (const chart of document.querySelectorAll('.js-plotly-plot')) {
    const change = { 'font.color': ink };
    for (const name of Object.keys(chart._fullLayout).filter(key => /^[xy]axis\\d*$/.test(key))) {
      change[name + '.gridcolor'] = line; change[name + '.zerolinecolor'] = line; change[name + '.linecolor'] = line;
    }
    Plotly.relayout(chart, change);
  }
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => paint());
addEventListener('beforeprint', () => paint('#000000', '#bbbbbb')); addEventListener('afterprint', () => paint());
paint();
"""

LOADS_NOTHING = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """Cells as they are shown; the first column is on the left, the others are numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()
    """Positions of the rows that stand out."""
    words: frozenset[int] = frozenset()
    """Positions of the columns that are text, beside the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One thing to see, and the sentence that says what it is."""

    heading: str
    sentence: str
    content: go.Figure | PageTable | None = None
    notes: Sequence[str] = ()
    """Small print below the content, a paragraph each."""
    legend: Mapping[str, str] = field(default_factory=dict)
    """Colours by what they stand for, above the content: unlike plotly's own legend, it fits a phone."""


def write_page(path: Path, title: str, sections: Sequence[Section], introduction: str = "") -> None:
    """Writes the whole page or nothing."""
    write_whole(path, page(title, sections, introduction), "the page")


def page(title: str, sections: Sequence[Section], introduction: str = "") -> str:
    """The page as text. Charts have the ids chart-0, chart-1, and so on."""
    body, num_charts = [], 0
    for section in sections:
        body.append(_section(section, f"chart-{num_charts}"))
        num_charts += isinstance(section.content, go.Figure)
    library = offline.get_plotlyjs
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{LOADS_NOTHING}"><style>{STYLE}</style>'
        f"{f'<script>{library()}</script>' if num_charts else ''}</head><body><h1>{html.escape(title)}</h1>"
        f"{_paragraph(introduction)}{''.join(body)}{f'<script>{SCRIPT}</script>' if num_charts else ''}</body></html>\n"
    )


def styled(figure: go.Figure, *, x: str, y: str, height_pixels: int = 380) -> go.Figure:
    """A figure in the look of our pages: no background of its own, the legend below, titles on the axes."""
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        height=height_pixels,
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2},
        colorway=list(PALETTE),
    )
    figure.update_xaxes(title=x, automargin=True)
    figure.update_yaxes(title=y, automargin=True)
    return figure


def _section(section: Section, chart_id: str) -> str:
    return (
        f"<section><h2>{html.escape(section.heading)}</h2>{_paragraph(section.sentence)}"
        f"{_legend(section.legend)}{_content(section.content, chart_id)}"
        f"{''.join(map(_paragraph, section.notes))}</section>"
    )


def _legend(colours: Mapping[str, str]) -> str:
    entries = "".join(
        f'<span><i style="background:{html.escape(colour)}"></i>{html.escape(name)}</span> '
        for name, colour in colours.items()
    )
    return f'<p class="legend">{entries}</p>' if entries else ""


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>" if text else ""


def _content(content: go.Figure | PageTable | None, chart_id: str) -> str:
    if content is None:
        return ""
    if isinstance(content, PageTable):
        return _table(content)
    config = {"displayModeBar": False, "responsive": True}
    chart = content.to_html(full_html=False, include_plotlyjs=False, config=config, div_id=chart_id)
    return f'<figure class="chart">{chart}</figure>'


def _table(table: PageTable) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    head = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    body = "".join(
        ('<tr class="marked">' if number in table.marked else "<tr>")
        + "".join(
            f"<td{' class=words' if place in table.words else ''}>{html.escape(cell)}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for number, row in enumerate(table.rows)
    )
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
