"""The curve "fetches over cache size": one line for each planner, as an HTML page or as CSV.

In: cache sizes, and for each planner the rows it fetches at each of them. Out: text; the page has the frame of all our
pages. Every number was counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foresee.base.extras import OptionalModule
from foresee.report.page import Section, page, styled

if TYPE_CHECKING:
    import plotly.graph_objects as go
else:
    go = OptionalModule("plotly.graph_objects")


@dataclass(frozen=True, slots=True)
class Style:
    """How a policy's line looks."""

    colour: str
    is_bound: bool = False
    """Dotted: nobody can get below it."""


def as_csv(capacities: Sequence[int], fetched: Mapping[str, Sequence[int]]) -> str:
    """One line for each cache size."""
    lines = [",".join(["cache_rows", *fetched])]
    lines += [",".join(map(str, row)) for row in zip(capacities, *fetched.values(), strict=True)]
    return "\n".join(lines) + "\n"


def as_page(
    title: str, note: str, capacities: Sequence[int], fetched: Mapping[str, Sequence[int]], *,
    styles: Mapping[str, Style], capacity_rows: int, num_steps: int,
) -> str:  # fmt: skip
    """`capacity_rows` is the run's own cache, marked in the picture."""
    figure = go.Figure()
    for name, rows in fetched.items():
        line = {"color": styles[name].colour, "dash": "dot" if styles[name].is_bound else "solid"}
        figure.add_scatter(
            x=list(capacities), y=[count / num_steps for count in rows], name=name, mode="lines+markers", line=line
        )
    # A line of its own and not a shape: plotly places the labels of shapes wrongly on logarithmic axes.
    most = max(max(rows, default=0) for rows in fetched.values()) / num_steps
    mark = {"color": "#8a8f98", "dash": "dash", "width": 1}
    figure.add_scatter(x=[capacity_rows] * 2, y=[0, most], name="this run's cache", mode="lines", line=mark)
    styled(figure, x="rows in the cache", y="rows fetched a step", height_pixels=460)
    figure.update_xaxes(type="log")
    figure.update_yaxes(rangemode="tozero")
    return page(title, [Section(heading="Rows fetched a step", sentence=note, content=figure)])
