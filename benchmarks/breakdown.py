"""Where the time of a training step goes: without a cache, with ours, and with all rows in one tensor in RAM.

The DLRM, log and tables of `benchmarks/step.py`, rows on disk, all of them written before, and the system forgets the
table files after every step, as it has to when they are far larger than memory: every row that is fetched is read from
the disk. Sides are timed in turn, several times; parts of a step are means over the timed steps, then medians over
turns. Planning goes on beside training and counts. On all sides threads of torch sleep while they wait
(OMP_WAIT_POLICY=PASSIVE), as `foresee train` makes them on few cores.

    rows       until the step's embeddings are there: waiting for fetches, filling slots, gathering
    forward    the model and the loss
    backward   the gradients, and the step of the dense optimiser
    update     the rows' optimiser, and handing over what is written back

    none          every distinct row fetched for every step and written back after it, out of and into mapped files:
                  what training without a plan does, and what there was before rows were read past the page cache
    none_direct   the same by the direct reader of `ours`, which still prefetches what its plan says: what is left of
                  the gain is the cache's
    ours          planner lookahead, a cache of 10 % of the rows that the log touches, rows read directly
    ideal         no store, no plan, no other thread: everything known beforehand

Printed last, as JSON: seconds of every part of every side, `none_over_ours`, `none_direct_over_ours` and
`ours_over_ideal` (whole steps), and `rows_share_*`, the part of a step spent on rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from foresee.engine.cache import pool
from foresee.engine.header import make_header
from foresee.engine.kernels import Threads, update_rows
from foresee.engine.run import Run
from foresee.engine.tables import Tables, layout_for
from foresee.store.disk import DiskStore
from foresee.store.disk.base import ROWS_FILE, WRITTEN_FILE
from foresee.store.disk.checksums import CHECKSUMS_FILE
from foresee.testing.traces import MemoryStream
from step import (
    BATCH_SIZE,
    COLD_FROM_STEP,
    DIM,
    OPTIMIZER,
    THREADS,
    Bench,
    Ideal,
    Trainee,
    make_bench,
    settle,
)

SIDES = ("none", "none_direct", "ours", "ideal")
NO_CACHE_FROM_STEP = 2
"""Without a cache there is nothing to fill before the files are forgotten."""
PARTS = ("rows", "forward", "backward", "update")
Parts = dict[str, float]
"""Seconds of each part of a step."""


class Laps:
    """Sums of what one step after another took."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def begin(self) -> None:
        self._last = time.perf_counter()

    def span(self, what: str) -> None:
        now = time.perf_counter()
        self._seconds[what] += now - self._last
        self._last = now

    def forget(self) -> None:
        self._seconds.clear()

    def means(self, num_steps: int) -> Parts:
        return {part: self._seconds[part] / num_steps for part in PARTS}


def learn(trainee: Trainee, laps: Laps, dense: Tensor, embeddings: Tensor, labels: Tensor) -> None:
    """Forward and backward, each with its lap."""
    loss = trainee.loss(trainee.model(dense, embeddings), labels)
    laps.span("forward")
    loss.backward()
    trainee.optimizer.step()
    trainee.optimizer.zero_grad()
    laps.span("backward")


def cold_parts(
    bench: Bench, folder: Path, stream: MemoryStream, planner: str, *, cache_rows: int | None = None,
    window_steps: int | None = None, way: str = "io_uring",
) -> tuple[Parts, float]:  # fmt: skip
    """Parts of a step with a copy of a table folder that the system forgets again and again, and the hit rate.

    way: how the folder is read and written, see `foresee.io.direct`.
    """
    work = folder.with_name("work")
    os.environ["FORESEE_DISK"] = way
    shutil.copytree(folder, work, copy_function=_link_base)
    for file in work.iterdir():
        settle(file)
    store = DiskStore.open(work)
    store.fold_at_end = "never"
    tables = Tables(store, OPTIMIZER)
    header = make_header(
        stream, planner=planner, cache_rows=cache_rows or bench.cache_rows, first_step=store.committed_step,
        window_steps=window_steps,
    )  # fmt: skip
    run = Run(stream, tables, header, bench.pooling, num_threads=THREADS)
    try:
        cold_from = NO_CACHE_FROM_STEP if planner == "none" else COLD_FROM_STEP
        return _timed(run, bench, store, cold_from), run.counters.hit_rate
    finally:
        tables.close()
        shutil.rmtree(work)


def _link_base(source: str, target: str) -> None:
    """The base changes in a fold alone, and nobody folds here: its files need not be copied."""
    linked = Path(source).name in (ROWS_FILE, CHECKSUMS_FILE, WRITTEN_FILE)
    (os.link if linked else shutil.copy2)(source, target)


