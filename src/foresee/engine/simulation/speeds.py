"""What a row costs a processor, timed on this machine in a moment: a store reads and writes it, a cache copies it.

In: how a row looks. Out: processor seconds a row, whatever else the machine does. The wire is not in it: links are
given, and so is what packing a row for one costs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from foresee.engine.cache import SlotCache
from foresee.engine.kernels import Threads
from foresee.engine.optimizers import OPTIMIZERS
from foresee.engine.work import Pooling
from foresee.plan.record import Evict, Fetch
from foresee.store.contract import Layout, Rows, Table
from foresee.store.memory import MemoryStore

NUM_ROWS, NUM_TIMED, TURNS = 100_000, 10_000, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Seconds a row."""

    read: float
    write: float
    cache: float
    """Into a slot or out of one."""


def time_rows(layout: Layout) -> RowTimes:
    """Medians of a few turns."""
    small, rng = replace(layout, tables=(Table("probe", NUM_ROWS),)), np.random.default_rng(0)
    store, rows = MemoryStore(small), Rows.empty(NUM_TIMED, small)
    every = np.arange(NUM_ROWS)
    filled = Rows.empty(NUM_ROWS, small)
    store.read(every, filled)
    store.write(every, filled)

    def some() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return rng.permutation(NUM_ROWS)[:NUM_TIMED]

    read = _median(lambda chosen: store.read(chosen, rows), some)
    write = _median(lambda chosen: store.write(chosen, rows), some)
    optimizer = OPTIMIZERS[layout.optimizer](lr=0.01)
    with Threads(1) as threads:
        cache = SlotCache(small, optimizer, Pooling.of([False]), capacity_rows=NUM_ROWS, threads=threads)
        copied = _median(lambda chosen: _in_and_out(cache, chosen, rows), some)
    return RowTimes(read=read, write=write, cache=copied / 2)


def _in_and_out(cache: SlotCache, chosen: np.ndarray[tuple[int], np.dtype[np.int64]], rows: Rows) -> None:
    slots = chosen.astype(np.int32)
    cache.fill(Fetch(chosen, slots, rows.versions), rows)
    cache.take(Evict(slots, chosen, rows.versions))


def _median(act: Callable[..., None], some: Callable[[], np.ndarray[tuple[int], np.dtype[np.int64]]]) -> float:
    seconds = []
    for _ in range(TURNS + 1):
        chosen = some()
        begun = time.thread_time()
        act(chosen)
        seconds.append((time.thread_time() - begun) / NUM_TIMED)
    return statistics.median(seconds[1:])
