"""Train a graph with a decoder of your own, then with an encoder of PyTorch Geometric too, from disk and in memory.

    python examples/graphs/train.py [--encoder] [--folder FOLDER] [--epochs NUM]

Makes a synthetic graph, trains it with its rows on disk, a part of them in the cache, and again with all rows in
memory. Both runs end with the same bytes, with any number of torch threads.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from foresee.graph.config import GraphConfig
from foresee.graph.options import GraphOptions
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.graph.task import train
from foresee.graph.trained import open_trained
from foresee.run.config_file import make

HERE = Path(__file__).parent
MODEL: dict[str, Any] = {"dim": 32, "decoder": "own_models:Diagonal", "folder": str(HERE)}
ENCODER: dict[str, Any] = {"encoder": "own_models:Attention", "encoder_options": {"heads": 2}, "fanouts": [5]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a graph with models of your own.")
    parser.add_argument("--folder", type=Path, default=Path("build/graphs"), help="Where graph and runs go.")
    parser.add_argument("--encoder", action="store_true", help="With an encoder of PyTorch Geometric.")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    source = Synthetic(num_nodes=2_000, num_edges=20_000, num_relations=5, communities=10)
    options = GraphOptions(partitions=8, valid_share=0.05, test_share=0.05, replace=True)
    synthetic_graph(source, given.folder / "graph", options)
    vectors = []
    for store, share in (("disk", 0.98), ("memory", 1.0)):
        run = given.folder / f"run-{store}"
        content = {
            "graph": str(given.folder / "graph"), "run": str(run), "model": MODEL | (ENCODER if given.encoder else {}),
            "negatives": {"num_chunks": 4, "num_nodes": 100}, "tables": {"store": store}, "cache": {"share": share},
            "train": {"batch_size": 1000, "epochs": given.epochs},
        }  # fmt: skip
        outcome = train(make(GraphConfig, content, where=__file__), replace=True, console=Console(file=io.StringIO()))
        print(f"{store}: {outcome.steps_done} steps, valid {outcome.valid.in_words()}")
        with open_trained(run) as trained:
            vectors.append(trained.vectors.of(np.arange(source.num_nodes)).numpy())
    num_differing = int((vectors[0] != vectors[1]).sum())
    print(f"{num_differing} of {vectors[0].size:,} values of the nodes' vectors differ")


if __name__ == "__main__":
    main()
