"""Where each written row is: in memory (`Recent`), or at a position of the log; 8 bytes a row of the tables.

An entry is 0 (the row is in the base or has its initial value), or a version and a place: a slot of `Recent`, or, from
its capacity on, a position of the log. Rows written a moment ago are collected in `Recent`, each once: a row that is
written again takes its own slot, so one that is flushed is the newest at that time. Pages of the index nobody writes to
take no memory. Nothing here is locked or knows files: `disk/log.py` does both.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int32, Int64
from foresee.plan.record import NOT_KNOWN
from foresee.prefetch import ROWS_AHEAD, prefetch
from foresee.store.contract import Rows
from foresee.store.kernels import BASE, INITIAL, Bits, is_set

IN_RECENT = -3
"""Place of a row that was copied out of `Recent`."""
PLACES_MAX = (1 << 32) - 2
_PLACE = np.int64(0xFFFFFFFF)


@numba.njit(nogil=True, cache=True)
def _assign(
    rows: Int64,
    values: Float32,
    state: Float32,
    versions: Int32,
    next_use: Int32,
    floors: Int32,
    begin: int,
    index: Int64,
    recent_rows: Int64,
    recent_words: Float32,
    recent_next: Int32,
    count: int,
    live: Int32,
    chunk_rows: int,
) -> tuple[int, int, int]:
    """Rows begin.. of a request into `Recent` until it is full; the next one, the rows there, the highest version.

    Rows of a lower version than the stored one are left out; `floors` has that of rows the index does not know, or is
    empty where none of them can be newer.
    """
    words, capacity, width, state_width = recent_words.view(np.int32), len(recent_rows), values.shape[1], state.shape[1]
    address = index.ctypes.data
    version_max = 0
    for k in range(begin, len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(address + 8 * rows[k + ROWS_AHEAD], 8)
        row, version = rows[k], versions[k]
        entry = index[row]
        stored = entry >> 32 if entry or not len(floors) else floors[k]
        if version < stored:
            continue
        slot = (entry & _PLACE) - 1
        if slot < 0 or slot >= capacity:
            if count == capacity:
                return k, count, version_max
            if slot >= 0:
                live[(slot - capacity) // chunk_rows] -= 1
            slot = count
            count += 1
            recent_rows[slot] = row
        index[row] = (np.int64(version) << 32) | (slot + 1)
        recent_next[slot] = next_use[k]
        for i in range(width):
            recent_words[slot, i] = values[k, i]
        for i in range(state_width):
            recent_words[slot, width + i] = state[k, i]
        words[slot, width + state_width] = version
        version_max = max(version_max, version)
    return len(rows), count, version_max


@numba.njit(nogil=True, cache=True)
def _look_up(
    rows: Int64,
    index: Int64,
    written: Bits,
    recent_words: Float32,
    values: Float32,
    state: Float32,
    versions: Int32,
    logged: Int64,
    positions: Int64,
    log_versions: Int32,
    in_base: Int64,
    initial: Int64,
) -> tuple[int, int, int]:
    words, capacity, width, state_width = (
        recent_words.view(np.int32),
        len(recent_words),
        values.shape[1],
        state.shape[1],
    )
    address, bits_address = index.ctypes.data, written.ctypes.data
    num_logged = num_in_base = num_initial = 0
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(address + 8 * rows[k + ROWS_AHEAD], 8)
            prefetch(bits_address + (rows[k + ROWS_AHEAD] >> 3), 1)
        row = rows[k]
        entry = index[row]
        place = (entry & _PLACE) - 1
        if place < 0:
            if is_set(written, row):
                in_base[num_in_base] = k
                num_in_base += 1
            else:
                initial[num_initial] = k
                num_initial += 1
        elif place >= capacity:
            logged[num_logged], positions[num_logged] = k, place - capacity
            log_versions[num_logged] = entry >> 32
            num_logged += 1
        else:
            for i in range(width):
                values[k, i] = recent_words[place, i]
            for i in range(state_width):
                state[k, i] = recent_words[place, width + i]
            versions[k] = words[place, width + state_width]
    return num_logged, num_in_base, num_initial


@numba.njit(nogil=True, cache=True)
def _move_to_log(
    order: Int64, positions: Int64, index: Int64, recent_rows: Int64, capacity: int, live: Int32, chunk_rows: int
) -> None:
    for k in range(len(order)):
        row = recent_rows[order[k]]
        index[row] = (index[row] & ~_PLACE) | (capacity + positions[k] + 1)
        live[positions[k] // chunk_rows] += 1


@numba.njit(nogil=True, cache=True)
def _insert(
    rows: Int64, versions: Int32, first: int, index: Int64, capacity: int, live: Int32, chunk_rows: int
) -> None:
    for k in range(len(rows)):
        row = rows[k]
        before = (index[row] & _PLACE) - 1 - capacity
        if before >= 0:
            live[before // chunk_rows] -= 1
        index[row] = (np.int64(versions[k]) << 32) | (capacity + first + k + 1)
        live[first // chunk_rows] += 1


@numba.njit(nogil=True, cache=True)
def _points_into(rows: Int64, index: Int64, first: int, out: NDArray[np.bool_]) -> None:
    for k in range(len(rows)):
        out[k] = (index[rows[k]] & _PLACE) - 1 == first + k


class Found(NamedTuple):
    """Which rows of a request are where; those in none of the lists were copied out of `Recent`."""

    logged: Int64
    positions: Int64
    """Of those, in the log."""
    versions: Int32
    """Of those, as they were last written."""
    in_base: Int64
    initial: Int64

    def places(self, num_rows: int) -> Int64:
        """For each row of the request its position in the log, BASE, INITIAL or IN_RECENT."""
        places = np.full(num_rows, IN_RECENT, np.int64)
        places[self.logged], places[self.in_base], places[self.initial] = self.positions, BASE, INITIAL
        return places


class RowIndex:
    """The index, `Recent`, and how many rows of each chunk are live."""

    def __init__(self, num_rows: int, row_words: int, recent_rows: int, chunk_rows: int) -> None:
        self._num_rows, self._chunk_rows = num_rows, chunk_rows
        self._index: Int64 = np.zeros(num_rows, np.int64)
        self._rows: Int64 = np.empty(recent_rows, np.int64)
        self._words: Float32 = np.empty((recent_rows, row_words), np.float32)
        self._next_use: Int32 = np.empty(recent_rows, np.int32)
        self.count = 0
        """Rows in `Recent`."""
        self.live: Int32 = np.zeros(0, np.int32)
        """Rows of each chunk that are not written anew since."""

    @property
    def capacity(self) -> int:
        return len(self._rows)

    def assign(self, rows: Int64, source: Rows, next_use: Int32, floors: Int32, begin: int) -> tuple[int, int]:
        """Takes rows from `begin` on; the first that has no room any more, and the highest version of those taken."""
        end, self.count, version_max = _assign(
            rows,
            source.values,
            source.state,
            source.versions,
            next_use,
            floors,
            begin,
            self._index,
            self._rows,
            self._words,
            self._next_use,
            self.count,
            self.live,
            self._chunk_rows,
        )
        return end, version_max

    def look_up(self, rows: Int64, written: Bits, out: Rows) -> Found:
        """Copies what is in `Recent`, and says where all other rows are."""
        logged, in_base, initial = (np.empty(len(rows), np.int64) for _ in range(3))
        positions, versions = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
        ends = _look_up(
            rows,
            self._index,
            written,
            self._words,
            out.values,
            out.state,
            out.versions,
            logged,
            positions,
            versions,
            in_base,
            initial,
        )
        num_logged, num_in_base, num_initial = ends
        return Found(
            logged[:num_logged],
            positions[:num_logged],
            versions[:num_logged],
            in_base[:num_in_base],
            initial[:num_initial],
        )

    def unknown(self, rows: Int64) -> NDArray[np.bool_]:
        """Which rows the base has, if anybody."""
        return np.asarray(self._index[rows] == 0)

    def by_next_use(self) -> Int64:
        """Slots of `Recent` in the order in which they will be needed; those nobody knows last, as they came."""
        next_use = self._next_use[: self.count].astype(np.int64)
        next_use[next_use == NOT_KNOWN] = _PLACE >> 1
        keys = next_use << 32 | np.arange(self.count)  # sorting keys takes a tenth of sorting their places
        keys.sort()
        return keys & _PLACE

    @property
    def recent(self) -> tuple[Int64, Float32]:
        """Ids and words of all slots."""
        return self._rows, self._words

    def move_to_log(self, order: Int64, positions: Int64) -> None:
        """All of `Recent` is now at these positions of the log."""
        _move_to_log(order, positions, self._index, self._rows, self.capacity, self.live, self._chunk_rows)
        self.count = 0

    def insert(self, rows: Int64, versions: Int32, first: int) -> None:
        """Rows of one chunk, newer than all that was inserted before; its first row is at this position."""
        _insert(rows, versions, first, self._index, self.capacity, self.live, self._chunk_rows)

    def points_into(self, rows: Int64, first: int) -> NDArray[np.bool_]:
        """Which of the rows of a chunk are live there."""
        out = np.empty(len(rows), np.bool_)
        _points_into(rows, self._index, self.capacity + first, out)
        return out

    def clear(self) -> None:
        """No row is here."""
        self._index = np.zeros(self._num_rows, np.int64)
        self.count = 0
        self.live[:] = 0

    def grow(self, num_chunks: int) -> None:
        if num_chunks > len(self.live):
            self.live = np.concatenate([self.live, np.zeros(num_chunks - len(self.live), np.int32)])
