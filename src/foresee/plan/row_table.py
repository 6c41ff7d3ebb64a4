"""What a planner remembers of a row: its slot, its latest access, its latest write-back.

An open-addressing hash table with linear probing, 32 bytes an entry so that a probe costs one cache line. It holds the
rows of the window, the rows in slots and those written back recently, and never more: its size does not depend on the
size of the tables. The kernels release the GIL and are deterministic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.prefetch import prefetch_read

# The four words of an entry. MARK is stamp << 32 | position: the row's latest access, a position among the distinct
# rows of the batch with that stamp. PAST is version << 32 | 1 + step of the latest write-back.
ROW, SLOT, MARK, PAST = 0, 1, 2, 3
EMPTY = -1
NOBODY = -1
TOO_MANY = -2
NO_SLOT = -1
NO_MARK = -1
LOW = 0xFFFFFFFF
LOAD_MAX = 0.6
PREFETCH_DISTANCE = 12


@njit(nogil=True, cache=True, inline="always")
def home_of(row: int, mask: int) -> np.int64:
    """Where the search for a row begins: Fibonacci hashing, folded because the high bits are the good ones."""
    mixed = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed ^ (mixed >> np.uint64(32))) & np.uint64(mask))


@njit(nogil=True, cache=True, inline="always")
def find(table: Int64, row: int) -> np.int64:
    """The entry of a row that is known to be in the table."""
    mask = len(table) - 1
    entry: np.int64 = home_of(row, mask)
    while table[entry, ROW] != row:
        entry = np.int64((entry + 1) & mask)
    return entry


@njit(nogil=True, cache=True, inline="always")
def prefetch_entry(table: Int64, rows: Int64, position: int) -> None:
    """Asks for the entry of a row that a loop will need a dozen turns later."""
    if position < len(rows):
        prefetch_read(table, home_of(rows[position], len(table) - 1) * 4)


@njit(nogil=True, cache=True)
def _number(rows: Int64, num_rows: int, positions: Int32, inverse: Int32, distinct: Int64) -> tuple[int, np.int64, int]:
    """Numbers distinct rows in order of first access, through a hash of positions in `distinct`, filled with NOBODY.

    Most lookups repeat a hot row. This hash is small enough for the nearest caches, so only distinct rows go on to the
    table, which is not. Returns (distinct rows, checksum of the ids, -1), or in the third place TOO_MANY if the hash is
    too small, or else the position of an id outside the tables.
    """
    mask = len(positions) - 1
    num_distinct = 0
    checksum = np.uint64(len(rows))
    for i in range(len(rows)):
        row = rows[i]
        if row < 0 or row >= num_rows:
            return num_distinct, np.int64(0), i
        checksum = checksum * np.uint64(0x100000001B3) + np.uint64(row)
        place = home_of(row, mask)
        position = positions[place]
        while position != NOBODY and distinct[position] != row:
            place = (place + 1) & mask
            position = positions[place]
        if position == NOBODY:
            if 2 * num_distinct >= len(positions):
                return num_distinct, np.int64(0), TOO_MANY
            position = np.int32(num_distinct)
            positions[place] = position
            distinct[num_distinct] = row
            num_distinct += 1
        inverse[i] = position
    return num_distinct, np.int64(checksum >> np.uint64(1)), -1


@njit(nogil=True, cache=True)
def _enter(table: Int64, distinct: Int64, stamp: int, fresh_past: int, marks: Int64, entries: Int64) -> int:
    """Marks each distinct row as touched by the batch with this stamp; returns how many were not in the table.

    Fills the mark each had before, and where its entry is.
    """
    mask = len(table) - 1
    num_inserted = 0
    for k in range(len(distinct)):
        prefetch_entry(table, distinct, k + PREFETCH_DISTANCE)
        row = distinct[k]
        entry = home_of(row, mask)
        while table[entry, ROW] != row:
            if table[entry, ROW] == EMPTY:
                table[entry, ROW] = row
                table[entry, SLOT] = NO_SLOT
                table[entry, MARK] = NO_MARK
                table[entry, PAST] = fresh_past
                num_inserted += 1
                break
            entry = np.int64((entry + 1) & mask)
        marks[k] = table[entry, MARK]
        table[entry, MARK] = (np.int64(stamp) << 32) | k
        entries[k] = entry
    return num_inserted


@njit(nogil=True, cache=True)
def _slots_of(table: Int64, rows: Int64, slots: Int32) -> None:
    for k in range(len(rows)):
        prefetch_entry(table, rows, k + PREFETCH_DISTANCE)
        slots[k] = table[find(table, rows[k]), SLOT]


@njit(nogil=True, cache=True)
def _assign(table: Int64, rows: Int64, slots: Int32, pasts: Int64) -> None:
    for k in range(len(rows)):
        prefetch_entry(table, rows, k + PREFETCH_DISTANCE)
        entry = find(table, rows[k])
        table[entry, SLOT] = slots[k]
        pasts[k] = table[entry, PAST]


@njit(nogil=True, cache=True)
def _release(table: Int64, rows: Int64, versions: Int32, step: int) -> None:
    for k in range(len(rows)):
        prefetch_entry(table, rows, k + PREFETCH_DISTANCE)
        entry = find(table, rows[k])
        table[entry, SLOT] = NO_SLOT
        table[entry, PAST] = (np.int64(versions[k]) << 32) | (step + 1)


@njit(nogil=True, cache=True)
def _must_stay(table: Int64, entry: int, stamp_min: int, written_min: int) -> bool:
    """A row stays if it is in a slot, or has an access still to come, or was written back recently."""
    if table[entry, ROW] == EMPTY:
        return False
    if table[entry, SLOT] != NO_SLOT or table[entry, MARK] >> 32 >= stamp_min:
        return True
    return bool((table[entry, PAST] & LOW) - 1 >= written_min)


@njit(nogil=True, cache=True)
def _count_staying(table: Int64, stamp_min: int, written_min: int) -> int:
    staying = 0
    for entry in range(len(table)):
        staying += _must_stay(table, entry, stamp_min, written_min)
    return staying


@njit(nogil=True, cache=True)
def _move_staying(old: Int64, new: Int64, stamp_min: int, written_min: int) -> None:
    mask = len(new) - 1
    for entry in range(len(old)):
        if _must_stay(old, entry, stamp_min, written_min):
            home = home_of(old[entry, ROW], mask)
            while new[home, ROW] != EMPTY:
                home = (home + 1) & mask
            for word in range(4):
                new[home, word] = old[entry, word]


@njit(nogil=True, cache=True)
def _checksum(rows: Int64) -> np.int64:
    checksum = np.uint64(len(rows))
    for i in range(len(rows)):
        checksum = checksum * np.uint64(0x100000001B3) + np.uint64(rows[i])
    return np.int64(checksum >> np.uint64(1))


def checksum_of(rows: Int64) -> int:
    """The checksum that `deduplicate` finds on its way, for whoever has to compare it."""
    return int(_checksum(rows))


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct rows of one batch."""

    rows: Int64
    """In order of first access."""
    inverse: Int32
    """For each lookup, the position in `rows`."""
    marks: Int64
    """The mark of each row's access before this one, or NO_MARK."""
    entries: Int64
    """Where each row lies in the table; holds until the next batch."""
    checksum: int


