"""How good link prediction is on FB15k-237 and WN18RR, in memory and out of core: what an order of the edges costs.

    memory_mrr               DistMult, d = 50, 10 x 500 negatives, random order: filtered test MRR
    ours_mrr_minus_comet     our best order (ring, 65 partitions in 5 groups, buffer 39, two turns) less COMET (32, 8)
    ours_mrr_minus_memory    the same order less memory
    ours_reads               times that it reads the table in an epoch
    ours_reads_over_comet    over what COMET reads
    ours_memory              share of the table that its buffer holds; COMET's is a quarter
    ring_mrr_minus_comet     with --full: the ring (29, 8), in the memory that COMET has, and its reads over COMET's
    talk                     valid MRR of GraphSage and GAT after 5 epochs, by order; all but memory hold a quarter
    talk_differing_bytes     of both networks' rows: random order from disk, the cache a part of them, and in memory
    best_FB15k-237, best_WN18RR   test MRR of the best settings we know (ComplEx with N3), and what they took

By default means of two seeds and 5 epochs of the orders on FB15k-237, two runs at a time: one seed differs from the
next by up to .004 (COMET's more), so small differences want `--full`: 10 epochs of three seeds, the ring, the networks
and the best settings, about 1,750 s of processor time, two runs at a time; `--only` is one part of it. In
every column the rate of relations and networks falls to nothing over the run, which gave memory and the ring .003 each.
The data is looked for in `../shared/data/graph`, or in the folder of FORESEE_GRAPH_DATA. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.formats import open_source
from foresee.graph.options import GraphOptions
from foresee.graph.prepare import prepare_graph
from foresee.graph.task import evaluate, forward, objective_of
from foresee.run.callbacks import MoveRate
from foresee.run.config_file import make
from foresee.run.dense_state import DenseHalf
from foresee.run.group import Alone
from foresee.run.loop import train_steps
from foresee.run.torch_settings import torch_settings
from foresee.tools.verify import verify_graph

DATA = Path(os.environ.get("FORESEE_GRAPH_DATA", Path(__file__).parents[2] / "shared" / "data" / "graph"))
ORDERS: dict[str, dict[str, Any]] = {
    "memory": {},
    "beta": {"name": "beta", "partitions": 16, "buffer": 4},
    "comet": {"name": "comet", "partitions": 32, "buffer": 8, "logical_partitions": 8},
    "ring": {"name": "ring", "partitions": 29, "buffer": 8},
    "ours": {"name": "ring", "partitions": 65, "buffer": 39, "logical_partitions": 5, "turns": 2},
    "ours_network": {"name": "ring", "partitions": 32, "buffer": 8, "logical_partitions": 8},
}
KEPT: Path | None = None
"""Where results are kept, so that a run that was stopped goes on; set by --keep."""
DISTMULT: dict[str, Any] = {"decoder": "distmult", "dim": 50}
ENCODERS: dict[str, dict[str, Any]] = {
    "graph_sage": {**DISTMULT, "encoder": "graph_sage", "fanouts": [0], "neighbours": "buffer"},
    "gat": {**DISTMULT, "encoder": "gat", "fanouts": [10], "neighbours": "buffer", "encoder_options": {"heads": 4}},
}
RATES = {"graph_sage": 0.01, "gat": 0.01}
"""Of Adam for relations and networks; a tenth, good for relations alone, makes networks worse."""
BEST: dict[str, dict[str, Any]] = {
    # The margin is log(nodes / negatives): what was drawn stands for all nodes.
    "FB15k-237": {
        "model": {"decoder": "complex", "dim": 400, "n3": 0.05, "loss_options": {"margin": 1.98}},
        "epochs": 30, "falls": True,
    },
    "WN18RR": {
        "model": {
            "decoder": "complex", "dim": 200, "n3": 0.1, "loss_options": {"margin": 3.0},
            "decoder_options": {"init_scale": 0.001},  # from ones, every node is its own likeliest neighbour for long
        },
        "epochs": 28, "tables": {"init_scale": 0.001}, "train": {"batch_size": 500}, "falls": False,
    },
}  # fmt: skip
NUM_EDGES = {"FB15k-237": 272_115, "WN18RR": 86_835}


def falling(graph: str, epochs: int, *, batch_size: int = 1000, end: float = 0.001) -> dict[str, Any]:
    """A rate that goes down in a line; orders of several states have a few more steps, at the last rate."""
    steps = -(-NUM_EDGES[graph] // batch_size) * epochs
    return {"name": "LinearLR", "options": {"start_factor": 1.0, "end_factor": end, "total_iters": steps}}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One training: all of it is in memory, in some order of the edges."""

    graph: Path
    order: str = "memory"
    seed: int = 0
    model: dict[str, Any]
    epochs: int
    split: str = "test"
    negatives: dict[str, Any] = field(default_factory=dict)
    train: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, Any] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        """As a run file has it."""
        train = {"epochs": self.epochs, "seed": self.seed, "num_threads": 1}
        schedule = falling(self.graph.name, self.epochs, batch_size=self.train.get("batch_size", 1000))
        return {
            "graph": self.graph.name, "run": "nowhere", "model": self.model, "order": ORDERS[self.order],
            "tables": {"store": "memory", **self.tables}, "negatives": self.negatives,
            "cache": {"unit": "rows", "share": 1.0}, "train": {**train, "schedule": schedule, **self.train},
        }  # fmt: skip


