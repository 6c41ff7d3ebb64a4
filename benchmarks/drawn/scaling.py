"""Scaling over trainers: two measured over slow links, the simulator held against measured steps, then predicted."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from drawn.section import Command, Outputs, Section, figure_of, flat_figures, markdown_table

TRAINERS = "2,4,8,16,32"
PREDICTED = {
    "ours": ("ours, the plan made beforehand", ("--policy", "lookahead", "--planners", "0")),
    "ours_planning": ("ours, planned by one core meanwhile", ("--policy", "lookahead", "--planners", "1")),
    "none": ("no cache", ("--policy", "none", "--planners", "0")),
}
"""What is predicted: a label, and what tells it to the simulator."""


def draw(outputs: Outputs) -> go.Figure | None:
    if "ours" not in outputs:
        return None
    figure = figure_of(x="trainers", y="predicted ms a step", log_x=True)
    for name, (label, _) in PREDICTED.items():
        lines = _lines(outputs, name)
        if lines:
            x = [float(line["trainers"]) for line in lines]
            figure.add_scatter(x=x, y=[float(line["step_ms"]) for line in lines], name=label, mode="lines+markers")
    figure.update_xaxes(tickvals=[int(count) for count in TRAINERS.split(",")])
    figure.update_layout(title="Predicted by the simulator, not measured")
    return figure


def words(outputs: Outputs) -> str:
    parts = []
    if "network" in outputs:
        parts.append(f"Measured, two trainers and two servers over shaped links:\n\n{flat_figures(outputs['network'])}")
    if "simulator" in outputs:
        checked = flat_figures(outputs["simulator"])
        parts.append(f"The simulator against measured steps of other configurations:\n\n{checked}")
    predicted = [
        (line["trainers"], label, f"{float(line['step_ms']):.1f}", line.get("bottleneck", ""))
        for name, (label, _) in PREDICTED.items()
        for line in _lines(outputs, name)
    ]
    if predicted:
        table = markdown_table(("trainers", "who", "predicted ms a step", "limited by"), predicted)
        parts.append(f"Predicted, not measured:\n\n{table}")
    return "\n\n".join(parts)


def _lines(outputs: Outputs, name: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = outputs[name]["lines"] if name in outputs else []
    return lines


def _simulate(arguments: tuple[str, ...]) -> Command:
    return Command(script="foresee", arguments=("simulate", "--synthetic", "3e7", "--trainers", TRAINERS, *arguments))


SECTION = Section(
    commands={
        "network": Command(script="benchmarks/network.py", arguments=("--full",)),
        "simulator": Command(script="benchmarks/simulator.py"),
        **{name: _simulate(arguments) for name, (_, arguments) in PREDICTED.items()},
    },
    minutes=5.5,
    draw=draw,
    words=words,
)
