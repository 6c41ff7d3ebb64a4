"""Accuracy: curves of AUC for every log and protocol, and the differences to exact training at the end."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from drawn.section import COLOURS, Command, Output, Outputs, Section, markdown_table, style

LABELS = {"exact": "exact (ours)", "fae": "FAE"}

CUT = 1.25
"""Of the highest log loss of exact training."""


def draw(outputs: Outputs) -> go.Figure:
    found = outputs["accuracy"]
    figure = make_subplots(
        rows=2, cols=len(found), subplot_titles=list(found), vertical_spacing=0.12, horizontal_spacing=0.05
    )
    for column, by in enumerate(found.values(), start=1):
        for number, (protocol, points) in enumerate(by["curves"].items()):
            if protocol == "het 0":
                continue  # equal to exact up to rounding: it would hide that line
            for row, what in enumerate(("auc", "log_loss"), start=1):
                figure.add_scatter(
                    x=[point["num_samples"] for point in points], y=[point[what] for point in points], row=row,
                    col=column, mode="lines", name=LABELS.get(protocol, f"HET s = {protocol.partition(' ')[2]}"),
                    showlegend=column == 1 and row == 1, line={"color": COLOURS[number], "width": 2},
                )  # fmt: skip
        figure.update_yaxes(range=_log_loss_range(by), row=2, col=column)
    style(figure)
    figure.update_yaxes(title="AUC", row=1, col=1)
    figure.update_yaxes(title="log loss", row=2, col=1)
    figure.update_xaxes(title="samples trained", row=2)
    figure.update_layout(legend={"y": 1.08}, font={"size": 11}, margin={"t": 90})
    return figure


def _log_loss_range(by: Output) -> list[float]:
    """A stale protocol may diverge for a while; its line then leaves the picture, so that others can be told apart."""
    losses = {protocol: [point["log_loss"] for point in points] for protocol, points in by["curves"].items()}
    least = min(min(values) for values in losses.values())
    most = max(max(values) for values in losses.values())
    return [0.98 * least, min(1.02 * most, CUT * max(losses["exact"]))]


def words(outputs: Outputs) -> str:
    lines: list[tuple[object, ...]] = []
    for log, by in outputs["accuracy"].items():
        protocols = [protocol for protocol in by["curves"] if protocol != "exact"]
        lines.append((f"**{log}**, exact", by["auc_exact"], by["log_loss_exact"], "", "", "0 %", ""))
        lines += [_line(by, protocol) for protocol in protocols]
    head = ("log, protocol", "AUC", "log loss", "AUC − exact", "log loss − exact", "stale lookups", "updates missing")
    seeds = {by["num_seeds"] for by in outputs["accuracy"].values()}
    hot = ", ".join(f"{log} {by['fae_hot_samples']:.0%}" for log, by in outputs["accuracy"].items())
    return (
        f"{markdown_table(head, lines)}\n\nMeans over {max(seeds)} seeds; ± is the standard error of the "
        "difference, seed by seed. `het 0` is exact and differs by rounding alone. Updates missing: those that a stale "
        f"read did not see, in the mean. Samples that FAE counts as hot: {hot}."
    )


def _line(by: Output, protocol: str) -> tuple[object, ...]:
    name = protocol.replace(" ", "_")
    return (
        protocol, by[f"auc_{name}"], by[f"log_loss_{name}"], _difference(by, f"auc_{name}"),
        _difference(by, f"log_loss_{name}"), f"{by[f'stale_per_lookup_{name}']:.0%}",
        by[f"missing_updates_per_stale_read_{name}"] or "",
    )  # fmt: skip


def _difference(by: Output, name: str) -> str:
    error = by[f"{name}_minus_exact_error"]
    return f"{by[f'{name}_minus_exact']:+.4f}" + (f" ± {error:.4f}" if error is not None else "")


SECTION = Section(
    commands={"accuracy": Command(script="benchmarks/accuracy.py", arguments=("--full",))},
    minutes=2,
    draw=draw,
    words=words,
)
