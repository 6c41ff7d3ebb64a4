"""Rows as the disk store kept them before it had a log: a mapped base and a mapped overlay, found by a hash index.

The yardstick of `benchmarks/disk.py`, as it was but for commits: reads copy out of mappings, with threads when pages
have to come from the disk; writes append records to the overlay through the page cache, or overwrite a row's record in
place. `fold` writes the overlay into the base row by row. Nothing of the package uses it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numba
import numpy as np

from foresee.arrays import Float32, Int64
from foresee.io.files import Files
from foresee.prefetch import ROWS_AHEAD, prefetch
from foresee.store.contract import Rows
from foresee.store.disk.base import Base
from foresee.store.disk.chunks import ParallelCopy
from foresee.store.kernels import BASE, INITIAL, Bits, gather, initial_of, is_set, read_only
from foresee.store.layout import Layout

HEADER_WORDS = 2
EMPTY = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@numba.njit(nogil=True, inline="always")
def _home(row: int, shift: int) -> Any:
    return np.int64((np.uint64(row) * _MULTIPLIER) >> np.uint64(shift))


@numba.njit(nogil=True, inline="always")
def _find(table: Int64, shift: int, row: int) -> Any:
    mask = table.shape[0] - 1
    entry = _home(row, shift)
    while table[entry, 0] != row and table[entry, 0] != EMPTY:
        entry = (entry + 1) & mask
    return entry


@numba.njit(nogil=True)
def _locate(rows: Int64, table: Int64, shift: int, written: Bits, places: Int64) -> None:
    table_address, bits_address = table.ctypes.data, written.ctypes.data
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(table_address + 16 * _home(rows[k + ROWS_AHEAD], shift), 16)
            prefetch(bits_address + (rows[k + ROWS_AHEAD] >> 3), 1)
        entry = _find(table, shift, rows[k])
        if table[entry, 0] == rows[k]:
            places[k] = table[entry, 1]
        else:
            places[k] = BASE if is_set(written, rows[k]) else INITIAL


@numba.njit(nogil=True)
def _place(rows: Int64, table: Int64, shift: int, count: int, places: Int64) -> int:
    table_address = table.ctypes.data
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(table_address + 16 * _home(rows[k + ROWS_AHEAD], shift), 16)
        entry = _find(table, shift, rows[k])
        if table[entry, 0] == EMPTY:
            table[entry, 0], table[entry, 1] = rows[k], count
            count += 1
        places[k] = table[entry, 1]
    return count


@numba.njit(nogil=True)
def _scatter(picks: Int64, rows: Int64, places: Int64, values: Float32, state: Float32, versions: Any, first: int,
             records: Float32) -> None:  # fmt: skip
    as_ints, width, state_width = records.view(np.int32), values.shape[1], state.shape[1]
    address, record_words = records.ctypes.data, records.shape[1]
    for n in range(len(picks)):
        if n + ROWS_AHEAD < len(picks):
            prefetch(address + 4 * record_words * (places[picks[n + ROWS_AHEAD]] - first), 4 * record_words)
        k = picks[n]
        place = places[k] - first
        as_ints[place, 0], as_ints[place, 1] = np.int32(rows[k]), np.int32(rows[k] >> 32)
        for i in range(width):
            records[place, HEADER_WORDS + i] = values[k, i]
        for i in range(state_width):
            records[place, HEADER_WORDS + width + i] = state[k, i]
        as_ints[place, record_words - 1] = versions[k]


class MappedRows:
    """A base that is there, and an overlay beside it."""

    def __init__(self, base: Base, layout: Layout, path: Path, rows_max: int) -> None:
        self._base, self._layout, self._parallel = base, layout, ParallelCopy()
        self._initial = initial_of(layout)
        self._record_words = HEADER_WORDS + layout.row_bytes // 4
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        Files().reserve(self._descriptor, 0, rows_max * self._record_words * 4)
        self._mapped = mmap.mmap(self._descriptor, rows_max * self._record_words * 4)
        self._mapped.madvise(mmap.MADV_RANDOM)
        self._records: Float32 = np.frombuffer(self._mapped, np.float32).reshape(-1, self._record_words)
        self._staging = np.empty((1024, self._record_words), np.float32)
        capacity = 1 << (2 * rows_max - 1).bit_length()
        self._table, self._shift = np.full((capacity, 2), EMPTY, np.int64), 64 - (capacity.bit_length() - 1)
        self._count = 0

    def read(self, rows: Int64, out: Rows) -> None:
        places = np.empty(len(rows), np.int64)
        _locate(rows, self._table, self._shift, self._base.written, places)
        base, overlay = self._base.words, read_only(self._records)

        def copy(begin: int, end: int) -> None:
            gather(rows, places, base, overlay, HEADER_WORDS, self._initial,
                   out.values, out.state, out.versions, begin, end)  # fmt: skip

        self._parallel.run(copy, len(rows))

    def write(self, rows: Int64, source: Rows) -> None:
        first, places = self._count, np.empty(len(rows), np.int64)
        self._count = _place(rows, self._table, self._shift, first, places)
        content = (source.values, source.state, source.versions)
        _scatter(np.flatnonzero(places < first), rows, places, *content, 0, self._records)
        picks = np.flatnonzero(places >= first)
        for begin in range(0, len(picks), 1024):
            piece = picks[begin : begin + 1024]
            staging = self._staging[: len(piece)]
            _scatter(piece, rows, places, *content, first + begin, staging)
            Files().write(self._descriptor, staging, (first + begin) * self._record_words * 4)

    def fold(self) -> None:
        """All rows of the overlay go into the base, as after a commit."""
        records = self._records[: self._count]
        ids = np.ascontiguousarray(records[:, :HEADER_WORDS]).view(np.int64).ravel()
        order = np.argsort(ids)
        for begin in range(0, len(ids), 4096):
            some = order[begin : begin + 4096]
            self._base.write_rows(ids[some], np.ascontiguousarray(records[some, HEADER_WORDS:]))
        self._base.sync()
        self._count = 0
        self._table.fill(EMPTY)

    def forget_pages(self) -> None:
        """Dirty pages are written first, so that they can go."""
        os.fdatasync(self._descriptor)
        self._base.forget_pages()
        self._mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._parallel.close()
        self._records = np.zeros((0, self._record_words), np.float32)
        os.close(self._descriptor)
