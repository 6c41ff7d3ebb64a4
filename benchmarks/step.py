"""What a training step costs with tables outside the cache, against the ideal where all rows lie in one tensor in RAM.

DLRM (bottom 512-256-64, top 512-256-1), batch 2048, 26 features of Criteo's table sizes (a tenth of them by default),
dim 64, row-wise Adagrad, cache of 10 % of the rows the log touches. The ideal gathers from and updates one tensor that
holds every row, knows the distinct rows of each batch beforehand, and has no store, no planner and no other thread.
Both sides read the same batches from memory and run the same model and kernels. Sides are timed in turn, several times,
every turn on the next few steps of the log and from an empty cache: the worst part for a cache. Warm-up steps are not
counted.

    memory_over_ideal             rows in a memory store
    disk_warm_over_ideal          rows on disk, table files in the page cache
    disk_cold_over_ideal          rows on disk, and the system forgets the table files after every step, as it has to
                                  when they are far larger than memory: every fetch reads the disk
    nocache_disk_cold_over_ours   the same without a cache: every distinct row fetched and written in every step
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foresee.data import Batch, criteo_table_sizes, synthetic_rows
from foresee.engine.cache import pool
from foresee.engine.header import make_header
from foresee.engine.kernels import LookupOrder, Threads, order_lookups, update_rows
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables, layout_for
from foresee.models import DLRM, LogShape
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskStore
from foresee.store.layout import Table
from foresee.store.memory import MemoryStore
from foresee.testing.traces import MemoryStream

BATCH_SIZE = 2048
DIM = 64
NUM_DENSE = 13
OPTIMIZER = RowwiseAdagrad(lr=0.05)
THREADS = 2
COLD_FROM_STEP = 30
"""Cold tables are timed once the cache is full: before that, all that is fetched is fetched for the first time."""


@dataclass
class Bench:
    """The log that all sides train on."""

    batches: list[Batch]
    touched: NDArray[np.int64]
    """All rows of the log."""
    table_sizes: tuple[int, ...]
    warmup_steps: int
    timed_steps: int

    @property
    def cache_rows(self) -> int:
        return len(self.touched) // 10

    @property
    def tables(self) -> list[Table]:
        return [Table(f"C{i + 1}", size) for i, size in enumerate(self.table_sizes)]

    @property
    def num_rows(self) -> int:
        return sum(self.table_sizes)

    @property
    def pooling(self) -> Pooling:
        return Pooling.of([False] * len(self.table_sizes))


def make_bench(arguments: argparse.Namespace) -> Bench:
    sizes = criteo_table_sizes(arguments.table_scale)
    rng = np.random.default_rng(0)
    rows = list(synthetic_rows(batch_size=BATCH_SIZE, num_batches=arguments.log_steps, table_sizes=sizes))
    batches = [
        Batch(
            step=step,
            dense=rng.standard_normal((BATCH_SIZE, NUM_DENSE), np.float32),
            labels=(rng.random(BATCH_SIZE) < 0.3).astype(np.float32),
            rows=ids.reshape(-1),
            bag_offsets=None,
            num_features=len(sizes),
        )
        for step, ids in enumerate(rows)
    ]
    touched = np.unique(np.concatenate([batch.rows for batch in batches]))
    return Bench(batches, touched, sizes, arguments.warmup_steps, arguments.timed_steps)


class Trainee:
    """The dense side, the same for all."""

    def __init__(self, bench: Bench) -> None:
        torch.manual_seed(0)
        self.model = DLRM(LogShape(num_dense=NUM_DENSE, num_features=len(bench.table_sizes)), DIM)
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()

    def step(self, dense: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        self.loss(self.model(dense, embeddings), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def time_steps(steps: Iterator[float], bench: Bench, warmup_steps: int | None = None) -> float:
    """Seconds a step, the warm-up left out. A step gives the seconds that are not to count."""
    for _ in range(bench.warmup_steps if warmup_steps is None else warmup_steps):
        next(steps)
    begun = time.perf_counter()
    apart = sum(next(steps) for _ in range(bench.timed_steps))
    return (time.perf_counter() - begun - apart) / bench.timed_steps


class Known(NamedTuple):
    """What the ideal knows of a batch before the clock starts."""

    batch: Batch
    unique: NDArray[np.int32]
    inverse: NDArray[np.int32]
    order: LookupOrder


class Ideal:
    """All rows in one tensor; distinct rows and lookup orders are known before the clock starts."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.rows = Rows(
            (torch.rand(bench.num_rows, DIM) * 0.1 - 0.05).numpy(),
            torch.zeros(bench.num_rows, OPTIMIZER.state_width(DIM)).numpy(),
            np.zeros(bench.num_rows, np.int32),
        )
        self.known = [self._know(batch) for batch in bench.batches]
        self.next_step = 0

    def _know(self, batch: Batch) -> Known:
        unique, positions = np.unique(batch.rows, return_inverse=True)
        inverse = positions.astype(np.int32)
        return Known(batch, unique.astype(np.int32), inverse, order_lookups(inverse, len(unique)))

    def seconds(self) -> float:
        trainee = Trainee(self.bench)
        out = torch.empty(BATCH_SIZE * len(self.bench.table_sizes), DIM)
        with Threads(THREADS) as threads:

            def steps() -> Iterator[float]:
                for batch, unique, inverse, order in self.known[self.next_step :]:
                    pool(self.rows.values, unique, inverse, self.bench.pooling.vectors(batch), out.numpy(), threads)
                    embeddings = out.view(BATCH_SIZE, -1, DIM).detach().requires_grad_()
                    trainee.step(torch.from_numpy(batch.dense), embeddings, torch.from_numpy(batch.labels))
                    assert embeddings.grad is not None
                    gradients = embeddings.grad.view(-1, DIM).numpy()
                    update_rows(OPTIMIZER, self.rows, unique, gradients, order, version=batch.step + 1, threads=threads)
                    yield 0.0

            seconds = time_steps(steps(), self.bench)
        self.next_step += self.bench.warmup_steps + self.bench.timed_steps
        return seconds