def _timed(run: Run, bench: Bench, store: DiskStore, cold_from: int) -> Parts:
    """Timed once the cache is full and the files have been forgotten for two steps."""
    trainee, laps, last = Trainee(bench), Laps(), cold_from + 2 + bench.timed_steps
    steps = iter(run)
    laps.begin()
    for number in range(last):
        step = next(steps)
        laps.span("rows")
        learn(trainee, laps, step.dense, step.embeddings, step.labels)
        step.update()
        laps.span("update")
        if number >= cold_from:
            store.forget_pages()
        if number == cold_from + 1:
            laps.forget()
        laps.begin()
    parts = laps.means(bench.timed_steps)
    steps.close()
    return parts


def ideal_parts(ideal: Ideal) -> Parts:
    """Parts of a step with every row in one tensor, on the next steps of the log."""
    bench, trainee, laps = ideal.bench, Trainee(ideal.bench), Laps()
    out = torch.empty(BATCH_SIZE * len(bench.table_sizes), DIM)
    with Threads(THREADS) as threads:
        for number, (batch, unique, inverse, order) in enumerate(_next_known(ideal)):
            if number == bench.warmup_steps:
                laps.forget()
            laps.begin()
            pool(ideal.rows.values, unique, inverse, bench.pooling.vectors(batch), out.numpy(), threads)
            embeddings = out.view(BATCH_SIZE, -1, DIM).detach().requires_grad_()
            laps.span("rows")
            learn(trainee, laps, torch.from_numpy(batch.dense), embeddings, torch.from_numpy(batch.labels))
            assert embeddings.grad is not None
            gradients = embeddings.grad.view(-1, DIM).numpy()
            update_rows(OPTIMIZER, ideal.rows, unique, gradients, order, version=batch.step + 1, threads=threads)
            laps.span("update")
    return laps.means(bench.timed_steps)


def _next_known(ideal: Ideal) -> Iterator[tuple]:  # type: ignore[type-arg]
    num_steps = ideal.bench.warmup_steps + ideal.bench.timed_steps
    if ideal.next_step + num_steps > len(ideal.known):
        ideal.next_step = 0
    yield from ideal.known[ideal.next_step : ideal.next_step + num_steps]
    ideal.next_step += num_steps


def median_parts(turns: list[Parts]) -> Parts:
    return {part: statistics.median(turn[part] for turn in turns) for part in PARTS}


def bench_arguments(*, full: bool) -> argparse.Namespace:
    return argparse.Namespace(
        table_scale=0.03, log_steps=60, warmup_steps=3, timed_steps=12 if full else 8, turns=8 if full else 4
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more turns of more steps")
    arguments = bench_arguments(full=parser.parse_args().full)
    if "OMP_WAIT_POLICY" not in os.environ:  # OpenMP looks at it when it is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    torch.set_num_threads(THREADS)
    bench = make_bench(arguments)
    stream, ideal = MemoryStream(bench.batches, num_rows=bench.num_rows), Ideal(bench)
    turns: list[dict[str, Parts]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        tables = Path(folder) / "tables"
        store = DiskStore.create(tables, layout_for(bench, DIM, OPTIMIZER, 0, 0.05))
        store.initialise_all()
        store.close()
        ideal_parts(ideal)  # compiles, and is not counted
        hit_rate = 0.0
        for _ in range(arguments.turns):
            turn = {"ideal": ideal_parts(ideal)}
            turn["ours"], hit_rate = cold_parts(bench, tables, stream, "lookahead")
            turn["none_direct"], _ = cold_parts(bench, tables, stream, "none")
            turn["none"], _ = cold_parts(bench, tables, stream, "none", way="mapped")
            turns.append(turn)
    report(turns, bench, hit_rate)


def report(turns: list[dict[str, Parts]], bench: Bench, hit_rate: float) -> None:
    sides = {side: median_parts([turn[side] for turn in turns]) for side in SIDES}
    for side, parts in sides.items():
        print(f"{side:>11}: " + "  ".join(f"{part} {1e3 * seconds:7.1f} ms" for part, seconds in parts.items()))

    def ratio(one: str, other: str) -> float:
        return round(statistics.median(sum(turn[one].values()) / sum(turn[other].values()) for turn in turns), 3)

    figures: dict[str, object] = {
        side: {part: round(seconds, 6) for part, seconds in parts.items()} for side, parts in sides.items()
    }
    figures |= {"none_over_ours": ratio("none", "ours"), "none_direct_over_ours": ratio("none_direct", "ours")}
    figures |= {"ours_over_ideal": ratio("ours", "ideal")}
    figures |= {f"rows_share_{side}": round(parts["rows"] / sum(parts.values()), 4) for side, parts in sides.items()}
    figures |= {"hit_rate": round(hit_rate, 4), "cache_rows": bench.cache_rows, "batch_size": BATCH_SIZE}
    print(json.dumps(figures | {"turns": len(turns), "samples_per_second_ideal": _speed(sides["ideal"])}))


def _speed(parts: Parts) -> float:
    return round(BATCH_SIZE / sum(parts.values()), 1)


if __name__ == "__main__":
    main()
