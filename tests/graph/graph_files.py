"""Small graphs as files, prepared in a line, and read back by their names."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from foresee.graph.folder import GraphFolder
from foresee.graph.formats import open_source
from foresee.graph.options import GraphOptions
from foresee.graph.prepare import GraphReport, prepare_graph

TRIPLES = [("a", "likes", "b"), ("b", "likes", "c"), ("c", "hates", "a"), ("d", "likes", "a"), ("a", "hates", "a")]


def write_triples(path: Path, triples: list[tuple[str, str, str]]) -> Path:
    text = "".join("\t".join(triple) + "\n" for triple in triples)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def prepared(tmp_path: Path, *files: Path, settings: dict[str, Any] | None = None, **options: Any) -> GraphReport:
    options = {"valid_share": 0.0, "test_share": 0.0} | options
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir(exist_ok=True)
    return prepare_graph(open_source(files, unpacked, settings), tmp_path / "graph", GraphOptions(**options))


def named(graph: GraphFolder, split: str = "train") -> list[tuple[str, str, str]]:
    nodes, relations = graph.node_names().to_pylist(), graph.relation_names().to_pylist()
    return [(nodes[head], relations[relation], nodes[tail]) for head, relation, tail in graph.edges(split).tolist()]


def random_triples(num: int, num_nodes: int, seed: int = 0) -> list[tuple[str, str, str]]:
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.integers(num_nodes, size=num), rng.integers(3, size=num), rng.integers(num_nodes, size=num)])
    return [(f"n{head}", f"r{relation}", f"n{tail}") for head, relation, tail in rows.T]
