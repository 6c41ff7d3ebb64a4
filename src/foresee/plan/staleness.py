"""How many reads of a plan are stale, where workers add their own updates at the store.

In: the records of such a plan (HET's), all workers of a step before the next step. Out: how many reads there are, how
many miss an update, and how many updates those miss. An update is a (worker, step) that touches a row. A replica never
contains an update that was not made, so a read is exact if and only if it contains as many as were made: one number for
each row and worker is enough. `check_additive` proves the same update by update, and far more slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foresee.base.arrays import Int64
from foresee.plan.record import Record
from foresee.plan.workers.recency import widened


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Reads are distinct rows of a worker's samples, summed over steps."""

    num_reads: int = 0
    stale_reads: int = 0
    missing_updates: int = 0

    @property
    def stale_share(self) -> float:
        return self.stale_reads / self.num_reads if self.num_reads else 0.0


def staleness_of(records: Iterable[Record], num_workers: int, capacity_rows: int) -> Staleness:
    """Plays a plan through."""
    reading = Reading(num_workers, capacity_rows)
    for record in records:
        reading.add(record)
    return reading.staleness


class Reading:
    """Counts as records pass."""

    def __init__(self, num_workers: int, capacity_rows: int) -> None:
        self.staleness = Staleness()
        self._numbers: dict[int, int] = {}
        self._held = np.full((num_workers, capacity_rows), -1, np.int64)
        """The number of the row in each slot."""
        self._made, self._stored = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._seen, self._pending = np.zeros((num_workers, 0), np.int64), np.zeros((num_workers, 0), np.int64)
        self._step = -1
        self._after: list[Record] = []
        """Records of the step, whose updates are made and pushed once all workers have read."""

    def add(self, record: Record) -> None:
        if record.step != self._step:
            self._finish_step()
            self._step = record.step
        worker = record.worker
        for pulled in (record.fetch, record.refresh):
            rows = self._number(pulled.row)
            self._held[worker, pulled.slot] = rows
            self._seen[worker, rows] = self._stored[rows] + self._pending[worker, rows]
        read = self._held[worker, record.unique]
        missing = self._made[read] - self._seen[worker, read]
        self.staleness = Staleness(
            num_reads=self.staleness.num_reads + len(read),
            stale_reads=self.staleness.stale_reads + int(np.count_nonzero(missing)),
            missing_updates=self.staleness.missing_updates + int(missing.sum()),
        )
        self._after.append(record)

    def _finish_step(self) -> None:
        for record in self._after:
            rows = self._held[record.worker, record.unique]
            self._made[rows] += 1
            self._seen[record.worker, rows] += 1
            self._pending[record.worker, rows] += 1
        for record in self._after:
            rows = self._held[record.worker, np.concatenate([record.push.slot, record.evict.slot])]
            self._stored[rows] += self._pending[record.worker, rows]
            self._pending[record.worker, rows] = 0
        self._after = []

    def _number(self, rows: Int64) -> Int64:
        numbers = np.array([self._numbers.setdefault(row, len(self._numbers)) for row in rows.tolist()], np.int64)
        self._made, self._stored = (widened(array, len(self._numbers), 0) for array in (self._made, self._stored))
        self._seen, self._pending = (widened(array, len(self._numbers), 0) for array in (self._seen, self._pending))
        return numbers
