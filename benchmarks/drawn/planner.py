"""The planner's throughput against what N trainers need: samples planned a second, beside those trained."""

from __future__ import annotations

import plotly.graph_objects as go

from drawn.section import COLOURS, Command, Outputs, Section, figure_of, markdown_table

WORKERS = (2, 4, 8, 16)


def draw(outputs: Outputs) -> go.Figure:
    workers, planned = _planned(outputs)
    trainer = outputs["breakdown"]["samples_per_second_ideal"]
    figure = figure_of(x="trainers", y="samples a second")
    figure.add_scatter(x=workers, y=planned, name="planned by one core", mode="lines+markers")
    needed = {"color": COLOURS[1], "dash": "dash"}
    name = "needed, if each trains as fast as one of this machine with all rows in RAM"
    figure.add_scatter(x=workers, y=[trainer * count for count in workers], name=name, mode="lines", line=needed)
    return figure


def words(outputs: Outputs) -> str:
    workers, planned = _planned(outputs)
    trainer = outputs["breakdown"]["samples_per_second_ideal"]
    lines = [
        (
            count,
            f"{speed:,}",
            f"{outputs[f'workers_{count}']['placement_share']:.0%}",
            f"{trainer * count:,.0f}",
            f"{speed / (trainer * count):.1f}",
        )
        for count, speed in zip(workers, planned, strict=True)
    ]
    head = ("trainers", "planned a second, one core", "of it placement", "needed a second", "planned over needed")
    return (
        f"{markdown_table(head, lines)}\n\nNeeded: {trainer:,.0f} samples a second for each trainer, which is this "
        "machine's two cores on a DLRM with all rows in RAM (the section before). Faster trainers need more: the last "
        "column divided by how much faster."
    )


def _planned(outputs: Outputs) -> tuple[list[int], list[int]]:
    known = [count for count in WORKERS if f"workers_{count}" in outputs]
    return known, [int(outputs[f"workers_{count}"]["examples_per_second"]) for count in known]


SECTION = Section(
    commands={
        **{
            f"workers_{count}": Command(script="benchmarks/planning.py", arguments=("--workers", str(count)))
            for count in WORKERS
        },
        "breakdown": Command(script="benchmarks/breakdown.py", arguments=("--full",)),
    },
    minutes=1,
    draw=draw,
    words=words,
)
