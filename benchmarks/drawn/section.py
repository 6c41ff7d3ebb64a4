"""What a section of docs/evidence.md is made of, and small pieces that several draw and write with.

In: the JSON objects that commands printed, by a name for each command. Out: plotly figures and Markdown. Pure: nothing
is run or measured here, and no figure is written down that no command printed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

COLOURS = ("#3b82c4", "#e07b39", "#3fa66b", "#a45fb8", "#c8515f", "#8a8f98", "#b59a2f", "#4aa8a8", "#6b6f78")
INK, LINE = "#1d2430", "#d5dae1"

Output = dict[str, Any]
Outputs = Mapping[str, Output]
"""What each command printed last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A script that prints one JSON object last; or a command of `foresee` that writes its figures with --csv."""

    script: str
    """A path from the project's root, or `foresee`."""
    arguments: tuple[str, ...] = ()

    @property
    def is_foresee(self) -> bool:
        return self.script == "foresee"

    @property
    def words(self) -> str:
        return " ".join([*([] if self.is_foresee else ["python"]), self.script, *self.arguments])


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One part of the page."""

    commands: Mapping[str, Command]
    minutes: float
    """How long its commands take on two quiet cores, about."""
    draw: Callable[[Outputs], go.Figure | None]
    words: Callable[[Outputs], str]


def figure_of(*, x: str, y: str, log_x: bool = False, zero: bool = True) -> go.Figure:
    """An empty chart in the page's style."""
    figure = go.Figure()
    style(figure)
    figure.update_xaxes(title=x, type="log" if log_x else None)
    figure.update_yaxes(title=y, rangemode="tozero" if zero else "normal")
    return figure


def style(figure: go.Figure) -> None:
    figure.update_layout(
        paper_bgcolor="#ffffff", plot_bgcolor="#ffffff", font={"color": INK, "size": 14, "family": "sans-serif"},
        margin={"l": 70, "r": 20, "t": 50, "b": 60}, legend={"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        colorway=list(COLOURS),
    )  # fmt: skip
    figure.update_xaxes(gridcolor=LINE, zerolinecolor=LINE)
    figure.update_yaxes(gridcolor=LINE, zerolinecolor=LINE)


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    rows = [head, ["---"] * len(head), *([str(cell) for cell in line] for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def flat_figures(output: Output) -> str:
    """All plain numbers of an output, as a table: for sections that have no picture of their own."""
    plain = [(name, f"{value:,}") for name, value in output.items() if isinstance(value, int | float)]
    return markdown_table(("figure", "value"), [(f"`{name}`", value) for name, value in plain])
