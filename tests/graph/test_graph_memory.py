"""The memory that a graph run announces is enough for the whole run, including its commits."""

from __future__ import annotations

import io
import re
import tracemalloc
from pathlib import Path

import pytest
from graph_runs import config_of, small_graph
from rich.console import Console

from foresee.graph.task import train


@pytest.mark.parametrize("unit", ["rows", "partitions"])
def test_peak_stays_within_the_announced_bound(tmp_path: Path, unit: str) -> None:
    """Nearly every row of the cache has changed at a commit; a copy of all of them would exceed the bound."""
    small_graph(tmp_path / "graph", num_nodes=60_000, num_edges=40_000, partitions=1 if unit == "rows" else 29)
    sections = {"cache": {"share": 1.0}} if unit == "rows" else {
        "cache": {"unit": "partitions"}, "order": {"name": "ring", "buffer": 8},
    }  # fmt: skip
    config = config_of(
        tmp_path / "graph", tmp_path / "run", model={"dim": 128},
        negatives={"num_chunks": 2, "num_nodes": 500}, tables={"optimizer": {"name": "adagrad", "lr": 0.1}},
        train={"batch_size": 512, "epochs": 1, "commit_every_steps": 20}, **sections,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    tracemalloc.start()
    try:
        train(config, console=console)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    found = re.search(r"memory needed, at most: ([\d,.]+) MB", text)
    assert found is not None, text
    announced = float(found[1].replace(",", "")) * 1e6
    assert announced / 4 < peak < announced
