"""Every worker caches every row of the window, and gradients are summed over all workers: Bagpipe's published code.

Samples are placed in equal slices. A row used at step x is kept if the window uses it again. After x

  * rows that step x + 1 uses (`sync_now`) are summed over all workers at once, on the critical path;
  * rows that only one sample of the whole batch looked up and that leave now (`no_sync`) stay with their one user, who
    writes them back; nobody else fetches them;
  * all others (`sync_later`) are summed while step x + 1 computes; those that leave are written back after x + 1, each
    worker a part of them.

The window is as long as the cache allows: it takes in the next batch if the distinct rows of all its batches still fit,
which bounds the cache because all workers hold the same. The published code has a fixed length instead, loses the
gradients of `no_sync` rows, and cuts the write-back of rows that workers hold differently: here they are exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.baselines.recency import Numbering, Share, shares_of, widened
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import Accesses, ComparedRecord, Evict, Fetch, Header, Record, Reduce
from foresee.plan.upcoming import WINDOW_STEPS

NOWHERE = -1
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Batch:
    accesses: Accesses
    numbers: Int64
    distinct: Int64
    """Ascending."""
    once: Flags
    """Which of the distinct rows only one lookup of the batch accesses."""


@dataclass(frozen=True, slots=True)
class _Fates:
    """What happens to the distinct rows of a step."""

    rows: Int64
    missing: Flags
    """Fetched for this step."""
    alone: Flags
    """`no_sync`: used once and gone."""
    user: Int32
    """One of the users; of a row that is alone, the only one."""


class Replicated:
    """Plans replicas. Never forgets a row."""

    def __init__(self, header: Header, *, window_steps: int = WINDOW_STEPS) -> None:
        self.header = header
        self.window_steps = max(1, window_steps)
        self._numbering = Numbering(header.num_rows)
        self._slot = np.empty(0, np.int32)
        """A row has the same slot at every worker."""
        self._last_use = np.empty(0, np.int32)
        """The last step of the window, or of the past, that uses the row."""
        self._version = np.empty(0, np.int32)
        self._written_at = np.empty(0, np.int32)
        self._free = np.arange(header.capacity_rows - 1, -1, -1, dtype=np.int32)
        self._window: deque[_Batch] = deque()
        self._num_window_rows = 0
        self._read = header.first_step
        self._planned = header.first_step
        self._leaving = np.empty(0, np.int64)
        """Rows that have no further use in the window, and whose sums travel while the next step computes."""

    def push(self, accesses: Accesses) -> list[Record]:
        """Takes the batch into the window; plans the oldest steps until it fits."""
        numbers = self._numbering.number(accesses.rows, self._read)
        self._grow(len(self._numbering.rows))
        distinct, counts = np.unique(numbers, return_counts=True)
        records: list[Record] = []
        while not self._fits(distinct):
            records += self._plan_step()
        self._num_window_rows += self._num_new(distinct)
        self._last_use[distinct] = self._read
        self._window.append(_Batch(accesses, numbers, distinct, counts == 1))
        self._read += 1
        return records

    def finish(self) -> list[Record]:
        """Plans what is left; the last records write everything back."""
        records: list[Record] = []
        while self._window:
            records += self._plan_step()
        return records

    def _grow(self, num_rows: int) -> None:
        self._slot = widened(self._slot, num_rows, NOWHERE)
        self._last_use = widened(self._last_use, num_rows, -1)
        self._version = widened(self._version, num_rows, 0)
        self._written_at = widened(self._written_at, num_rows, -1)

    def _num_new(self, distinct: Int64) -> int:
        return int(np.count_nonzero(self._last_use[distinct] < self._planned))

    def _fits(self, distinct: Int64) -> bool:
        needed = self._num_window_rows + self._num_new(distinct)
        if needed <= self.header.capacity_rows:
            return len(self._window) <= self.window_steps
        # Rows whose sums travel during the next step are held that long: two steps must fit.
        if len(self._window) < 2:
            raise BatchTooLargeError(self._read, needed, self.header.capacity_rows)
        return False

    def _plan_step(self) -> list[Record]:
        step, batch = self._planned, self._window.popleft()
        num_samples, workers = batch.accesses.num_samples, self.header.num_workers
        placed = (np.arange(num_samples) * workers // num_samples).astype(np.int32)
        shares = shares_of(batch.accesses, batch.numbers, placed, workers)
        rows = batch.distinct
        expires = self._last_use[rows] == step
        fates = _Fates(rows, self._give_slots(rows), expires & batch.once, _a_user_of(rows, shares))
        reduce = self._reduce(step, rows[~fates.alone])
        records = [self._record(step, worker, share, fates, reduce) for worker, share in enumerate(shares)]
        self._version[rows] = step + 1
        complete, self._leaving = self._leaving, rows[expires & ~batch.once]
        if not self._window:
            complete = np.concatenate([complete, self._leaving])
        self._num_window_rows -= int(np.count_nonzero(expires))
        self._planned += 1
        return self._write_back(records, fates, complete)

    def _give_slots(self, rows: Int64) -> Flags:
        """Slots for the rows that are in none; returns which those are."""
        missing: Flags = self._slot[rows] == NOWHERE
        kept = len(self._free) - int(np.count_nonzero(missing))
        self._slot[rows[missing]], self._free = self._free[kept:], self._free[:kept]
        return missing

    def _reduce(self, step: int, rows: Int64) -> Reduce:
        """What the next step uses is due then; after the last step everything is."""
        soon = np.isin(rows, self._window[0].distinct) if self._window else np.ones(len(rows), np.bool_)
        return Reduce(self._slot[rows], np.where(soon, step + 1, step + 2).astype(np.int32))

    def _record(self, step: int, worker: int, share: Share, fates: _Fates, reduce: Reduce) -> ComparedRecord:
        own = fates.alone & (fates.user == worker)
        fetched = fates.rows[fates.missing & (own | ~fates.alone)]
        written_at = int(self._written_at[fetched].max(initial=-1))
        return ComparedRecord(
            step=step,
            worker=worker,
            samples=share.samples,
            unique=self._slot[share.distinct],
            inverse=share.inverse,
            fetch=Fetch(self._numbering.rows[fetched], self._slot[fetched], self._version[fetched]),
            not_before=max(written_at, step - 1 - self.header.fetch_ahead_steps, -1),
            apply=self._slot[fates.rows[own]],
            evict=Evict(),
            digest=share.digest,
            reduce=reduce,
        )

    def _write_back(self, records: list[ComparedRecord], fates: _Fates, complete: Int64) -> list[Record]:
        """After the step its `no_sync` rows leave, and the rows whose sums have arrived meanwhile."""
        complete = complete[np.argsort(self._numbering.rows[complete])]
        part_of = np.arange(len(complete)) * len(records) // max(1, len(complete))
        closed: list[Record] = []
        for record in records:
            own = fates.alone & (fates.user == record.worker)
            replicas = fates.alone & ~own & ~fates.missing
            evicted = np.concatenate([fates.rows[own], complete[part_of == record.worker]])
            dropped = np.concatenate([fates.rows[replicas], complete[part_of != record.worker]])
            evict = Evict(self._slot[evicted], self._numbering.rows[evicted], self._version[evicted])
            closed.append(replace(record, evict=evict, drop=self._slot[dropped]))
        gone = np.concatenate([fates.rows[fates.alone], complete])
        self._written_at[gone] = records[0].step
        self._free = np.concatenate([self._free, self._slot[gone]])
        self._slot[gone] = NOWHERE
        return closed


def _a_user_of(rows: Int64, shares: list[Share]) -> Int32:
    """One of the workers that use each row; rows ascend."""
    user = np.empty(len(rows), np.int32)
    for worker, share in enumerate(shares):
        user[np.searchsorted(rows, share.distinct)] = worker
    return user


def compared(header: Header, profile: Profile) -> Replicated:
    return Replicated(header)


POLICY = Policy(
    name="replicated",
    meaning="every trainer caches everything, as in Bagpipe's published code",
    colour="#7a5c3e",
    compared=compared,
    workers_max=USERS_MAX,
)