def trained(cell: Cell) -> dict[str, float]:
    """What a cell came to: `mrr`, times that an epoch reads the table, seconds; from --keep if it is there."""
    content = cell.content()
    key = hashlib.sha256(json.dumps([content, cell.split], sort_keys=True).encode()).hexdigest()[:16]
    known = None if KEPT is None else KEPT / f"{key}.json"
    if known is not None and known.exists():
        kept: dict[str, float] = json.loads(known.read_text())
        return kept
    found = _trained({**content, "graph": str(cell.graph)}, cell.split)
    what = cell.model.get("encoder", cell.model["decoder"])
    print(f"{cell.graph.name} {what} {cell.order} seed {cell.seed}: {found}", flush=True)
    if known is not None:
        known.write_text(json.dumps({**found, "content": content, "split": cell.split}))
    return found


def all_trained(cells: list[Cell]) -> list[dict[str, float]]:
    """Two at a time, one thread each."""
    with ProcessPoolExecutor(max_workers=2, initializer=_keep, initargs=(KEPT,)) as pool:
        return list(pool.map(trained, cells))


def _keep(folder: Path | None) -> None:
    global KEPT
    KEPT = folder


def _trained(content: dict[str, Any], split: str) -> dict[str, float]:
    config = make(GraphConfig, content, where="this benchmark")
    begun, used = time.perf_counter(), time.process_time()
    folder = build.open_graph(config)
    chosen = build.choose_order(config, folder)
    stream, dense = build.train_stream(config, folder, chosen), build.build_model(config, folder)
    half = DenseHalf.of(config, dense, stream.num_steps)
    header = build.plan_header(config, folder, stream, chosen)
    with torch_settings(1), build.new_tables(config, folder, Path("nowhere")) as tables:
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


def table_of_orders(graph: Path, seeds: range, epochs: int, *, full: bool) -> dict[str, Any]:
    """DistMult under every order that the issue compares."""
    names = ("memory", "ours", "comet", *(["ring"] if full else []))
    cells = [
        Cell(graph=graph, order=name, seed=seed, model=DISTMULT, epochs=epochs) for name in names for seed in seeds
    ]
    rows = all_trained(cells)
    found = {name: rows[at * len(seeds) : (at + 1) * len(seeds)] for at, name in enumerate(names)}
    mrr, reads = (
        {name: float(np.mean([it[what] for it in found[name]])) for name in names} for what in ("mrr", "reads")
    )
    ours = ORDERS["ours"]
    figures: dict[str, Any] = {
        "memory_mrr": round(mrr["memory"], 4),
        "ours_mrr_minus_comet": round(mrr["ours"] - mrr["comet"], 4),
        "ours_mrr_minus_memory": round(mrr["ours"] - mrr["memory"], 4),
        "ours_reads": round(reads["ours"], 2),
        "ours_reads_over_comet": round(reads["ours"] / reads["comet"], 3),
        "ours_memory": round(ours["buffer"] / ours["partitions"], 2),
        "mrr": {name: [round(it["mrr"], 4) for it in found[name]] for name in names},
    }  # fmt: skip
    if full:
        figures["ring_mrr_minus_comet"] = round(mrr["ring"] - mrr["comet"], 4)
        figures["ring_reads_over_comet"] = round(reads["ring"] / reads["comet"], 3)
    return figures


