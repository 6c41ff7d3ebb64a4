"""The lookahead planner: Belady's rule inside a window of known future, in time linear in the lookups.

The planner reads `window_steps` batches ahead of the step it plans. When a step needs slots, the rows whose next use is
farthest go first, and before them the rows with no use in the window, the one used longest ago leading. Rows stay
until their slot is needed, and no slot waits for a row that is used later: fetches land in staging memory and take
their slots when their step begins. So capacity is a hard bound, and all of it works for reuse.

The guard of a fetch follows from the rows themselves: `not_before` is the latest step after which one of them was
written back. It is also at least `step - 1 - fetch_ahead_steps`, which bounds staging and lets the planner forget: a
row written back before that needs no memory.

With `eager` a row leaves right after a step that has no next use of it in the window, as in Bagpipe: a fixed lookahead
L is window_steps = L, and no cache at all is window_steps = 0.

Why next uses cost nothing to keep: reading batch k, the table tells each row's access before k. If that step is not
planned yet, k is written beside it as its next use; if it is, the row lies in the list of rows without a known
use, and moves to the bucket of k. Rows in slots lie in the bucket of their next use: planning step y drops bucket y
whole, and victims come off the farthest bucket.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.ownership import Ownership, placed_ownership
from foresee.plan.policy import Policy, Profile
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION, Accesses, Evict, Fetch, Header, Record, empty_int32
from foresee.plan.row_table import LOW, NO_SLOT, PAST, PREFETCH_DISTANCE, SLOT, RowTable, find, prefetch_entry
from foresee.plan.upcoming import (
    NOBODY,
    WINDOW_BYTES,
    WINDOW_STEPS,
    NextUses,
    Reach,
    bytes_in_window,
    choose_victims,
    window_bytes,
    with_later_uses,
)
from foresee.prefetch import prefetch_read, prefetch_write


@njit(nogil=True, cache=True, inline="always")
def _place_of(mark: int, first_use: Int64, next_use: Int32) -> np.int64:
    """Where in the ring the next use of an access stands."""
    return np.int64((first_use[(mark >> 32) % len(first_use)] + (mark & LOW)) & (len(next_use) - 1))


@njit(nogil=True, cache=True)
def _announce(
    table: Int64, entries: Int64, marks: Int64, step: int, planned: int, first_use: Int64, next_use: Int32,
    lists: Int32, heads: Int32,
) -> None:  # fmt: skip
    """Tells every row's access before `step` that its next use is `step`.

    first_use[s % len]: where the next uses of step s begin in the ring `next_use`. `lists` is [slots + 1, 2]: (next,
    previous) of each slot in its list; the last line is the head of the list of rows without a known use.
    """
    for k in range(len(marks)):
        if k + PREFETCH_DISTANCE < len(marks):
            coming = marks[k + PREFETCH_DISTANCE]
            if coming >> 32 >= planned:
                prefetch_write(next_use, _place_of(coming, first_use, next_use))
        mark = marks[k]
        if mark < 0:
            continue
        if mark >> 32 >= planned:
            next_use[_place_of(mark, first_use, next_use)] = step
            continue
        slot = table[entries[k], SLOT]
        if slot != NO_SLOT:
            after, before = lists[slot, 0], lists[slot, 1]
            lists[before, 0] = after
            lists[after, 1] = before
            bucket = step % len(heads)
            lists[slot, 0] = heads[bucket]
            heads[bucket] = slot


@njit(nogil=True, cache=True)
def _locate(table: Int64, rows: Int64, unique: Int32, missing: Int32) -> int:
    """The slot of every row; positions of those without one."""
    num_missing = 0
    for k in range(len(rows)):
        prefetch_entry(table, rows, k + PREFETCH_DISTANCE)
        slot = table[find(table, rows[k]), SLOT]
        unique[k] = slot
        if slot == NO_SLOT:
            missing[num_missing] = k
            num_missing += 1
    return num_missing


@njit(nogil=True, cache=True)
def _fill(
    table: Int64, rows: Int64, missing: Int32, free: Int32, num_free: int, unique: Int32, slot_row: Int64,
    fetch_row: Int64, fetch_slot: Int32, fetch_version: Int32,
) -> int:  # fmt: skip
    """Gives the missing rows free slots; returns the latest step after which one of them was written back."""
    written_at = -1
    for k in range(len(missing)):
        if k + PREFETCH_DISTANCE < len(missing):
            prefetch_entry(table, rows, missing[k + PREFETCH_DISTANCE])
        row = rows[missing[k]]
        slot = free[num_free - 1 - k]
        entry = find(table, row)
        table[entry, SLOT] = slot
        slot_row[slot] = row
        unique[missing[k]] = slot
        fetch_row[k] = row
        fetch_slot[k] = slot
        fetch_version[k] = table[entry, PAST] >> 32
        written_at = max(written_at, (table[entry, PAST] & LOW) - 1)
    return written_at


@njit(nogil=True, cache=True)
def _enlist(
    unique: Int32, step: int, first: int, next_use: Int32, slot_last: Int32, lists: Int32, heads: Int32,
    later: Int32, slot_later: Int32,
) -> None:  # fmt: skip
    """Puts every slot of the step into the bucket of its next use, or at the end of the list without one.

    later: the next use of every row if it is known beyond the window, for those without one in it; or empty.
    """
    nowhere = len(lists) - 1
    for k in range(len(unique)):
        if k + PREFETCH_DISTANCE < len(unique):
            prefetch_read(lists, np.int64(unique[k + PREFETCH_DISTANCE]) * 2)
            prefetch_read(slot_last, unique[k + PREFETCH_DISTANCE])
        slot = unique[k]
        slot_last[slot] = step
        following = next_use[(first + k) & (len(next_use) - 1)]
        if following == NOBODY:
            before = lists[nowhere, 1]
            lists[slot, 0] = nowhere
            lists[slot, 1] = before
            lists[before, 0] = slot
            lists[nowhere, 1] = slot
            if len(later):
                slot_later[slot] = later[k]
        else:
            bucket = following % len(heads)
            lists[slot, 0] = heads[bucket]
            heads[bucket] = slot


@dataclass(frozen=True, slots=True)
class _Read:
    """A batch that was read and not yet planned."""

    num_samples: int
    rows: Int64
    inverse: Int32
    first_use: int
    checksum: int
    later: Int32
    """Next uses beyond the window, if anybody looked for them."""


class Lookahead:
    """Plans for one worker. Memory grows with the window, not with the tables or the log."""

    def __init__(
        self,
        header: Header,
        *,
        window_steps: int = WINDOW_STEPS,
        window_bytes: int | None = WINDOW_BYTES,
        window_first_bytes: int | None = None,
        eager: bool = False,
        remember_versions: bool = False,
    ) -> None:
        """
        window_steps: how many steps beyond the planned one are known.
        window_bytes: fewer are known where their batches take more than this; with `eager` that is refused.
        window_first_bytes: at first they take no more than this, and the window grows by what is planned.
        eager: rows without a next use in the window leave at once, and a cache too small for that is refused.
        remember_versions: predict the version of every fetched row, however long ago it was written, at 32 bytes for
            each row ever accessed. Without it, rows that left the cache long ago are UNKNOWN_VERSION.
        """
        self.header = header
        self.window_steps = window_steps
        self._reach = Reach(window_bytes, window_first_bytes)
        self.eager = eager
        self.remember_versions = remember_versions
        fresh = 0 if remember_versions and header.first_step == 0 else UNKNOWN_VERSION
        capacity = header.capacity_rows
        self._table = RowTable(num_rows=header.num_rows, fresh_version=fresh)
        self._slot_row = np.zeros(capacity, np.int64)
        self._slot_last = np.full(capacity, -1, np.int32)
        self._slot_later = np.full(capacity, NOT_KNOWN, np.int32)
        self._looks_ahead = False
        """Somebody looks for next uses beyond the window."""
        self._free = np.arange(capacity - 1, -1, -1, dtype=np.int32)
        self._num_free = capacity
        self._lists = np.full((capacity + 1, 2), capacity, np.int32)
        self._heads = np.full(window_steps + 2, NOBODY, np.int32)
        self._uses = NextUses(self.window_steps)
        self._window: deque[_Read] = deque()
        self._bytes_held = 0
        """Of the batches in the window."""
        self._planned = header.first_step
        """The next step to plan; the window holds the batches from here on."""
        self._read = header.first_step
        self._open: Record | None = None

    def push(self, accesses: Accesses) -> list[Record]:
        """Reads the next batch; plans the oldest one of the window once that is full."""
        self._look_at(accesses)
        records: list[Record] = []
        while len(self._window) > self.window_steps or (self._window and self._bytes_held > self._reach.num_bytes):
            if self.eager and len(self._window) <= self.window_steps:
                raise self._window_too_long()
            records += self._plan_step()
        return records

    def finish(self) -> list[Record]:
        """Plans what is left; the last record writes everything back."""
        records: list[Record] = []
        while self._window:
            records += self._plan_step()
        left = np.flatnonzero(self._slot_last >= 0).astype(np.int32)
        return records + self._close(left, np.full(len(left), NOT_KNOWN, np.int32))

    def _look_at(self, accesses: Accesses) -> None:
        step = self._read
        keep_from = -1 if self.remember_versions else self._planned - 1 - self.header.fetch_ahead_steps
        batch = self._table.deduplicate(accesses.rows, stamp=step, stamp_min=self._planned, written_min=keep_from)
        if len(batch.rows) > self.header.capacity_rows:
            raise BatchTooLargeError(step, len(batch.rows), self.header.capacity_rows)
        first = self._uses.reserve(step, len(batch.rows), self._window[0].first_use if self._window else None)
        _announce(
            self._table.entries, batch.entries, batch.marks, step, self._planned, self._uses.first, self._uses.ring,
            self._lists, self._heads,
        )  # fmt: skip
        self._looks_ahead = accesses.next_uses is not None
        later = empty_int32() if accesses.next_uses is None else accesses.next_uses(batch.rows)
        self._window.append(_Read(accesses.num_samples, batch.rows, batch.inverse, first, batch.checksum, later))
        self._bytes_held += bytes_in_window(len(batch.inverse), len(batch.rows))
        self._read += 1

    def _plan_step(self) -> list[Record]:
        """Plans the oldest batch of the window; returns the record of the step before, whose evictions it decides."""
        step, batch = self._planned, self._window.popleft()
        num_bytes = bytes_in_window(len(batch.inverse), len(batch.rows))
        self._bytes_held -= num_bytes
        self._reach.planned(num_bytes)
        # Rows in slots that this step accesses are exactly those of its bucket: dropping it protects them.
        self._heads[step % len(self._heads)] = NOBODY
        unique = np.empty(len(batch.rows), np.int32)
        missing = np.empty(len(batch.rows), np.int32)
        missing = missing[: _locate(self._table.entries, batch.rows, unique, missing)]
        closed = [] if self.eager else self._close(*self._victims(step, len(missing) - self._num_free))
        if len(missing) > self._num_free:
            raise self._window_too_large(step, len(missing))
        self._open = self._admit(step, batch, unique, missing)
        self._planned += 1
        # No bucket lies beyond what was read, so these are the rows without a use in the window, all of them.
        return self._close(*self._victims(self._read, len(self._slot_row))) if self.eager else closed

    def _victims(self, step: int, num_needed: int) -> tuple[Int32, Int32]:
        """Slots to be freed, and the next use of the row in each."""
        victims, next_use = (np.empty(max(0, num_needed), np.int32) for _ in range(2))
        count = choose_victims(self._lists, self._heads, step, self._read - 1, victims, next_use)
        victims, next_use = victims[:count], next_use[:count]
        return victims, with_later_uses(next_use, self._slot_later[victims]) if self._looks_ahead else next_use

    def _window_too_large(self, step: int, num_missing: int) -> PlanError:
        needed = len(self._slot_row) - self._num_free + num_missing
        return PlanError(
            f"step {step}: a window of {self.window_steps} steps needs {needed} slots, but the cache holds "
            f"{self.header.capacity_rows}; give it at least {needed} rows, or a smaller window"
        )

    def _window_too_long(self) -> PlanError:
        return PlanError(
            f"step {self._planned}: a window of {self.window_steps} steps takes more than the "
            f"{self._reach.num_bytes:,} bytes of window_bytes after {len(self._window) - 1} of them; give it "
            "more bytes, or fewer steps"
        )

    def _close(self, victims: Int32, next_use: Int32) -> list[Record]:
        """Completes the record of the step before with what it evicts."""
        if self._open is None:
            return []
        record, self._open = self._open, None
        rows, versions = self._slot_row[victims], self._slot_last[victims] + np.int32(1)
        self._table.release(rows, versions, step=record.step)
        self._slot_last[victims] = -1
        self._free[self._num_free : self._num_free + len(victims)] = victims
        self._num_free += len(victims)
        return [replace(record, evict=Evict(victims, rows, versions, next_use))]

    def _admit(self, step: int, batch: _Read, unique: Int32, missing: Int32) -> Record:
        count = len(missing)
        fetch = Fetch(np.empty(count, np.int64), np.empty(count, np.int32), np.empty(count, np.int32))
        written_at = _fill(
            self._table.entries, batch.rows, missing, self._free, self._num_free, unique, self._slot_row,
            fetch.row, fetch.slot, fetch.version,
        )  # fmt: skip
        self._num_free -= count
        _enlist(
            unique, step, batch.first_use, self._uses.ring, self._slot_last, self._lists, self._heads,
            batch.later, self._slot_later,
        )  # fmt: skip
        return Record(
            step=step,
            worker=0,
            samples=np.arange(batch.num_samples, dtype=np.int32),
            unique=unique,
            inverse=batch.inverse,
            fetch=fetch,
            not_before=max(written_at, step - 1 - self.header.fetch_ahead_steps, -1),
            apply=unique,
            evict=Evict(),
            digest=batch.checksum,
        )


def alone(header: Header, profile: Profile) -> Lookahead:
    options, bound = header.options, window_bytes(header)
    versions = options.remember_versions
    if options.window_steps is None:
        most = options.read_ahead_steps or WINDOW_STEPS
        first = options.window_first_bytes
        return Lookahead(
            header, window_steps=most, window_bytes=bound, window_first_bytes=first, remember_versions=versions
        )
    return Lookahead(
        header, window_steps=options.window_steps, window_bytes=bound, eager=True, remember_versions=versions
    )


def together(header: Header, profile: Profile) -> Ownership:
    return placed_ownership(header, eager=False)


POLICY = Policy(
    name="lookahead",
    meaning="Foresee",
    colour="#3b82c4",
    alone=alone,
    together=together,
    foresight_steps=WINDOW_STEPS,
)
