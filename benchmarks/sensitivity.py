"""How much lookahead and how much cache a run needs: rows fetched a step, and the time of a step, over both.

Rows fetched are counted on plans of a Criteo-shaped synthetic trace (batches of 2,048 x 26 ids, Zipf 1.1, correlated):

    eager     a fixed lookahead of L steps as in the Bagpipe paper: what the window does not use again leaves at once,
              and the cache is as large as that needs (`peak_slots`)
    lazy      Belady's rule inside a window of L steps, in a cache of 10 % of the touched rows; `bound`: with all the
              future known
    caches    lookahead, LRU and Belady's bound over cache sizes from the largest batch to all touched rows

The time of a step is measured through the engine with the DLRM, log and cold tables on disk of
`benchmarks/breakdown.py`, for some lookaheads (eager) and some cache sizes, sides in turn; medians over turns. Printed
last: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from breakdown import bench_arguments, cold_parts
from foresee.data import synthetic_rows
from foresee.engine.tables import layout_for
from foresee.plan import make_planner, plan
from foresee.plan.count import count
from foresee.plan.lookahead import Lookahead
from foresee.plan.record import Accesses, Counters, Header, Planner
from foresee.store.disk import DiskStore
from foresee.testing.traces import MemoryStream
from step import DIM, OPTIMIZER, THREADS, Bench, make_bench, written

BATCH_SIZE, NUM_TABLES = 2048, 26
LAZY_CACHE_SHARE = 0.1
LOOKAHEADS = (0, 1, 2, 5, 10, 20, 50, 100, 200)
TIMED_LOOKAHEADS = (0, 1, 4, 16)
TIMED_LOOKAHEADS_QUICK = (0, 4)
CACHE_SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
TIMED_CACHE_SHARES = (0.1, 0.2, 0.4, 0.8)
TIMED_CACHE_SHARES_QUICK = (0.4,)


def trace_of(num_steps: int, table_scale: float) -> tuple[list[Accesses], int]:
    """(touches of every step, number of different rows)."""
    offsets = np.arange(0, BATCH_SIZE * NUM_TABLES + 1, NUM_TABLES, dtype=np.int32)
    batches = synthetic_rows(batch_size=BATCH_SIZE, num_batches=num_steps, table_scale=table_scale)
    trace = [Accesses(ids.reshape(-1), offsets) for ids in batches]
    return trace, len(np.unique(np.concatenate([accesses.rows for accesses in trace])))


def header_of(trace: Sequence[Accesses], planner: str, capacity_rows: int) -> Header:
    num_rows = int(max(accesses.rows.max() for accesses in trace)) + 1
    return Header(
        planner=planner, num_workers=1, capacity_rows=capacity_rows, num_rows=num_rows, first_step=0,
        num_steps=len(trace), fetch_ahead_steps=8, stream_digest="synthetic",
    )  # fmt: skip


def counted(planner: Planner, trace: Sequence[Accesses]) -> Counters:
    return count(plan(planner, trace))


def over_lookahead(trace: Sequence[Accesses], num_touched: int) -> dict[str, Any]:
    """Rows fetched a step for each length of the window."""
    capacity = int(LAZY_CACHE_SHARE * num_touched)
    everything = header_of(trace, "lookahead", num_touched)
    limited = header_of(trace, "lookahead", capacity)
    eager = [counted(Lookahead(everything, window_steps=steps, eager=True), trace) for steps in LOOKAHEADS]
    lazy = [counted(Lookahead(limited, window_steps=steps), trace) for steps in LOOKAHEADS]
    bound = counted(make_planner(header_of(trace, "belady", capacity), lambda num_steps: trace[:num_steps]), trace)
    return {
        "lookahead_steps": list(LOOKAHEADS),
        "eager_fetched": [_per_step(found.num_fetched, trace) for found in eager],
        "eager_peak_slots": [found.peak_slots for found in eager],
        "lazy_cache_rows": capacity,
        "lazy_fetched": [_per_step(found.num_fetched, trace) for found in lazy],
        "bound_fetched": _per_step(bound.num_fetched, trace),
        "unique_rows": _per_step(bound.num_unique, trace),
    }


def over_cache(trace: Sequence[Accesses], num_touched: int) -> dict[str, Any]:
    """Rows fetched a step for each size of the cache."""
    largest = max(len(np.unique(accesses.rows)) for accesses in trace)
    sizes = [largest, *(size for size in (int(share * num_touched) for share in CACHE_SHARES) if size > largest)]
    fetched: dict[str, list[float]] = {}
    for name in ("lookahead", "lru", "belady"):
        planners = [make_planner(header_of(trace, name, size), lambda num_steps: trace[:num_steps]) for size in sizes]
        fetched[name] = [_per_step(counted(planner, trace).num_fetched, trace) for planner in planners]
    return {"cache_rows": sizes, "touched_rows": num_touched, **{f"{name}_fetched": at for name, at in fetched.items()}}


def _per_step(number: int, trace: Sequence[Accesses]) -> float:
    return round(number / len(trace), 1)


def step_times(bench: Bench, folder: Path, *, full: bool) -> dict[str, Any]:
    """Milliseconds a step through the engine, and those of them until the rows are there."""
    lookaheads = TIMED_LOOKAHEADS if full else TIMED_LOOKAHEADS_QUICK
    shares = TIMED_CACHE_SHARES if full else TIMED_CACHE_SHARES_QUICK
    stream, touched = MemoryStream(bench.batches, num_rows=bench.num_rows), len(bench.touched)
    largest = max(len(np.unique(batch.rows)) for batch in bench.batches)
    sizes = sorted({largest, *(max(largest, int(share * touched)) for share in shares)})
    sides: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(2 if full else 1):
        for steps in lookaheads:
            parts, _ = cold_parts(bench, folder, stream, "lookahead", cache_rows=touched, window_steps=steps)
            sides.setdefault(("lookahead", steps), []).append(parts)
        for size in sizes:
            parts, _ = cold_parts(bench, folder, stream, "lookahead", cache_rows=size)
            sides.setdefault(("cache", size), []).append(parts)

    def medians(what: str, part: str | None) -> list[float]:
        return [
            round(1e3 * statistics.median(sum(parts.values()) if part is None else parts[part] for parts in found), 2)
            for (kind, _), found in sides.items()
            if kind == what
        ]

    return {
        "timed_lookahead_steps": list(lookaheads),
        "lookahead_step_ms": medians("lookahead", None),
        "lookahead_rows_ms": medians("lookahead", "rows"),
        "timed_cache_rows": sizes,
        "timed_touched_rows": touched,
        "cache_step_ms": medians("cache", None),
        "cache_rows_ms": medians("cache", "rows"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="a longer trace, and more turns of more steps")
    full = parser.parse_args().full
    trace, num_touched = trace_of(200 if full else 120, table_scale=0.1)
    figures = over_lookahead(trace, num_touched) | over_cache(trace, num_touched)
    for steps, eager, lazy in zip(LOOKAHEADS, figures["eager_fetched"], figures["lazy_fetched"], strict=True):
        print(f"lookahead {steps:4}: {eager:9,.1f} rows fetched a step (eager), {lazy:9,.1f} (lazy)", flush=True)
    torch.set_num_threads(THREADS)
    arguments = bench_arguments(full=False)
    bench = make_bench(arguments)
    with tempfile.TemporaryDirectory(dir=os.environ.get("FORESEE_BENCH_DIR", ".")) as folder:
        tables = Path(folder) / "tables"
        written(DiskStore.create(tables, layout_for(bench, DIM, OPTIMIZER, 0, 0.05)), bench).close()
        figures |= step_times(bench, tables, full=full)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
