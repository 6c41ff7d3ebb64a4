"""Small runs over a synthetic graph, and the bytes that they end with."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.folder import GraphFolder
from foresee.graph.options import GraphOptions
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.graph.task import train as train_graph
from foresee.run.config_file import make
from foresee.run.folder import RunFolder
from foresee.run.session import Outcome
from foresee.store.contract import Rows


def small_graph(path: Path, *, partitions: int = 8, **fields: Any) -> GraphFolder:
    """600 edges between 100 nodes, a tenth of them each for valid and test."""
    source = Synthetic(**{"num_nodes": 100, "num_edges": 600, "num_relations": 3, "communities": 4, **fields})
    options = GraphOptions(partitions=partitions, valid_share=0.1, test_share=0.1, replace=True)
    return synthetic_graph(source, path, options).graph


def content_of(graph: Path, run: Path, **sections: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "graph": str(graph), "run": str(run), "model": {"dim": 8},
        "negatives": {"num_chunks": 2, "num_nodes": 8},
        "train": {"batch_size": 64, "epochs": 2, "num_threads": 1},
        "tables": {"store": "disk"}, "report": {"timeline_steps": 0, "series_points": 0},
    }  # fmt: skip
    for name, section in sections.items():
        content[name] = {**content[name], **section} if isinstance(content.get(name), dict) else section
    return content


def config_of(graph: Path, run: Path, **sections: Any) -> GraphConfig:
    return make(GraphConfig, content_of(graph, run, **sections), where="test")


def train(config: GraphConfig, **options: Any) -> Outcome:
    return train_graph(config, console=Console(file=io.StringIO()), **options)


def kept_bytes(config: GraphConfig) -> bytes:
    """All that a run with tables on disk has kept: rows with state and versions, and the files of its checkpoint."""
    with build.node_tables(config, build.open_graph(config)) as tables:
        layout = tables.layout
        rows = Rows.empty(layout.num_rows, layout)
        tables.store.read(np.arange(layout.num_rows), rows)
        step = tables.store.committed_step
    checkpoint = RunFolder(config.run).checkpoints / f"step-{step:09d}"
    files = [(checkpoint / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors", "state.json")]
    return b"".join([rows.values.tobytes(), rows.state.tobytes(), rows.versions.tobytes(), *files])
