"""Sensitivity to lookahead and to cache size: rows fetched a step, and the time of a step."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from drawn.section import COLOURS, Command, Outputs, Section, markdown_table, style


def draw(outputs: Outputs) -> go.Figure:
    found = outputs["sensitivity"]
    titles = tuple(f"{of}: {what} a step" for what in ("rows fetched", "ms") for of in ("lookahead", "cache"))
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles, vertical_spacing=0.18)
    lookaheads = found["lookahead_steps"]
    bound = [found["bound_fetched"]] * len(lookaheads)
    _line(figure, 1, 1, lookaheads, found["eager_fetched"], "fixed lookahead (cache as it needs)", 1)
    _line(figure, 1, 1, lookaheads, found["lazy_fetched"], "Belady inside the window (10 % cache)", 0)
    _line(figure, 1, 1, lookaheads, bound, "bound at that cache", 5, dash="dot")
    for number, name in enumerate(("lookahead", "lru", "belady")):
        _line(figure, 1, 2, found["cache_rows"], found[f"{name}_fetched"], name, (0, 2, 5)[number])
    timed, sizes = found["timed_lookahead_steps"], found["timed_cache_rows"]
    _line(figure, 2, 1, timed, found["lookahead_step_ms"], "step", 3)
    _line(figure, 2, 1, timed, found["lookahead_rows_ms"], "of it, until the rows are there", 4)
    _line(figure, 2, 2, sizes, found["cache_step_ms"], "step", 3, legend=False)
    _line(figure, 2, 2, sizes, found["cache_rows_ms"], "until the rows are there", 4, legend=False)
    style(figure)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(title="steps of lookahead", col=1)
    figure.update_xaxes(title="rows in the cache", col=2)
    figure.update_layout(legend={"y": 1.06}, font={"size": 12}, margin={"t": 110})
    return figure


def _line(
    figure: go.Figure, row: int, column: int, x: list[float], y: list[float], name: str, colour: int, *,
    dash: str = "solid", legend: bool = True,
) -> None:  # fmt: skip
    figure.add_scatter(
        x=x, y=y, name=name, mode="lines+markers", line={"color": COLOURS[colour], "dash": dash}, row=row, col=column,
        showlegend=legend,
    )  # fmt: skip


def words(outputs: Outputs) -> str:
    found = outputs["sensitivity"]
    lookahead = [
        (steps, *(f"{found[name][k]:,.0f}" for name in ("eager_fetched", "eager_peak_slots", "lazy_fetched")))
        for k, steps in enumerate(found["lookahead_steps"])
    ]
    caches = [
        (f"{rows:,}", f"{rows / found['touched_rows']:.0%}", *(_fetched(found, name, k) for name in POLICIES))
        for k, rows in enumerate(found["cache_rows"])
    ]
    head = ("steps of lookahead", "fetched a step, fixed lookahead", "slots that needs", "Belady inside the window")
    return (
        f"A step has {found['unique_rows']:,.0f} distinct rows. Belady inside a window has a cache of "
        f"{found['lazy_cache_rows']:,} rows; with all the future known it would fetch {found['bound_fetched']:,.0f}."
        "\n\n"
        f"{markdown_table(head, lookahead)}\n\n"
        f"{markdown_table(('rows in the cache', 'of those touched', *POLICIES), caches)}\n\n"
        f"Milliseconds a step with cold tables: {_pairs(found, 'lookahead', 'timed_lookahead_steps', 'steps ahead')}; "
        f"{_pairs(found, 'cache', 'timed_cache_rows', 'rows in the cache')}."
    )


POLICIES = ("lookahead", "lru", "belady")


def _fetched(found: dict[str, list[float]], policy: str, place: int) -> str:
    return f"{found[f'{policy}_fetched'][place]:,.0f}"


def _pairs(found: dict[str, list[float]], what: str, at: str, unit: str) -> str:
    return ", ".join(
        f"{milliseconds:.0f} with {place:,} {unit}"
        for place, milliseconds in zip(found[at], found[f"{what}_step_ms"], strict=True)
    )


SECTION = Section(
    commands={"sensitivity": Command(script="benchmarks/sensitivity.py", arguments=("--full",))},
    minutes=2,
    draw=draw,
    words=words,
)
