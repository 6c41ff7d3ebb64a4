"""The caches of several workers from which the row touched longest ago leaves first (LRU), or that of lowest rank.

In: the rows that a worker touches in a step, in order. Out: which of them it did not hold, and which others had to
leave. The whole batch is looked up before anything is put in: a row never makes room for one of its own batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foresee.plan.demand import BatchTooLargeError
from foresee.plan.lowest import lowest
from foresee.plan.record import Int32, Int64
from foresee.plan.row_table import NO_SLOT

Number = TypeVar("Number", bound=np.generic)
Rank = Callable[[int, int, Int64, Int64], Int64]
"""(step, worker, rows touched, those of them that were not held) -> a rank for each touched row, by their numbers."""


class RecencyCaches:
    """Which row is in which slot of each worker, by the rows' numbers."""

    def __init__(self, num_workers: int, capacity_rows: int, rank: Rank | None = None) -> None:
        """Without a rank, by recency."""
        self.capacity_rows = capacity_rows
        self.slot = np.empty((num_workers, 0), np.int32)
        """[workers, numbers]: NO_SLOT where a worker does not hold a row."""
        self._touched_at = np.empty((num_workers, 0), np.int64)
        self._rank = rank
        self._ranks = self._touched_at if rank is None else np.empty((num_workers, 0), np.int64)
        self._free = [np.arange(capacity_rows - 1, -1, -1, dtype=np.int32) for _ in range(num_workers)]

    def grow(self, num_rows: int) -> None:
        self.slot = widened(self.slot, num_rows, NO_SLOT)
        self._touched_at = widened(self._touched_at, num_rows, -1)
        self._ranks = self._touched_at if self._rank is None else widened(self._ranks, num_rows, 0)

    def admit(self, step: int, worker: int, distinct: Int64) -> tuple[Int64, Int64, Int32]:
        """Puts rows in. Returns those that were not there, and the victims with the slots they had."""
        if len(distinct) > self.capacity_rows:
            raise BatchTooLargeError(step, len(distinct), self.capacity_rows)
        missing = distinct[self.slot[worker, distinct] == NO_SLOT]
        self._touched_at[worker, distinct] = (np.int64(step) << 32) + np.arange(len(distinct))
        if self._rank is not None:
            self._ranks[worker, distinct] = self._rank(step, worker, distinct, missing)
        victims = self._victims(step, worker, len(missing) - len(self._free[worker]))
        freed = self.slot[worker, victims]
        self.slot[worker, victims] = NO_SLOT
        free = np.concatenate([self._free[worker], freed])
        kept = len(free) - len(missing)
        self.slot[worker, missing] = free[kept:]
        self._free[worker] = free[:kept]
        return missing, victims, freed

    def _victims(self, step: int, worker: int, num_needed: int) -> Int64:
        if num_needed <= 0:
            return np.empty(0, np.int64)
        before = self._touched_at[worker] < np.int64(step) << 32
        candidates = np.flatnonzero((self.slot[worker] != NO_SLOT) & before)
        return candidates[lowest(self._ranks[worker, candidates], num_needed)]


def widened(array: NDArray[Number], num_rows: int, fill: int) -> NDArray[Number]:
    """[..., rows] with room for at least so many rows; it doubles, so that growing costs little."""
    if num_rows <= array.shape[-1]:
        return array
    wider = np.full((*array.shape[:-1], max(1024, num_rows, 2 * array.shape[-1])), fill, array.dtype)
    wider[..., : array.shape[-1]] = array
    return wider
