"""Tables larger than the memory they may use."""

from __future__ import annotations

import plotly.graph_objects as go

from drawn.section import Command, Outputs, Section, figure_of, flat_figures

BYTES = {
    "tables_bytes": "all rows", "touched_bytes": "rows touched", "in_memory_peak_bytes": "peak, tables in memory",
    "limit_bytes": "limit", "peak_bytes": "peak, ours",
}  # fmt: skip


def draw(outputs: Outputs) -> go.Figure | None:
    known = {label: outputs["larger"][name] for name, label in BYTES.items() if name in outputs["larger"]}
    if not known:
        return None
    figure = figure_of(x="gigabytes", y="")
    gigabytes = [value / 1e9 for value in reversed(known.values())]
    figure.add_bar(y=list(reversed(known)), x=gigabytes, orientation="h", text=[f"{value:.2f}" for value in gigabytes])
    return figure


def words(outputs: Outputs) -> str:
    """With rows that nobody wrote before, and, where it was measured, with rows that all lie on the disk."""
    tables = [flat_figures(outputs["larger"])]
    if "written" in outputs:
        tables.append(
            "With every row written before (`--written`), so that every fetch reads the disk, and from the second "
            "epoch on, as in long training; and peers:"
        )
        tables.append(flat_figures(outputs["written"]))
    return "\n\n".join(tables)


SCRIPT = "benchmarks/larger_than_memory.py"
SECTION = Section(
    commands={"larger": Command(script=SCRIPT), "written": Command(script=SCRIPT, arguments=("--written",))},
    minutes=1.2,
    draw=draw,
    words=words,
)
