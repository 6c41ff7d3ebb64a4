"""Shares and caches of several workers, for the planners that are there to be compared with.

In: the accesses of a step and a placement. Out: for each worker a `Share`, and from `RecencyCaches` which of its rows
it did not hold and which others had to leave: the row used longest ago, or that of lowest rank. The whole batch is
looked up before anything is put in, so a row never makes room for one of its own batch. Rows are numbered in order of
first access, so that these planners can keep arrays over all rows of the trace: their memory grows with the trace,
which our own must not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError, lowest
from foresee.plan.record import Accesses
from foresee.plan.row_table import NO_SLOT, RowTable, checksum_of


class Numbering:
    """Numbers for rows: 0 for the first one touched, then 1, ..."""

    def __init__(self, num_rows: int) -> None:
        self.rows = np.empty(0, np.int64)
        """The row of each number."""
        self._table = RowTable(num_rows=num_rows, fresh_version=0)

    def number(self, rows: Int64, step: int) -> Int64:
        """The number of each row; new rows get new ones."""
        batch = self._table.deduplicate(rows, stamp=step)
        numbers = self._table.slots_of(batch.rows)
        fresh = np.flatnonzero(numbers == NO_SLOT)
        numbers[fresh] = np.arange(len(self.rows), len(self.rows) + len(fresh))
        self._table.assign(batch.rows[fresh], numbers[fresh])
        self.rows = np.concatenate([self.rows, batch.rows[fresh]])
        return numbers[batch.inverse].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a step that one worker trains."""

    samples: Int32
    distinct: Int64
    """Numbers of its distinct rows, in order of first access."""
    inverse: Int32
    """For each lookup, the position in `distinct`."""
    digest: int

    @property
    def occurrences(self) -> Int64:
        """How often each distinct row is looked up."""
        return np.bincount(self.inverse, minlength=len(self.distinct)).astype(np.int64)


def shares_of(accesses: Accesses, numbers: Int64, placed: Int32, num_workers: int) -> list[Share]:
    """Splits a step; `numbers` are those of its lookups, `placed` is the worker of each sample."""
    worker_of_lookup = np.repeat(placed, np.diff(accesses.sample_offsets))
    shares = []
    for worker in range(num_workers):
        mine = np.flatnonzero(worker_of_lookup == worker)
        distinct, inverse = distinct_in_order(numbers[mine])
        samples = np.flatnonzero(placed == worker).astype(np.int32)
        shares.append(Share(samples, distinct, inverse, checksum_of(accesses.rows[mine])))
    return shares


def distinct_in_order(numbers: Int64) -> tuple[Int64, Int32]:
    """The distinct ones in order of first access, and for each lookup its position among them."""
    ascending, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order))
    return ascending[order], position[inverse]


def users_of(shares: list[Share]) -> tuple[Int64, Int64]:
    """The distinct rows of the whole step, ascending, and the users of each: bit w for worker w."""
    everything = np.concatenate([share.distinct for share in shares])
    bits = np.concatenate([np.full(len(share.distinct), 1 << worker) for worker, share in enumerate(shares)])
    distinct, inverse = np.unique(everything, return_inverse=True)
    users = np.zeros(len(distinct), np.int64)
    np.bitwise_or.at(users, inverse, bits)
    return distinct, users


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
