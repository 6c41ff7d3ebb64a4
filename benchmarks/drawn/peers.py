"""Peers on the same machine: samples a second, memory and AUC of the same model on the same data."""

from __future__ import annotations

import plotly.graph_objects as go

from drawn.section import Command, Outputs, Section, figure_of, flat_figures, markdown_table

LIBRARIES = {
    "ours": "Foresee",
    "pytorch": "PyTorch",
    "torchrec": "TorchRec",
    "deepctr": "DeepCTR-Torch",
    "fuxictr": "FuxiCTR",
}
MAIN = "synthetic"
OF_A_SIDE = ("samples_per_second", "peak_mb", "auc")


def draw(outputs: Outputs) -> go.Figure | None:
    ratios = {name: value for name, value in outputs["peers"].items() if name.startswith("ours_over_")}
    if not ratios:
        return None
    figure = figure_of(x="", y="samples a second, ours over theirs")
    figure.add_bar(x=[name.removeprefix("ours_over_").replace("_", ", ") for name in ratios], y=list(ratios.values()))
    figure.add_hline(y=1.0, line={"dash": "dot"})
    return figure


def words(outputs: Outputs) -> str:
    """A line for each side of each case; figures that are not of one side stand below."""
    output, told, lines = outputs["peers"], set[str](), []
    for name in output:
        side, found, suffix = name.partition(f"_{OF_A_SIDE[0]}")
        if found:
            of_side = [f"{side}_{figure}{suffix}" for figure in OF_A_SIDE]
            ratio = f"ours_over_{side}{suffix}"
            told |= {*of_side, ratio}
            speed, peak_mb, auc = (output.get(it, "") for it in of_side)
            case = suffix.removeprefix("_") or MAIN
            lines.append((case, LIBRARIES.get(side, side), f"{speed:,}", output.get(ratio, ""), f"{peak_mb:,}", auc))
    rest = flat_figures({name: value for name, value in output.items() if name not in told})
    if not lines:
        return rest
    lines.sort(key=lambda line: (line[0] != MAIN, line[0], line[1] != LIBRARIES["ours"]))
    head = ("case", "side", "samples a second", "ours over it", "peak MB", "AUC")
    return "\n\n".join((markdown_table(head, lines), rest))


SECTION = Section(commands={"peers": Command(script="benchmarks/peers.py")}, minutes=1, draw=draw, words=words)