def past_of(version: int, written_at: int = -1) -> int:
    """The PAST word of a row in this version, written back after this step (-1: never)."""
    return (version << 32) | (written_at + 1)


class RowTable:
    """The table, growing as it must and forgetting what it may."""

    def __init__(self, *, num_rows: int, fresh_version: int) -> None:
        """`fresh_version` is what a row not in the table is taken for: 0, or UNKNOWN_VERSION."""
        self.num_rows = num_rows
        self.entries = _empty(1024)
        self._fresh_past = past_of(fresh_version)
        self._num_entries = 0
        self._distinct = np.empty(0, np.int64)
        self._positions = np.empty(1024, np.int32)

    def deduplicate(self, rows: Int64, *, stamp: int, stamp_min: int = 0, written_min: int = -1) -> Distinct:
        """The distinct rows of the batch with this stamp.

        If room is needed, rows that are in no slot, last touched before `stamp_min` and last written back before step
        `written_min` are forgotten. With the defaults nothing is.
        """
        distinct, inverse, checksum = self.number(rows, stamp)
        self._reserve(len(distinct), stamp_min, written_min)
        marks, entries = np.empty(len(distinct), np.int64), np.empty(len(distinct), np.int64)
        self._num_entries += _enter(self.entries, distinct, stamp, self._fresh_past, marks, entries)
        return Distinct(distinct, inverse, marks, entries, checksum)

    def number(self, rows: Int64, stamp: int) -> tuple[Int64, Int32, int]:
        """The distinct rows in order of first access, for each lookup its position among them, and the checksum.

        Looks nothing up and enters nothing into the table.
        """
        inverse = np.empty(len(rows), np.int32)
        if len(self._distinct) < len(rows):
            self._distinct = np.empty(len(rows), np.int64)
        while True:
            self._positions.fill(NOBODY)
            count, checksum, bad = _number(rows, self.num_rows, self._positions, inverse, self._distinct)
            if bad == -1:
                return self._distinct[:count].copy(), inverse, int(checksum)
            if bad != TOO_MANY:
                raise PlanError(
                    f"step {stamp}: lookup {bad} names row {rows[bad]}, but the tables have rows 0 to "
                    f"{self.num_rows - 1}; prepare the log again, or open the tables that belong to it"
                )
            self._positions = np.empty(4 * len(self._positions), np.int32)

    def slots_of(self, rows: Int64) -> Int32:
        """The slot of each row, or NO_SLOT."""
        slots = np.empty(len(rows), np.int32)
        _slots_of(self.entries, rows, slots)
        return slots

    def assign(self, rows: Int64, slots: Int32) -> tuple[Int32, int]:
        """Puts rows into slots; returns their versions and the latest step after which one of them was written back."""
        pasts = np.empty(len(rows), np.int64)
        _assign(self.entries, rows, slots, pasts)
        return (pasts >> 32).astype(np.int32), int((pasts & LOW).max(initial=0)) - 1

    def release(self, rows: Int64, versions: Int32, *, step: int) -> None:
        """Takes rows out of their slots: written back after `step`, in these versions."""
        _release(self.entries, rows, versions, step)

    def _reserve(self, num_distinct: int, stamp_min: int, written_min: int) -> None:
        if self._num_entries + num_distinct <= LOAD_MAX * len(self.entries):
            return
        staying = _count_staying(self.entries, stamp_min, written_min)
        grown = _empty(int((1.5 * staying + num_distinct) / LOAD_MAX))
        _move_staying(self.entries, grown, stamp_min, written_min)
        self.entries = grown
        self._num_entries = staying


def _empty(num_entries: int) -> Int64:
    table = np.empty((1 << max(10, int(num_entries).bit_length()), 4), np.int64)
    table[:, ROW] = EMPTY
    return table
