"""Which rows are in the overlay, and where: a hash map from row to position, in memory.

Open addressing with linear probing in one int64 array [capacity, 2] of (row, position), at most half full, so that a
lookup is mostly one cache line. Positions count through both segments of the overlay: one lookup finds a row wherever
it is. Memory grows with the rows written since the last commits, never with the tables. It is not locked:
`disk/overlay.py` holds a lock around every call, as growth replaces the array.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from foresee.base.arrays import Float32, Int32, Int64
from foresee.base.prefetch import ROWS_AHEAD, prefetch
from foresee.store.kernels import BASE, INITIAL, REFUSED, Bits, is_set

EMPTY = -1
_CAPACITY_MIN = 1 << 12
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(nogil=True, cache=True, inline="always")
def _home(row: int, shift: int) -> Any:
    """Where the search for a row starts: the top bits of a multiplication spread neighbouring ids."""
    return np.int64((np.uint64(row) * _MULTIPLIER) >> np.uint64(shift))


@numba.njit(nogil=True, cache=True, inline="always")
def _find(table: Int64, shift: int, row: int) -> Any:
    """The entry of a row, or the empty entry where it would go."""
    mask = table.shape[0] - 1
    entry = _home(row, shift)
    while table[entry, 0] != row and table[entry, 0] != EMPTY:
        entry = (entry + 1) & mask
    return entry


@numba.njit(nogil=True, cache=True)
def _locate(rows: Int64, table: Int64, shift: int, written: Bits, places: Int64) -> None:
    table_address, bits_address = table.ctypes.data, written.ctypes.data
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            ahead = rows[k + ROWS_AHEAD]
            prefetch(table_address + 16 * _home(ahead, shift), 16)
            prefetch(bits_address + (ahead >> 3), 1)
        row = rows[k]
        entry = _find(table, shift, row)
        if table[entry, 0] == row:
            places[k] = table[entry, 1]
        else:
            places[k] = BASE if is_set(written, row) else INITIAL


@numba.njit(nogil=True, cache=True)
def _place(
    rows: Int64,
    versions: Int32,
    table: Int64,
    shift: int,
    records: Float32,
    version_word: int,
    base: Float32,
    written: Bits,
    base_version_max: int,
    first: int,
    count: int,
    num_entries: int,
    places: Int64,
) -> tuple[int, int, int]:
    """Gives each row to be written its position: its present one, or a new one at the end; REFUSED if it is older.

    Positions `first` to `count` are the records that may change. A row whose record is in the other, sealed segment
    gets a new one, and is found there from now on.

    A row's version in the base is looked at only if it can be newer: a write-back of this training run always has a
    version above every committed one, and looking would mean a random read for each row written.
    """
    record_versions, base_versions = records.view(np.int32), base.view(np.int32)
    table_address, record_words = table.ctypes.data, records.shape[1]
    version_max = 0
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(table_address + 16 * _home(rows[k + ROWS_AHEAD], shift), 16)
        row, version = rows[k], versions[k]
        entry = _find(table, shift, row)
        if table[entry, 0] == row:
            position = table[entry, 1]
            stored = record_versions[position, record_words - 1]
            if position < first or position >= count:
                position = count
        else:
            position = count
            stored = 0
            if version < base_version_max and is_set(written, row):
                stored = base_versions[row, version_word]
        if version < stored:
            places[k] = REFUSED
            continue
        if position == count:
            if table[entry, 0] == EMPTY:
                table[entry, 0] = row
                num_entries += 1
            table[entry, 1] = position
            count += 1
        places[k] = position
        version_max = max(version_max, version)
    return count, num_entries, version_max


@numba.njit(nogil=True, cache=True)
def _move_entries(old: Int64, new: Int64, shift: int, dropped_begin: int, dropped_end: int) -> int:
    """Entries of `old` into the empty `new`, except those with positions in the dropped range; returns how many."""
    count = 0
    for k in range(old.shape[0]):
        if old[k, 0] != EMPTY and not dropped_begin <= old[k, 1] < dropped_end:
            entry = _find(new, shift, old[k, 0])
            new[entry, 0] = old[k, 0]
            new[entry, 1] = old[k, 1]
            count += 1
    return count


@numba.njit(nogil=True, cache=True)
def _insert(rows: Int64, first: int, table: Int64, shift: int) -> None:
    for k in range(len(rows)):
        entry = _find(table, shift, rows[k])
        table[entry, 0] = rows[k]
        table[entry, 1] = first + k


class RowIndex:
    """Rows of the overlay by id."""

    def __init__(self) -> None:
        self._num_entries = 0
        self._table, self._shift = _empty_table(_CAPACITY_MIN)

    def locate(self, rows: Int64, written: Bits, places: Int64) -> None:
        """Fills `places` with overlay positions, BASE or INITIAL."""
        _locate(rows, self._table, self._shift, written, places)

    def place(
        self, rows: Int64, versions: Int32, *, records: Float32, base: Float32, written: Bits, base_version_max: int,
        first: int, count: int,
    ) -> tuple[Int64, int, int]:  # fmt: skip
        """Positions for rows to be written (REFUSED for older ones); the end of the records; their highest version."""
        self._grow(self._num_entries + len(rows))
        places = np.empty(len(rows), np.int64)
        count, self._num_entries, version_max = _place(
            rows, versions, self._table, self._shift, records, base.shape[1] - 1, base, written,
            base_version_max, first, count, self._num_entries, places,
        )  # fmt: skip
        return places, count, version_max

    def insert(self, rows: Int64, first: int) -> None:
        """Rows that are not here yet, at positions from `first` on."""
        self._grow(self._num_entries + len(rows))
        _insert(rows, first, self._table, self._shift)
        self._num_entries += len(rows)

    def drop(self, begin: int, end: int) -> None:
        """Forgets the rows with positions in this range."""
        table, shift = _empty_table(len(self._table))
        self._num_entries = _move_entries(self._table, table, shift, begin, end)
        self._table = table

    def clear(self) -> None:
        """Forgets all rows; the capacity stays, as the next interval will be about as long."""
        self._num_entries = 0
        self._table.fill(EMPTY)

    def _grow(self, num_rows: int) -> None:
        capacity = len(self._table)
        while capacity < 2 * num_rows:
            capacity *= 2
        if capacity > len(self._table):
            table, shift = _empty_table(capacity)
            _move_entries(self._table, table, shift, 0, 0)
            self._table, self._shift = table, shift


def _empty_table(capacity: int) -> tuple[Int64, int]:
    return np.full((capacity, 2), EMPTY, np.int64), 64 - (capacity.bit_length() - 1)
