"""An epoch of link prediction whose table is at least ten times the memory limit, from cold files, against memory.

ComplEx (d = 512, Adagrad: rows of 4 KB) on a synthetic graph, edges in the order of a ring of 32 partitions of which 8
are in the buffer. Whole partitions of a quarter of the table would be more than the limit, so planned rows move: those
that the coming steps touch. All rows that the epoch touches were written before, and the system has forgotten the
files: each fetch reads the disk. Both sides are processes of their own that train the same batches in turns; the one
whose turn it is not is stopped, its background threads included.

    disk        tables on disk, a cache of --cache-rows, and a memory limit (--limit-mb; see larger_than_memory.py)
    memory      tables in memory, a cache that holds every row the epoch touches, and no limit

    disk_over_memory     seconds of a step, the median over turns (the first compiles, and is not counted)
    tables_over_limit    bytes of the table / limit
    differing_rows       rows whose values, state or versions differ at the end, of all that the epoch touches

By default the graph has as many edges as 50 s allow, fewer than nodes; `--full` has 1,000,000. The last line is one
JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from larger_than_memory import FRUGAL, MEGABYTE
from sides.memory_limit import Limit, Warden, memory_limit
from sides.process import Process, serve

DIM, PARTITIONS, BUFFER, THREADS = 512, 32, 8, 1
ROW_BYTES = 8 * DIM + 8
TIMES_LIMIT = 10.1
COMPARED_ROWS = 1 << 12
FIRST_STEP = 1
"""What was written before is the state after a step, which both sides leave out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="1,000,000 edges")
    parser.add_argument("--limit-mb", type=int, default=1200)
    parser.add_argument("--cache-rows", type=int, default=24_000)
    parser.add_argument("--edges", type=int, default=80_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--enforced-by", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        Side(given).serve()
        return
    if given.full:
        given.edges, given.turns = 1_000_000, 20
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        given.folder = Path(folder)
        compare(given)


def compare(given: argparse.Namespace) -> None:
    """Makes graph and tables, lets the sides train in turns, and prints what came of it."""
    limit = given.limit_mb * MEGABYTE
    num_nodes = make_graph(given, math.ceil(TIMES_LIMIT * limit / ROW_BYTES))
    with memory_limit(limit) as limited, side(given, "disk", limited) as disk:
        with side(given, "memory", None) as memory:
            turns = []
            for _ in range(given.turns + 1):
                turns.append({"disk": disk.ask("train"), "memory": memory.ask("train")})
            ends = {"disk": disk.ask("end"), "memory": memory.ask("end")}
            differing = differing_rows(given.folder)
        # A control group counts what is this side's; the warden counts pages that others brought, too.
        peak = limited.peak_bytes() or ends["disk"]["peak_bytes"]
    for name, end in ends.items():
        milliseconds = 1e3 * statistics.median(turn[name]["seconds"] for turn in turns[1:])
        print(f"{name:>7}: {milliseconds:6.1f} ms a step, {end['ending_seconds']:.1f} s to write back at the end")
    if peak > limit:
        sys.exit(f"the limit did not hold: the peak was {peak:,} bytes, the limit is {limit:,}")
    figures = {
        "disk_over_memory": round(
            statistics.median(turn["disk"]["seconds"] / turn["memory"]["seconds"] for turn in turns[1:]), 3
        ),
        "tables_over_limit": round(num_nodes * ROW_BYTES / limit, 2),
        "differing_rows": differing,
        "limit_bytes": limit,
        "peak_bytes": peak,
        "tables_bytes": num_nodes * ROW_BYTES,
        "fetched_bytes": ends["disk"]["rows_fetched"] * ROW_BYTES,
        "limit_by": limited.name,
    }  # fmt: skip
    print(json.dumps(figures))


def side(given: argparse.Namespace, name: str, limit: Limit | None) -> Process:
    """The process of one side."""
    command = [sys.executable, __file__, "--folder", str(given.folder)]
    for option in ("limit_mb", "cache_rows", "turns"):
        command += [f"--{option.replace('_', '-')}", str(getattr(given, option))]
    command += ["--enforced-by", limit.name if limit else "nobody", "--side", name]
    threads = {"OMP_NUM_THREADS": str(THREADS), "MKL_NUM_THREADS": str(THREADS), "NUMBA_NUM_THREADS": str(THREADS)}
    return Process(command, environment={**FRUGAL, **threads}, before=limit.enter if limit else None)


def make_graph(given: argparse.Namespace, num_nodes: int) -> int:
    """Writes the graph and the rows that its epoch touches, and lets the system forget the files."""
    from foresee.graph import build
    from foresee.graph.options import GraphOptions
    from foresee.graph.prepare import prepare_graph
    from foresee.graph.synthetic import Synthetic
    from foresee.store.contract import Rows

    begun = time.perf_counter()
    source = Synthetic(num_nodes=num_nodes, num_edges=given.edges, num_relations=16, labels=True)
    options = GraphOptions(split="edges", valid_share=0.0, test_share=0.0, partitions=PARTITIONS)
    prepare_graph(source, given.folder / "graph", options)
    config = config_of(given, "disk")
    graph = build.open_graph(config)
    made = time.perf_counter()
    stream = build.train_stream(config, graph, build.choose_order(config, graph))
    touched = np.unique(np.concatenate([np.unique(batch.rows) for batch in stream.batches()]))
    np.save(given.folder / "touched.npy", touched)
    with build.new_tables(config, graph, given.folder / "tables") as tables:
        store: Any = tables.store
        for begin in range(0, len(touched), COMPARED_ROWS):
            ids = touched[begin : begin + COMPARED_ROWS]
            rows = Rows.empty(len(ids), tables.layout)
            store.read(ids, rows)
            store.write(ids, rows)
        store.commit(FIRST_STEP)
    forget(given.folder / "tables")
    written = time.perf_counter() - made
    print(f"graph made in {made - begun:.0f} s, {len(touched):,} rows of {num_nodes:,} written in {written:.0f} s")
    return int(graph.num_nodes)


def forget(folder: Path) -> None:
    """The system forgets these files; what closing a table has written is on the disk before."""
    for file in filter(Path.is_file, folder.rglob("*")):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def config_of(given: argparse.Namespace, name: str) -> Any:
    from foresee.graph.config import GraphConfig
    from foresee.run.config_file import make

    cache_rows = given.cache_rows if name == "disk" else len(np.load(given.folder / "touched.npy", mmap_mode="r"))
    content = {
        "graph": str(given.folder / "graph"), "run": "nowhere", "tables": {"store": name},
        "model": {"decoder": "complex", "dim": DIM},
        "negatives": {"num_chunks": 1, "num_nodes": 1000, "degree_share": 0.5},
        "order": {"name": "ring", "partitions": PARTITIONS, "buffer": BUFFER},
        "cache": {"unit": "rows", "rows": cache_rows, "window_steps": 8},
        "train": {"epochs": 1, "batch_size": 5000, "num_threads": THREADS},
    }  # fmt: skip
    return make(GraphConfig, content, where="this benchmark")


class Side:
    """One side's process: trains its part of the epoch when asked, and says how long a step took."""

    def __init__(self, given: argparse.Namespace) -> None:
        import torch

        from foresee.engine.planned_step import Pooling
        from foresee.engine.run import Run
        from foresee.graph import build
        from foresee.run.dense_state import DenseHalf

        torch.set_num_threads(THREADS)
        self.name, self.folder = given.side, given.folder
        config = config_of(given, self.name)
        graph = build.open_graph(config)
        chosen = build.choose_order(config, graph)
        self.stream, self.model = build.train_stream(config, graph, chosen), build.build_model(config, graph)
        self.optimizer = DenseHalf.of(config, self.model, self.stream.num_steps).optimizer
        header = build.plan_header(config, graph, self.stream, chosen, first_step=FIRST_STEP)
        self.opened = ExitStack()
        self.tables = self.opened.enter_context(build.new_tables(config, graph, given.folder / "tables"))
        if self.name == "memory":
            self.tables.store.commit(FIRST_STEP)
        self.run = Run(self.stream, self.tables, header, Pooling.of([False]), num_threads=THREADS)
        self.steps = iter(self.run)
        self.ends = [self.stream.num_steps * turn // (given.turns + 1) for turn in range(1, given.turns + 2)]
        disk = self.name == "disk"
        limit = given.limit_mb * MEGABYTE if disk and given.enforced_by == "rlimit" else None
        files = sorted(it for it in (given.folder / "tables").rglob("*") if it.is_file()) if disk else []
        self.warden = Warden(files, self.tables.store, limit)

    def serve(self) -> None:
        with self.warden:
            serve({"train": self.train, "end": self.end}, last="end")
            os._exit(0)  # the tables are thrown away: nobody waits until they are closed

    def train(self) -> dict[str, float]:
        begun, first, end = time.perf_counter(), self.run.steps_done, self.ends.pop(0)
        while self.run.steps_done < end:
            step = next(self.steps)
            self.model(step.item, step.embeddings).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            step.update()
        return {"seconds": (time.perf_counter() - begun) / (end - first)}

    def end(self) -> dict[str, Any]:
        begun, fetched = time.perf_counter(), self.run.counters.num_fetched
        self.steps.close()
        ending = time.perf_counter() - begun
        np.save(self.folder / f"{self.name}.npy", self.hashes())
        self.warden.look()
        return {"ending_seconds": ending, "peak_bytes": self.warden.peak_bytes, "rows_fetched": fetched}

    def hashes(self) -> Any:
        """[touched rows]: of each one's values, state and version."""
        from foresee.store.contract import Rows

        touched, found = np.load(self.folder / "touched.npy"), []
        for begin in range(0, len(touched), COMPARED_ROWS):
            ids = touched[begin : begin + COMPARED_ROWS]
            rows = Rows.empty(len(ids), self.tables.layout)
            self.tables.store.read(ids, rows)
            words = np.concatenate([rows.values.view(np.uint32), rows.state.view(np.uint32)], 1).astype(np.uint64)
            factors = np.arange(1, 2 * words.shape[1], 2, dtype=np.uint64)
            found.append((words * factors).sum(1) + rows.versions.astype(np.uint64))
        return np.concatenate(found)


def differing_rows(folder: Path) -> int:
    disk, memory = (np.load(folder / f"{name}.npy") for name in ("disk", "memory"))
    return int((disk != memory).sum())


if __name__ == "__main__":
    main()
