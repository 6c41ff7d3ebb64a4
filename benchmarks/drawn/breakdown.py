"""Where a step's time goes: stacked bars of the parts of a step, without a cache, with ours, and in the ideal."""

from __future__ import annotations

import plotly.graph_objects as go

from drawn.section import Command, Outputs, Section, figure_of, markdown_table

SIDES = {"none": "no cache, mapped", "none_direct": "no cache, direct", "ours": "Foresee", "ideal": "all rows in RAM"}
PARTS = {
    "rows": "rows: waiting, filling, gathering", "forward": "forward", "backward": "backward + dense optimiser",
    "update": "row update, write-back",
}  # fmt: skip


def draw(outputs: Outputs) -> go.Figure:
    found = outputs["breakdown"]
    figure = figure_of(x="milliseconds of a step", y="")
    for part, label in PARTS.items():
        sides = [side for side in reversed(SIDES) if side in found]
        milliseconds = [1e3 * found[side][part] for side in sides]
        figure.add_bar(y=[SIDES[side] for side in sides], x=milliseconds, name=label, orientation="h")
    figure.update_layout(barmode="stack")
    return figure


def words(outputs: Outputs) -> str:
    found = outputs["breakdown"]
    lines = [
        (label, *(f"{1e3 * found[side][part]:.1f}" for part in PARTS), f"{1e3 * sum(found[side].values()):.1f}",
         f"{found[f'rows_share_{side}']:.0%}")
        for side, label in SIDES.items()
        if side in found
    ]  # fmt: skip
    head = ("ms a step", *PARTS, "all", "share of rows")
    return (
        f"{markdown_table(head, lines)}\n\nWithout a cache over ours: **{found['none_over_ours']}**; ours over the "
        f"ideal: **{found['ours_over_ideal']}** (medians of {found['turns']} turns). The cache holds "
        f"{found['cache_rows']:,} rows; {found['hit_rate']:.0%} of a step's rows were in it, over all steps from an "
        "empty cache on."
    )


SECTION = Section(
    commands={"breakdown": Command(script="benchmarks/breakdown.py", arguments=("--full",))},
    minutes=1,
    draw=draw,
    words=words,
)
