"""Traffic of all policies on every log: rows on the critical path, as bars, and a table of critical and all rows."""

from __future__ import annotations

import plotly.graph_objects as go

from drawn.section import INK, Command, Outputs, Section, figure_of, markdown_table

BOUND = "belady"


def draw(outputs: Outputs) -> go.Figure:
    found = outputs["policies"]
    figure = figure_of(x="", y="critical rows a step, over those without a cache")
    for policy in (name for name in _policies(outputs) if name not in (BOUND, "none")):
        share = [
            by[policy]["critical_rows_per_step"] / by["none"]["critical_rows_per_step"] if policy in by else None
            for by in found.values()
        ]
        ours = policy == "lookahead"
        marker = {"color": INK} if ours else {}
        figure.add_bar(x=list(found), y=share, name="lookahead (ours)" if ours else policy, marker=marker)
    figure.update_layout(barmode="group")
    return figure


def words(outputs: Outputs) -> str:
    found, policies = outputs["policies"], _policies(outputs)
    lines = [(log, *(_cell(by.get(policy)) for policy in policies)) for log, by in found.items()]
    stale = [
        f"{log} {by[policy]['stale_reads']:.0%} ({policy})"
        for log, by in found.items()
        for policy in by
        if by[policy].get("stale_reads")
    ]
    head = ("log", *(f"**{policy}**" if policy == "lookahead" else policy for policy in policies))
    return (
        "Rows a step, on the critical path / in all. `belady` is the bound on rows fetched and written with all caches "
        f"as one.\n\n{markdown_table(head, lines)}\n\nReads that miss an update: {', '.join(stale) or 'none'}."
    )


def _policies(outputs: Outputs) -> list[str]:
    """In the order in which they were compared; some log may lack one."""
    return list(dict.fromkeys(policy for by in outputs["policies"].values() for policy in by))


def _cell(found: dict[str, float] | None) -> str:
    if not found or "rows_per_step" not in found:
        return "–"
    return f"{found['critical_rows_per_step']:,.0f} / {found['rows_per_step']:,.0f}"


SECTION = Section(
    commands={"policies": Command(script="benchmarks/policies.py", arguments=("--full",))},
    minutes=12,
    draw=draw,
    words=words,
)
