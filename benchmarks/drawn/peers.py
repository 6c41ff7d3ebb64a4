"""Peers on the same machine: samples a second, memory and AUC of the same model on the same data."""

from __future__ import annotations

import plotly.graph_objects as go

from drawn.section import Command, Outputs, Section, figure_of, flat_figures


def draw(outputs: Outputs) -> go.Figure | None:
    ratios = {name: value for name, value in outputs["peers"].items() if name.startswith("ours_over_")}
    if not ratios:
        return None
    figure = figure_of(x="", y="samples a second, ours over theirs")
    figure.add_bar(x=[name.removeprefix("ours_over_").replace("_", ", ") for name in ratios], y=list(ratios.values()))
    figure.add_hline(y=1.0, line={"dash": "dot"})
    return figure


def words(outputs: Outputs) -> str:
    return flat_figures(outputs["peers"])


SECTION = Section(commands={"peers": Command(script="benchmarks/peers.py")}, minutes=1, draw=draw, words=words)