def talk_table(graph: Path) -> dict[str, dict[str, float]]:
    """Networks in memory and out of core, as the talk has them: 5 epochs, valid MRR."""
    names = ("memory", "comet", "beta", "ours_network")
    cells = [
        Cell(graph=graph, order=name, model=model, epochs=5, split="valid", train={"optimizer": {"lr": RATES[encoder]}})
        for encoder, model in ENCODERS.items() for name in names
    ]  # fmt: skip
    found = iter(all_trained(cells))
    return {
        encoder: {name.removesuffix("_network"): round(next(found)["mrr"], 4) for name in names} for encoder in ENCODERS
    }


def talk_bytes(graph: Path, folder: Path) -> dict[str, int]:
    """Bytes that differ between the networks trained in memory and from disk, edges in random order.

    Batches are small, so that a cache of seven tenths of the rows has room for the neighbourhoods of one.
    """
    differing = {}
    for encoder, model in ENCODERS.items():
        content = {
            "graph": str(graph), "run": "nowhere", "model": {**model, "fanouts": [5], "neighbours": "graph"},
            "negatives": {"num_chunks": 1, "num_nodes": 100}, "cache": {"unit": "rows", "share": 0.7},
            "train": {"epochs": 1, "batch_size": 250, "num_threads": 1, "optimizer": {"lr": RATES[encoder]}},
        }  # fmt: skip
        config = make(GraphConfig, content, where="this benchmark")
        verdict = verify_graph(config, folder / encoder, num_steps=200)
        if not verdict.counters.num_evicted:
            sys.exit(f"{encoder}: no row left the cache, so this compares nothing; make the cache smaller")
        differing[encoder] = verdict.num_differing
    return differing


def best_settings(folder: Path) -> dict[str, dict[str, float]]:
    """The highest test MRR that we know how to reach, and the time it took."""
    cells = []
    for name, best in BEST.items():
        steps = falling(name, best["epochs"], end=0.01) if best["falls"] else {}
        rows: dict[str, Any] = {"name": "adagrad", "lr": 0.1}
        if steps:
            rows["schedule"] = {"shape": "cosine", "steps": steps["options"]["total_iters"]}
        cells.append(Cell(
            graph=prepared(name, folder), model=best["model"], epochs=best["epochs"],
            negatives={"num_chunks": 1, "num_nodes": 2000}, tables={"optimizer": rows, **best.get("tables", {})},
            train={"schedule": steps, "optimizer": {"name": "Adagrad", "lr": 0.1}, **best.get("train", {})},
        ))  # fmt: skip
    found = all_trained(cells)
    shown = ("mrr", "hits@10", "seconds", "processor_seconds")
    return {
        f"best_{name}": {key: round(it[key], 4) for key in shown} for name, it in zip(BEST, found, strict=True)
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
    epochs, seeds = given.epochs or (10 if given.full else 5), given.seeds or (3 if given.full else 2)
    with tempfile.TemporaryDirectory(prefix="graph-quality-") as place:
        result: dict[str, Any] = {"epochs": epochs, "seeds": seeds}
        graph = prepared("FB15k-237", Path(place))
        if given.only in (None, "orders"):
            result |= table_of_orders(graph, range(seeds), epochs, full=given.full)
        if given.full and given.only in (None, "networks"):
            result["talk"] = talk_table(graph)
            result["talk_differing_bytes"] = talk_bytes(graph, Path(place))
        if given.full and given.only in (None, "best"):
            result |= best_settings(Path(place))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
