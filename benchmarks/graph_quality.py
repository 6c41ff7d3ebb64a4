"""How good link prediction is on FB15k-237 and WN18RR, in memory and out of core: what an order of the edges costs.

    memory_mrr               DistMult, d = 50, 10 epochs, 10 x 500 negatives, random order: filtered test MRR
    ours_mrr_minus_comet     the ring (29 partitions, buffer 8) less COMET (32, 8), negatives from the buffer
    ours_reads_over_comet    what the ring reads in an epoch over what COMET does
    ours_mrr_minus_memory    the best order we have at no more than 2.5 x the table, less memory
    best_reads               times that order reads the table in an epoch

By default one seed and `--epochs 1` on FB15k-237, about 50 s of one core: the order of the columns shows, their height
does not. `--full` trains 10 epochs of three seeds (means), GraphSage and GAT in memory and under BETA, COMET and ours
(5 epochs, valid MRR), and the best settings we know for both graphs (ComplEx with N3). The data is looked for in
`../shared/data/graph`, or in the folder of FORESEE_GRAPH_DATA. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from foresee.engine.loop import Run
from foresee.engine.planned_step import Pooling
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.formats import open_source
from foresee.graph.options import GraphOptions
from foresee.graph.prepare import prepare_graph
from foresee.graph.training import evaluate, forward, objective_of
from foresee.run.callbacks import MoveRate
from foresee.run.dense_half import DenseHalf
from foresee.run.group import Alone
from foresee.run.loop import train_steps
from foresee.run.run_file import make
from foresee.run.training import torch_threads

DATA = Path(os.environ.get("FORESEE_GRAPH_DATA", Path(__file__).parents[2] / "shared" / "data" / "graph"))
ORDERS: dict[str, dict[str, Any]] = {
    "memory": {},
    "beta": {"name": "beta", "partitions": 16, "buffer": 4},
    "comet": {"name": "comet", "partitions": 32, "buffer": 8, "logical_partitions": 8},
    "ours": {"name": "ring", "partitions": 29, "buffer": 8},
    "ours_best": {"name": "ring", "partitions": 65, "buffer": 39, "logical_partitions": 5, "turns": 3},
    "ours_network": {"name": "ring", "partitions": 64, "buffer": 16, "logical_partitions": 8, "turns": 2},
}
KEPT: Path | None = None
"""Where results are kept, so that a run that was stopped goes on; set by --keep."""
DISTMULT: dict[str, Any] = {"decoder": "distmult", "dim": 50}
ENCODERS: dict[str, dict[str, Any]] = {
    "graph_sage": {**DISTMULT, "encoder": "graph_sage", "fanouts": [20], "neighbours": "buffer"},
    "gat": {**DISTMULT, "encoder": "gat", "fanouts": [10], "neighbours": "buffer", "encoder_options": {"heads": 4}},
}
ADAGRAD = {"optimizer": {"name": "Adagrad", "lr": 0.1}}
BEST: dict[str, dict[str, Any]] = {
    # The margin is log(nodes / negatives): what was drawn stands for all nodes.
    "FB15k-237": {
        "model": {"decoder": "complex", "dim": 200, "n3": 0.05, "loss_options": {"margin": 1.98}}, "epochs": 28,
        "negatives": {"num_chunks": 1, "num_nodes": 2000}, "train": ADAGRAD,
    },
    "WN18RR": {
        "model": {
            "decoder": "complex", "dim": 200, "n3": 0.1, "loss_options": {"margin": 3.0},
            "decoder_options": {"init_scale": 0.001},  # from ones, every node is its own likeliest neighbour for long
        },
        "epochs": 28, "tables": {"init_scale": 0.001}, "train": {"batch_size": 500, **ADAGRAD},
        "negatives": {"num_chunks": 1, "num_nodes": 2000},
    },
}  # fmt: skip


def prepared(name: str, folder: Path) -> Path:
    """The graph of an archive, prepared once."""
    archive, out = DATA / f"{name}.tar.gz", folder / name
    if not archive.exists():
        sys.exit(f"{archive} is not there; put the archive of {name} into that folder, or say FORESEE_GRAPH_DATA")
    if not out.exists():
        unpacked = folder / f"{name}.unpacked"
        unpacked.mkdir()
        prepare_graph(open_source((archive,), unpacked, {}), out, GraphOptions())
    return out


def trained(
    graph: Path, order: str, seed: int, *, model: dict[str, Any], epochs: int, split: str = "test",
    negatives: dict[str, Any] | None = None, train: dict[str, Any] | None = None, tables: dict[str, Any] | None = None,
) -> dict[str, float]:  # fmt: skip
    """Trains in memory in some order of the edges: `mrr`, times that an epoch reads the table, seconds."""
    content = {
        "graph": graph.name, "run": "nowhere", "model": model, "order": ORDERS[order],
        "tables": {"store": "memory", **(tables or {})},
        "negatives": negatives or {}, "cache": {"unit": "rows", "share": 1.0},
        "train": {"epochs": epochs, "seed": seed, "num_threads": 1, **(train or {})},
    }  # fmt: skip
    key = hashlib.sha256(json.dumps([content, split], sort_keys=True).encode()).hexdigest()[:16]
    known = None if KEPT is None else KEPT / f"{key}.json"
    if known is None or not known.exists():
        found = _trained({**content, "graph": str(graph)}, split)
        print(f"{graph.name} {model.get('encoder', model['decoder'])} {order} seed {seed}: {found}", flush=True)
        if known is None:
            return found
        known.write_text(json.dumps({**found, "content": content, "split": split}))
    kept: dict[str, float] = json.loads(known.read_text())
    return kept


def _trained(content: dict[str, Any], split: str) -> dict[str, float]:
    config = make(GraphConfig, content, where="this benchmark")
    begun, used = time.perf_counter(), time.process_time()
    folder = build.open_graph(config)
    chosen = build.choose_order(config, folder)
    stream, dense = build.train_stream(config, folder, chosen), build.build_model(config, folder)
    half = DenseHalf.of(config, dense, stream.num_steps)
    header = build.plan_header(config, folder, stream, chosen)
    with torch_threads(1), build.new_tables(config, folder, Path("nowhere")) as tables:
        run = Run(stream, tables, header, Pooling.of([False]))
        moves = [MoveRate(half.schedule)]
        train_steps(run, half.optimizer, Alone(dense, forward), moves, objective=objective_of(config))
        found: Any = evaluate(config, folder, dense, tables.store, split)
    reads = 0.0 if chosen.setting is None else reads_of_epoch(chosen, folder, config.train.seed)
    seconds, processor = time.perf_counter() - begun, time.process_time() - used
    return {
        "mrr": round(found.mrr, 5), "hits@10": round(found.hits[10], 5), "reads": round(reads, 3),
        "seconds": round(seconds, 1), "processor_seconds": round(processor, 1),
    }  # fmt: skip


def reads_of_epoch(chosen: build.Chosen, graph: Any, seed: int) -> float:
    """Times that the second epoch reads the table, which begins with the buffer of the first where the order does."""
    traverse = build.traversals(chosen, graph, seed)
    carried = traverse(0).states[-1] if chosen.order.carries else None
    return traverse(1).reads(carried) / int(graph.num_partitions)


def mean(found: list[dict[str, float]], name: str) -> float:
    return float(np.mean([it[name] for it in found]))


def table_of_orders(graph: Path, seeds: range, epochs: int) -> dict[str, Any]:
    """DistMult under every order that the issue compares."""
    names = ("memory", "comet", "ours", "ours_best")
    found = {name: [trained(graph, name, seed, model=DISTMULT, epochs=epochs) for seed in seeds] for name in names}
    mrr = {name: mean(found[name], "mrr") for name in names}
    return {
        "memory_mrr": round(mrr["memory"], 4),
        "ours_mrr_minus_comet": round(mrr["ours"] - mrr["comet"], 4),
        "ours_reads_over_comet": round(mean(found["ours"], "reads") / mean(found["comet"], "reads"), 3),
        "ours_mrr_minus_memory": round(mrr["ours_best"] - mrr["memory"], 4),
        "best_reads": round(mean(found["ours_best"], "reads"), 2),
        "mrr": {name: [round(it["mrr"], 4) for it in found[name]] for name in names},
    }


def talk_table(graph: Path) -> dict[str, dict[str, float]]:
    """Networks in memory and out of core, as the talk has them: 5 epochs, valid MRR."""
    return {
        encoder: {
            name: round(trained(graph, name, 0, model=model, epochs=5, split="valid")["mrr"], 4)
            for name in ("memory", "beta", "comet", "ours", "ours_best")
        }
        for encoder, model in ENCODERS.items()
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="three seeds, 10 epochs, networks, best settings")
    parser.add_argument("--only", choices=("orders", "networks", "best"), help="one part of --full")
    parser.add_argument("--epochs", type=int, help="epochs of DistMult")
    parser.add_argument("--seeds", type=int, help="seeds of DistMult")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the result of every run: none is made twice")
    given = parser.parse_args()
    global KEPT
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        KEPT = given.keep
    epochs, seeds = given.epochs or (10 if given.full else 1), given.seeds or (3 if given.full else 1)
    with tempfile.TemporaryDirectory(prefix="graph-quality-") as place:
        result: dict[str, Any] = {"epochs": epochs, "seeds": seeds}
        graph = prepared("FB15k-237", Path(place))
        if given.only in (None, "orders"):
            result |= table_of_orders(graph, range(seeds), epochs)
        if given.full and given.only in (None, "networks"):
            result["talk"] = talk_table(graph)
        if given.full and given.only in (None, "best"):
            for name, best in BEST.items():
                found = trained(prepared(name, Path(place)), "memory", 0, **best)
                result[f"best_{name}"] = {key: round(value, 4) for key, value in found.items()}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
