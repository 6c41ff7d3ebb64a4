"""The frame of policies that keep what a ranking tells them to: a batch's missing rows take free slots, then others'.

The frame evicts the resident rows of lowest rank that the batch does not access; a policy is one function that ranks
the rows just accessed. Belady's bound uses the same frame with ranks from the future. Among equal ranks the first
places go (`lowest`), because a plan must be the same wherever it is made. The frame looks at every slot in every step
and never forgets a row: it is there to be compared with, not to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION, Accesses, Evict, Fetch, Header, Record, empty_int32
from foresee.plan.row_table import NO_SLOT, Distinct, RowTable


def lowest(ranks: Int64, number: int) -> Int64:
    """Ascending places of so many of the lowest ranks, of which there must be as many; among equals the first ones.

    `numpy.argpartition` takes whichever equals it meets first, which differs from processor to processor.
    """
    bound = np.partition(ranks, number - 1)[number - 1]
    chosen = ranks < bound
    chosen[np.flatnonzero(ranks == bound)[: number - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)


Rank = Callable[[int, Int32, Int64], Int64]
"""(step, slots accessed in order of first access, their rows) -> a rank for each. The lowest is evicted first."""


def in_words(num_rows: int, partition_rows: int) -> str:
    """What a step touches."""
    if partition_rows == 1:
        return f"{num_rows} distinct rows"
    return f"{num_rows // partition_rows} partitions of {partition_rows} rows"


class BatchTooLargeError(PlanError):
    """The refusal that every planner gives to a batch that can never fit."""

    def __init__(self, step: int, num_distinct: int, capacity_rows: int, partition_rows: int = 1) -> None:
        """`num_distinct`: rows that the step needs slots for, those of whole partitions if they are planned."""
        super().__init__(
            f"step {step} touches {in_words(num_distinct, partition_rows)}, but the cache holds {capacity_rows}; "
            f"the smallest cache that works for this step is {num_distinct} rows"
        )
        self.step = step
        self.partition_rows = partition_rows
        self.num_distinct = num_distinct
        self.capacity_rows = capacity_rows


class RankedEviction:
    """The frame: one worker, one ranking."""

    def __init__(self, header: Header, rank: Rank) -> None:
        self.header = header
        self._rank = rank
        fresh = 0 if header.first_step == 0 else UNKNOWN_VERSION
        self._table = RowTable(num_rows=header.num_rows, fresh_version=fresh)
        self._slot_row = np.zeros(header.capacity_rows, np.int64)
        self._slot_last = np.full(header.capacity_rows, -1, np.int32)
        self._slot_rank = np.zeros(header.capacity_rows, np.int64)
        self._slot_later: Int32 | None = None
        """When the row in each slot is used next, if anybody looked for that."""
        self._next = header.first_step
        self._open: Record | None = None

    def push(self, accesses: Accesses) -> list[Record]:
        step = self._next
        batch = self._table.deduplicate(accesses.rows, stamp=step)
        if len(batch.rows) > self.header.capacity_rows:
            raise BatchTooLargeError(step, len(batch.rows), self.header.capacity_rows)
        unique = self._table.slots_of(batch.rows)
        missing = np.flatnonzero(unique == NO_SLOT)
        closed = self._close(self._victims(len(missing), unique[unique != NO_SLOT]))
        unique[missing] = np.flatnonzero(self._slot_last < 0)[: len(missing)]
        self._open = self._admit(step, accesses, batch, unique, missing)
        self._next += 1
        return closed

    def finish(self) -> list[Record]:
        return self._close(np.flatnonzero(self._slot_last >= 0).astype(np.int32))

    def _victims(self, num_missing: int, touched: Int32) -> Int32:
        """The resident slots of lowest rank that the batch does not touch, as many as are needed."""
        resident = self._slot_last >= 0
        num_needed = num_missing - (len(resident) - int(np.count_nonzero(resident)))
        if num_needed <= 0:
            return np.empty(0, np.int32)
        resident[touched] = False
        candidates = np.flatnonzero(resident)
        return candidates[lowest(self._slot_rank[candidates], num_needed)].astype(np.int32)

    def _close(self, victims: Int32) -> list[Record]:
        """Completes the record of the step before with what it evicts."""
        if self._open is None:
            return []
        rows, versions = self._slot_row[victims], self._slot_last[victims] + np.int32(1)
        self._table.release(rows, versions, step=self._open.step)
        self._slot_last[victims] = -1
        next_use = empty_int32() if self._slot_later is None else self._slot_later[victims]
        return [replace(self._open, evict=Evict(victims, rows, versions, next_use))]

    def _admit(self, step: int, accesses: Accesses, batch: Distinct, unique: Int32, missing: Int64) -> Record:
        fetch_rows, fetch_slots = batch.rows[missing], unique[missing]
        versions, written_at = self._table.assign(fetch_rows, fetch_slots)
        self._slot_row[fetch_slots] = fetch_rows
        self._slot_last[unique] = step
        self._slot_rank[unique] = self._rank(step, unique, batch.rows)
        if accesses.next_uses is not None:
            if self._slot_later is None:
                self._slot_later = np.full(len(self._slot_row), NOT_KNOWN, np.int32)
            self._slot_later[unique] = accesses.next_uses(batch.rows)
        return Record(
            step=step,
            worker=0,
            samples=np.arange(accesses.num_samples, dtype=np.int32),
            unique=unique,
            inverse=batch.inverse,
            fetch=Fetch(fetch_rows, fetch_slots, versions),
            not_before=max(written_at, step - 1 - self.header.fetch_ahead_steps, -1),
            apply=unique,
            evict=Evict(),
            digest=batch.checksum,
        )


def row_frequencies(profile: Iterable[Accesses]) -> tuple[Int64, Int64]:
    """In how many batches each row occurs: (rows ascending, counts). Never empty: row -1 stands for none."""
    distinct = [np.unique(accesses.rows) for accesses in profile]
    rows, counts = np.unique(np.concatenate([np.array([-1]), *distinct]), return_counts=True)
    return rows, counts.astype(np.int64)
