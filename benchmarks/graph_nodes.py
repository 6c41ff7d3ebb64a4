"""Classes of nodes: GraphSage on sampled neighbourhoods with features on disk, against full batches of PyG.

Amazon-Computers (13,752 products, 767 features, 10 classes) and Coauthor-CS (18,333 authors, 6,805 features, 15
classes): two layers, 64 hidden values, dropout, Adam, the same train, valid and test nodes (80, 10 and 10 of 100).

    ours    batches of nodes, neighbours drawn from seeds ahead, features fetched from disk by plan into a cache that
            does not hold all of them
    pyg     torch_geometric's SAGEConv over all nodes and edges at once, features in memory

    accuracy_difference    accuracy of ours less that of pyg on the test nodes, the mean over seeds; of the graph where
                           it is lowest
By default Amazon-Computers and one seed; `--full`: both graphs, three seeds. The data is looked for in
`../shared/data/graph`, or in the folder of FORESEE_GRAPH_DATA. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy, dropout

from foresee.engine.loop import Run
from foresee.engine.planned_step import Pooling
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.folder import GraphFolder
from foresee.graph.formats import open_source
from foresee.graph.options import GraphOptions
from foresee.graph.prepare import prepare_graph
from foresee.graph.training import NODES, evaluate, forward
from foresee.run.callbacks import MoveRate
from foresee.run.dense_half import DenseHalf
from foresee.run.group import Alone
from foresee.run.loop import train_steps
from foresee.run.run_file import make
from graph_quality import DATA

HIDDEN, DROPOUT, LEARNING_RATE, WHOLE_RATE = 64, 0.5, 0.01, 0.02


@dataclass(frozen=True, kw_only=True)
class Case:
    """A graph and how both sides train on it."""

    file: str
    epochs: int
    """Of ours, in batches."""
    whole_epochs: int
    """Steps of the side that sees all nodes at once."""
    fanouts: tuple[int, int] = (10, 5)
    batch_size: int = 256
    cache_share: float = 0.8


CASES = {
    "amazon_computers": Case(file="amazon_cs.npz", epochs=8, whole_epochs=120),
    "coauthor_cs": Case(file="coauthor_cs.npz", epochs=4, whole_epochs=60, fanouts=(5, 5)),
}


def prepared(case: Case, folder: Path) -> Path:
    source, out, unpacked = DATA / case.file, folder / case.file.removesuffix(".npz"), folder / "unpacked"
    if not source.exists():
        sys.exit(f"{source} is not there; put it into that folder, or say FORESEE_GRAPH_DATA")
    unpacked.mkdir(exist_ok=True)
    prepare_graph(open_source((source,), unpacked, {}), out, GraphOptions(split="nodes"))
    return out


def ours(graph: Path, case: Case, seed: int) -> float:
    """Test accuracy after training from features on disk."""
    content = {
        "graph": str(graph), "run": "nowhere",
        "model": {
            "task": "nodes", "encoder": "graph_sage", "inputs": "features", "fanouts": list(case.fanouts),
            "encoder_options": {"hidden": [HIDDEN], "dropout": DROPOUT},
        },
        "cache": {"unit": "rows", "share": case.cache_share},
        "train": {
            "epochs": case.epochs, "batch_size": case.batch_size, "seed": seed,
            "optimizer": {"name": "Adam", "lr": LEARNING_RATE},
        },
    }  # fmt: skip
    config = make(GraphConfig, content, where="this benchmark")
    folder = build.open_graph(config)
    chosen = build.choose_order(config, folder)
    stream, model = build.train_stream(config, folder, chosen), build.build_model(config, folder)
    half = DenseHalf.of(config, model, stream.num_steps)
    header = build.plan_header(config, folder, stream, chosen)
    with build.new_tables(config, folder, Path("nowhere")) as tables:
        run = Run(stream, tables, header, Pooling.of([False]))
        train_steps(run, half.optimizer, Alone(model, forward), [MoveRate(half.schedule)], objective=NODES)
        found: Any = evaluate(config, folder, model, tables.store, "test")
    return float(found.accuracy)


def pyg(graph: Path, case: Case, seed: int) -> float:
    """Test accuracy of two SAGEConv layers over the whole graph."""
    from torch_geometric.nn import SAGEConv

    folder = GraphFolder.open(graph)
    features, labels = torch.tensor(np.array(folder.features())), torch.tensor(np.asarray(folder.labels())).long()
    near, split = adjacency(folder), {name: np.asarray(folder.nodes(name)) for name in ("train", "test")}
    torch.manual_seed(seed)
    layers = torch.nn.ModuleList(
        [SAGEConv(features.shape[1], HIDDEN), SAGEConv(HIDDEN, int(folder.num_classes))]
    )  # fmt: skip
    optimizer = torch.optim.Adam(layers.parameters(), lr=WHOLE_RATE)

    def logits(*, training: bool) -> torch.Tensor:
        hidden = layers[0](dropout(features, DROPOUT, training), near).relu()
        out: torch.Tensor = layers[1](dropout(hidden, DROPOUT, training), near)
        return out

    for _ in range(case.whole_epochs):
        optimizer.zero_grad()
        loss = cross_entropy(logits(training=True)[split["train"]], labels[split["train"]])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        right = logits(training=False)[split["test"]].argmax(1) == labels[split["test"]]
    return float(right.float().mean())


def adjacency(folder: GraphFolder) -> torch.Tensor:
    """Both directions of every edge, sparse: PyG's layers take the mean with one product of matrices."""
    edges = torch.tensor(np.asarray(folder.edges("train"))[:, [0, 2]]).long()
    both = torch.cat([edges, edges.flip(1)]).t()
    size = (int(folder.num_nodes), int(folder.num_nodes))
    return torch.sparse_coo_tensor(both, torch.ones(both.shape[1]), size).coalesce().to_sparse_csr()


def compared(name: str, folder: Path, seeds: range) -> dict[str, Any]:
    case = CASES[name]
    graph = prepared(case, folder)
    found: dict[str, list[float]] = {"ours": [], "pyg": []}
    for seed in seeds:
        for side, train in (("ours", ours), ("pyg", pyg)):
            begun = time.perf_counter()
            found[side].append(train(graph, case, seed))
            seconds = time.perf_counter() - begun
            print(f"{name} {side} seed {seed}: accuracy {found[side][-1]:.4f}, {seconds:.0f} s", flush=True)
    difference = float(np.mean(found["ours"]) - np.mean(found["pyg"]))
    return {"difference": round(difference, 4), **{side: [round(it, 4) for it in found[side]] for side in found}}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="both graphs, three seeds")
    parser.add_argument("--only", choices=list(CASES), help="one graph")
    parser.add_argument("--seeds", type=int, help="seeds")
    given = parser.parse_args()
    names = [given.only] if given.only else list(CASES) if given.full else ["amazon_computers"]
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory(prefix="graph-nodes-") as place:
        found = {name: compared(name, Path(place), range(given.seeds or (3 if given.full else 1))) for name in names}
    print(json.dumps({"accuracy_difference": min(it["difference"] for it in found.values()), **found}))


if __name__ == "__main__":
    main()