def planned_seconds(
    bench: Bench,
    tables: Tables,
    planner: str = "lookahead",
    *,
    stream: MemoryStream,
    forget_pages: Callable[[], None] | None = None,
) -> float:
    """Seconds a step through Foresee, from the store's last step and an empty cache; cold, once the cache is full."""
    trainee = Trainee(bench)
    header = make_header(stream, planner=planner, cache_rows=bench.cache_rows, first_step=tables.store.committed_step)
    run = Run(stream, tables, header, bench.pooling, num_threads=THREADS)

    def steps() -> Generator[float, None, None]:
        for step in run:
            trainee.step(step.dense, step.embeddings, step.labels)
            step.update()
            begun = time.perf_counter()
            if forget_pages is not None and step.index >= COLD_FROM_STEP:
                forget_pages()
            yield time.perf_counter() - begun

    running = steps()
    seconds = time_steps(running, bench, COLD_FROM_STEP + 2 if forget_pages else None)
    running.close()
    return seconds


def written(store: Store, bench: Bench) -> Store:
    """The store with every row of the log written once: no row is still to be made, no memory still to be found."""
    rows = Rows.empty(len(bench.touched), store.layout)
    store.read(bench.touched, rows)
    store.write(bench.touched, rows)
    store.commit(0)
    return store


def cold_seconds(bench: Bench, folder: Path, stream: MemoryStream, planner: str) -> float:
    """Seconds a step with a copy of a table folder whose pages are forgotten again and again."""
    work = folder.with_name(planner)
    shutil.copytree(folder, work)
    for file in work.iterdir():
        settle(file)
    store = DiskStore.open(work)
    tables = Tables(store, OPTIMIZER)
    try:
        return planned_seconds(bench, tables, planner, stream=stream, forget_pages=store.forget_pages)
    finally:
        tables.close()
        shutil.rmtree(work)


def settle(file: Path) -> None:
    """Everything on disk, and out of the page cache."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more turns of more steps")
    parser.add_argument("--table-scale", type=float, default=0.03)
    parser.add_argument("--log-steps", type=int, default=80)
    parser.add_argument("--warmup-steps", type=int, default=3)
    parser.add_argument("--timed-steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cold-turns", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.full:
        arguments.turns, arguments.cold_turns, arguments.timed_steps, arguments.log_steps = 12, 4, 20, 420
    torch.set_num_threads(THREADS)
    bench = make_bench(arguments)
    stream = MemoryStream(bench.batches, num_rows=bench.num_rows)
    ideal = Ideal(bench)
    layout = layout_for(bench, DIM, OPTIMIZER, 0, 0.05)
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        never_trained = Path(folder) / "tables"
        written(DiskStore.create(never_trained, layout), bench).close()
        shutil.copytree(never_trained, Path(folder) / "warm")
        memory = Tables(written(MemoryStore(layout), bench), OPTIMIZER)
        disk = Tables(DiskStore.open(Path(folder) / "warm"), OPTIMIZER)
        sides: dict[str, Callable[[], float]] = {
            "ideal": ideal.seconds,
            "memory": lambda: planned_seconds(bench, memory, stream=stream),
            "disk_warm": lambda: planned_seconds(bench, disk, stream=stream),
        }
        cold: dict[str, Callable[[], float]] = {
            "ideal": ideal.seconds,
            "disk_cold": lambda: cold_seconds(bench, never_trained, stream, "lookahead"),
            "nocache_disk_cold": lambda: cold_seconds(bench, never_trained, stream, "none"),
        }
        for side in sides.values():
            side()  # compiles, reads the files once, and is not counted
        turns = [{name: side() for name, side in sides.items()} for _ in range(arguments.turns)]
        cold_turns = [{name: side() for name, side in cold.items()} for _ in range(arguments.cold_turns)]
        disk.close()
    report(turns, cold_turns, bench)


def report(turns: list[dict[str, float]], cold_turns: list[dict[str, float]], bench: Bench) -> None:
    """A line for each side, and the ratios; medians over turns of sides timed one after another."""
    for name in {**turns[0], **cold_turns[0]}:
        seconds = [turn[name] for turn in (*turns, *cold_turns) if name in turn]
        print(f"{name:>18}: {1e3 * statistics.median(seconds):7.1f} ms a step  ({len(seconds)} turns)")

    def ratio(some: list[dict[str, float]], name: str, other: str) -> float:
        return round(statistics.median(turn[name] / turn[other] for turn in some), 3)

    figures = {
        "memory_over_ideal": ratio(turns, "memory", "ideal"),
        "disk_warm_over_ideal": ratio(turns, "disk_warm", "ideal"),
        "disk_cold_over_ideal": ratio(cold_turns, "disk_cold", "ideal"),
        "nocache_disk_cold_over_ours": ratio(cold_turns, "nocache_disk_cold", "disk_cold"),
        "cache_rows": bench.cache_rows,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
