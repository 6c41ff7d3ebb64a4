"""What planning costs: time against numpy.unique of the same batch, and memory against the size of the tables.

Batches of 16,384 samples with 26 ids each from Criteo's 33.8M rows, Zipf 1.1, columns correlated as in real logs, one
thread. The planner makes complete records with a window of 78 steps (33.5M lookups) and is timed once
window and cache are full, steps that rehash its table included. Two planners, with caches of 200,000 and 500,000 rows,
and `numpy.unique(ids, return_inverse=True)` take turns batch by batch, in another order for every batch.
`plan_over_unique` is the median over batches of the ratio, for the worse of the two caches;
`plan_over_unique_means` is the ratio of the mean times.

Memory: two processes plan the same batches, one with Criteo's tables, one with the ids stretched over tables of 10^9
rows. What a process holds before the planner is made, with everything imported, compiled and used once, is taken off
its peak (ru_maxrss). Batches are drawn one at a time and records are dropped, so the rest is the planner's.
`rss_large_over_small` is the ratio. With `--full` a third process draws Zipf ids from 10^9 rows instead: such batches
have more distinct rows, and memory follows those (`rss_wider_trace_over_small` beside `distinct_wider_over_small`).

With `--workers 8` it plans the same batches for eight workers with placement, each with a cache of 100,000 rows.
`examples_per_second` is samples over the processor time that the planning thread takes for the median batch, so per
core whatever else runs; `examples_per_second_wall` is the same by the clock; `placement_share` is placement's part of
it. Beside it: what placement costs and saves if it looks only at the features where routing saves most.

Run: `.venv/bin/python benchmarks/planning.py` (`--full` for more batches). The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray

from foresee.data import criteo_table_sizes, synthetic_rows
from foresee.plan.count import Counting, rows_moved
from foresee.plan.lookahead import Lookahead
from foresee.plan.ownership import Ownership
from foresee.plan.placement import LocationAware, Placement, Scene, affordable, contiguous, rank_positions
from foresee.plan.record import Accesses, Header

BATCH_SIZE, NUM_TABLES = 16_384, 26
CRITEO_ROWS = sum(criteo_table_sizes(1.0))
LARGE_ROWS = 10**9
STRETCH = LARGE_ROWS // CRITEO_ROWS
CACHE_ROWS = (200_000, 500_000)
MEMORY_CACHE_ROWS = 1_000_000
WORKER_CACHE_ROWS = 100_000
WINDOW_STEPS = 78
WARM_UP_STEPS = WINDOW_STEPS + 27
"""The planners' caches are full by then."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="ten times as many batches")
    parser.add_argument("--workers", type=int, default=1, help="plan for so many workers, with placement")
    parser.add_argument("--peak", choices=("small", "large", "wider"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(json.dumps(planner_memory(options.peak, WINDOW_STEPS * (4 if options.full else 1) + 12)))
        return
    if options.workers > 1:
        print(json.dumps(many_workers(options.workers, num_timed=150 if options.full else 30)))
        return
    figures = memory_ratios(full=options.full)
    figures |= time_ratios(num_timed=300 if options.full else 25)
    print(json.dumps(figures))


def batches(tables: str, num_batches: int, first: int = 0) -> Iterator[NDArray[np.int64]]:
    """Row ids of batch after batch, [lookups]."""
    scale = LARGE_ROWS / CRITEO_ROWS if tables == "wider" else 1.0
    for rows in synthetic_rows(batch_size=BATCH_SIZE, num_batches=num_batches, table_scale=scale, first_batch=first):
        yield rows.reshape(-1) * (STRETCH if tables == "large" else 1)


def accesses_of(rows: NDArray[np.int64]) -> Accesses:
    return Accesses(rows, np.arange(0, len(rows) + 1, NUM_TABLES, dtype=np.int32))


def new_planner(capacity_rows: int) -> Lookahead:
    header = Header(
        planner="lookahead", num_workers=1, capacity_rows=capacity_rows,
        num_rows=LARGE_ROWS + 26_000, first_step=0, num_steps=1 << 30, fetch_ahead_steps=8, stream_digest="benchmark",
    )  # fmt: skip
    return Lookahead(header, window_steps=WINDOW_STEPS)


class Side:
    """A planner that takes its turn, and what its records moved."""

    def __init__(self, capacity_rows: int) -> None:
        self.planner = new_planner(capacity_rows)
        self.counting = Counting()

    def __call__(self, accesses: Accesses) -> float:
        begun = time.perf_counter()
        records = self.planner.push(accesses)
        seconds = time.perf_counter() - begun
        for record in records:
            self.counting.add(record)
        return seconds


def sort(accesses: Accesses) -> float:
    begun = time.perf_counter()
    np.unique(accesses.rows, return_inverse=True)
    return time.perf_counter() - begun


def time_ratios(num_timed: int) -> dict[str, float]:
    """Plans and sorts the same batches in turns; returns the ratios of the worse cache."""
    planners = [Side(capacity_rows) for capacity_rows in CACHE_ROWS]
    sides: list[Callable[[Accesses], float]] = [*planners, sort]
    seconds = np.zeros((num_timed, len(sides)))
    for step, rows in enumerate(batches("small", WARM_UP_STEPS + num_timed)):
        accesses = accesses_of(rows)
        for turn in range(len(sides)):
            number = (turn + step) % len(sides)
            if step >= WARM_UP_STEPS:
                seconds[step - WARM_UP_STEPS, number] = sides[number](accesses)
            elif sides[number] is not sort:
                sides[number](accesses)
    return show_times(seconds, planners)


def show_times(seconds: NDArray[np.float64], planners: list[Side]) -> dict[str, float]:
    baseline = seconds[:, -1]
    print(f"numpy.unique of {BATCH_SIZE} x {NUM_TABLES} ids: median {1e3 * np.median(baseline):.1f} ms")
    medians, means = [], []
    for side, spent in zip(planners, seconds.T, strict=False):
        medians.append(float(np.median(spent / baseline)))
        means.append(float(spent.mean() / baseline.mean()))
        counters, capacity = side.counting.counters, side.planner.header.capacity_rows
        print(
            f"plan, cache of {capacity:,} rows ({counters.peak_slots / capacity:.0%} full), "
            f"{counters.num_unique / counters.num_steps:,.0f} distinct rows a step, hit rate {counters.hit_rate:.1%}: "
            f"median {1e3 * np.median(spent):.1f} ms, over numpy.unique {medians[-1]:.3f} (means {means[-1]:.3f})"
        )
    return {"plan_over_unique": round(max(medians), 3), "plan_over_unique_means": round(max(means), 3)}


def memory_ratios(*, full: bool) -> dict[str, float]:
    """Peaks of separate processes, which run at the same time."""
    names = ["small", "large", "wider"] if full else ["small", "large"]
    command = [sys.executable, __file__, *(["--full"] if full else []), "--peak"]
    children = [subprocess.Popen([*command, name], stdout=subprocess.PIPE, text=True) for name in names]
    answers = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        sys.exit("a process that measures memory failed; its message is above")
    found = {name: json.loads(answer.splitlines()[-1]) for name, answer in zip(names, answers, strict=True)}
    for name, memory in found.items():
        print(
            f"planner's memory, {name}: {memory['planner_mb']:.0f} MB with ids up to {memory['id_max']:,}, "
            f"{memory['distinct']:,.0f} distinct rows a batch ({memory['before_mb']:.0f} MB before it was made)"
        )
    small, figures = found.pop("small"), {}
    figures["rss_large_over_small"] = round(found["large"]["planner_mb"] / small["planner_mb"], 3)
    if full:
        figures["rss_wider_trace_over_small"] = round(found["wider"]["planner_mb"] / small["planner_mb"], 3)
        figures["distinct_wider_over_small"] = round(found["wider"]["distinct"] / small["distinct"], 3)
    return figures


def planner_memory(tables: str, num_steps: int) -> dict[str, float]:
    """The peak that planning adds to this process, in megabytes."""
    small = new_planner(MEMORY_CACHE_ROWS)
    for rows in batches(tables, 2):
        small.push(accesses_of(rows))
    small.finish()
    del small
    before = resident_mb()
    planner, counting, id_max = new_planner(MEMORY_CACHE_ROWS), Counting(), 0
    for rows in batches(tables, num_steps):
        for record in planner.push(accesses_of(rows)):
            counting.add(record)
        id_max = max(id_max, int(rows.max()))
    counters = counting.counters
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "planner_mb": peak - before, "before_mb": before, "id_max": id_max,
        "distinct": counters.num_unique / counters.num_steps,
    }  # fmt: skip


class TimedPlacement:
    """A placement that counts its processor time and keeps the scenes it saw last."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.seconds = 0.0
        self.scenes: deque[Scene] = deque(maxlen=4)

    def __call__(self, scene: Scene) -> NDArray[np.int32]:
        begun = time.thread_time()
        placed = self.placement(scene)
        self.seconds += time.thread_time() - begun
        self.scenes.append(scene)
        return placed


def worker_planner(num_workers: int, placement: Placement, window_steps: int = WINDOW_STEPS) -> Ownership:
    header = Header(
        planner="lookahead", num_workers=num_workers, capacity_rows=WORKER_CACHE_ROWS,
        num_rows=CRITEO_ROWS, first_step=0, num_steps=1 << 30, fetch_ahead_steps=8, stream_digest="benchmark",
    )  # fmt: skip
    return Ownership(header, placement, window_steps=window_steps)


def many_workers(num_workers: int, num_timed: int) -> dict[str, float]:
    """Processor and wall seconds of planning one batch, and placement's part, once the window is full."""
    placement = TimedPlacement(LocationAware())
    planner = worker_planner(num_workers, placement)
    spent = np.zeros((num_timed, 3))
    warm_up = WINDOW_STEPS + 4
    for step, rows in enumerate(batches("small", warm_up + num_timed)):
        accesses = accesses_of(rows)
        placed, begun, clock = placement.seconds, time.thread_time(), time.perf_counter()
        planner.push(accesses)
        if step >= warm_up:
            spent[step - warm_up] = (
                time.thread_time() - begun, time.perf_counter() - clock, placement.seconds - placed
            )  # fmt: skip
    seconds, wall, placing = np.median(spent, axis=0)
    print(
        f"{num_workers} workers, {BATCH_SIZE} x {NUM_TABLES} ids: {1e3 * seconds:.0f} ms a batch in the median, "
        f"{1e3 * placing:.0f} of them placement; {1e3 * spent[:, 0].mean():.0f} in the mean"
    )
    compare_positions(num_workers, list(placement.scenes))
    return {
        "examples_per_second": round(BATCH_SIZE / seconds),
        "examples_per_second_wall": round(BATCH_SIZE / wall),
        "placement_share": round(float(placing / seconds), 3),
    }


def compare_positions(num_workers: int, scenes: list[Scene]) -> None:
    """What placement costs and saves when it looks at fewer features."""
    ranked = rank_positions(scenes)
    choices = {"no feature": ()} | {
        f"best {num} features": affordable(ranked, seconds_per_position=1.0, budget_seconds=num)
        for num in (NUM_TABLES // 4, NUM_TABLES // 2, NUM_TABLES)
    }
    for name, positions in choices.items():
        placement = TimedPlacement(LocationAware(positions=positions) if positions else contiguous)
        counting, planner = Counting(), worker_planner(num_workers, placement, window_steps=4)
        for rows in batches("small", 14):
            for record in planner.push(accesses_of(rows)):
                counting.add(record)
        moved = rows_moved(counting.counters, num_workers)
        num_steps = counting.counters.num_steps
        print(
            f"placement by {name}: {1e3 * placement.seconds / 10:.1f} ms a batch; rows on the critical path "
            f"{moved.critical / num_steps:,.0f} a step, moved {moved.total / num_steps:,.0f}"
        )


def resident_mb() -> float:
    """What this process holds in memory now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


if __name__ == "__main__":
    main()
