"""The overlay: what was written since the last commit, and the journal of the commit that is under way.

`overlay.bin` is an array of records (row id as int64, then the row's words) in two segments, each as long as the tables
but sparse. One segment is written: a row keeps its record there until the commit and is overwritten in place, so it
grows with the distinct rows of an interval. The other is free, or sealed: `layout.json` says how many of its records
count and what their checksum is, and they do not change until they are in the base. A commit seals the one and goes on
in the other, so that folding holds up nobody. Space is reserved before it is used.
"""

from __future__ import annotations

import mmap
import os
import threading
import zlib
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np

from foresee.base.arrays import Float32, Int32, Int64
from foresee.base.files import Files
from foresee.base.prefetch import ROWS_AHEAD, prefetch
from foresee.store.contract import Layout, Rows
from foresee.store.disk.index import RowIndex
from foresee.store.kernels import Bits, read_only

HEADER_WORDS = 2
"""float32 words before a row: its id as int64."""
NUM_SEGMENTS = 2
_RESERVE_BYTES_MIN = 1 << 20
_RESERVE_BYTES_MAX = 1 << 26
_CHECKSUM_CHUNK_BYTES = 1 << 24
_APPEND_ROWS = 1024


@numba.njit(nogil=True, cache=True)
def _scatter(
    picks: Int64,
    rows: Int64,
    places: Int64,
    values: Float32,
    state: Float32,
    versions: Int32,
    first: int,
    records: Float32,
) -> None:
    """Writes the picked rows of a request as records; records[0] is the one at position `first`."""
    as_ints = records.view(np.int32)
    width, state_width, record_words = values.shape[1], state.shape[1], records.shape[1]
    address = records.ctypes.data
    for n in range(len(picks)):
        if n + ROWS_AHEAD < len(picks):
            prefetch(address + 4 * record_words * (places[picks[n + ROWS_AHEAD]] - first), 4 * record_words)
        k = picks[n]
        place = places[k] - first
        as_ints[place, 0] = np.int32(rows[k])
        as_ints[place, 1] = np.int32(rows[k] >> 32)
        for i in range(width):
            records[place, HEADER_WORDS + i] = values[k, i]
        for i in range(state_width):
            records[place, HEADER_WORDS + width + i] = state[k, i]
        as_ints[place, record_words - 1] = versions[k]


@numba.njit(nogil=True, cache=True)
def read_row_ids(records: Float32, first: int, out: Int64) -> None:
    """The row ids of records from `first` on."""
    ids = records.view(np.int32)
    for k in range(len(out)):
        out[k] = np.int64(np.uint32(ids[first + k, 0])) | (np.int64(ids[first + k, 1]) << 32)


@numba.njit(nogil=True, cache=True)
def _copy_words(records: Float32, positions: Int64, out: Float32) -> None:
    address, record_words = records.ctypes.data, records.shape[1]
    for k in range(len(positions)):
        if k + ROWS_AHEAD < len(positions):
            prefetch(address + 4 * record_words * positions[k + ROWS_AHEAD], 4 * record_words)
        for i in range(out.shape[1]):
            out[k, i] = records[positions[k], HEADER_WORDS + i]


class Overlay:
    """Records in a mapped file, with the index that finds them."""

    def __init__(self, path: Path, layout: Layout, files: Files) -> None:
        self._files = files
        self._record_words = HEADER_WORDS + layout.row_bytes // 4
        self._segment_rows = layout.num_rows
        self._segment_bytes = layout.num_rows * self._record_words * 4
        self._num_bytes = NUM_SEGMENTS * self._segment_bytes
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        # Records of a commit that was interrupted are still in the file and stay.
        os.ftruncate(self._descriptor, self._num_bytes)
        self._mapped = mmap.mmap(self._descriptor, self._num_bytes)
        if hasattr(mmap, "MADV_RANDOM"):
            self._mapped.madvise(mmap.MADV_RANDOM)
        self._records: Float32 = np.frombuffer(self._mapped, np.float32).reshape(-1, self._record_words)
        self._staging = np.empty((_APPEND_ROWS, self._record_words), np.float32)
        self._reserved_bytes = [0] * NUM_SEGMENTS
        self._index = RowIndex()
        self._lock = threading.Lock()
        self.segment = 0
        """The one that is written."""
        self._end = 0
        """Position after its last record."""

    def __len__(self) -> int:
        """Records of the segment that is written."""
        return self._end - self._first(self.segment)

    def _first(self, segment: int) -> int:
        return segment * self._segment_rows

    @property
    def records(self) -> Float32:
        """All records, for reading only."""
        view: Float32 = read_only(self._records)
        return view

    def locate(self, rows: Int64, written: Bits) -> Int64:
        """For each row its position here, BASE or INITIAL."""
        places = np.empty(len(rows), np.int64)
        with self._lock:
            self._index.locate(rows, written, places)
        return places

    def missing_bytes(self, num_rows: int) -> int:
        """Bytes that must be reserved before so many rows can be written."""
        needed = min((len(self) + num_rows) * self._record_words * 4, self._segment_bytes)
        return max(0, needed - self._reserved_bytes[self.segment])

    def reserve(self, num_rows: int) -> None:
        """Takes disk space for so many rows more; OSError if there is none, and nothing has changed."""
        missing, reserved = self.missing_bytes(num_rows), self._reserved_bytes[self.segment]
        if not missing:
            return
        ahead = min(max(missing, reserved, _RESERVE_BYTES_MIN), max(missing, _RESERVE_BYTES_MAX))
        ahead = min(ahead, self._segment_bytes - reserved)
        self._files.reserve(self._descriptor, self.segment * self._segment_bytes + reserved, ahead)
        self._reserved_bytes[self.segment] += ahead

    def write(self, rows: Int64, source: Rows, *, base: Float32, written: Bits, base_version_max: int) -> int:
        """Assigns rows for which space is reserved, except older ones; returns their highest version."""
        with self._lock:
            first_new = self._end
            places, self._end, version_max = self._index.place(
                rows, source.versions, records=self._records, base=base, written=written,
                base_version_max=base_version_max, first=self._first(self.segment), count=first_new,
            )  # fmt: skip
        # Outside the lock: nobody reads these rows now, and other rows are elsewhere.
        present = np.flatnonzero((places >= 0) & (places < first_new))
        self._scatter(present, rows, places, source, 0, self._records)
        self._append(np.flatnonzero(places >= first_new), rows, places, source, first_new)
        return version_max

    def _append(self, picks: Int64, rows: Int64, places: Int64, source: Rows, first_new: int) -> None:
        """New records, which are neighbours: a few large writes cost a fraction of a page fault for each page."""
        for begin in range(0, len(picks), _APPEND_ROWS):
            piece = picks[begin : begin + _APPEND_ROWS]
            staging, first = self._staging[: len(piece)], first_new + begin
            self._scatter(piece, rows, places, source, first, staging)
            self._files.write(self._descriptor, staging, first * self._record_words * 4)

    @staticmethod
    def _scatter(picks: Int64, rows: Int64, places: Int64, source: Rows, first: int, records: Float32) -> None:
        _scatter(picks, rows, places, source.values, source.state, source.versions, first, records)

    def sync(self) -> None:
        """Brings the records to the disk."""
        self._files.sync_map(self._mapped, self._end * self._record_words * 4)
        self._files.sync(self._descriptor)

    def switch(self) -> None:
        """The segment that was written is sealed; from now on the other one is, which must be free."""
        with self._lock:
            self.segment = (self.segment + 1) % NUM_SEGMENTS
            self._end = self._first(self.segment)

    def forget_pages(self) -> None:
        """Asks the system to write its pages and give up their memory; those being written go at the next call."""
        self._mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def checksum(self, segment: int, num_records: int) -> int:
        """CRC-32 of the first records of a segment."""
        first, num_bytes = segment * self._segment_bytes, num_records * self._record_words * 4
        crc = 0
        with memoryview(self._mapped) as view:
            for begin in range(first, first + num_bytes, _CHECKSUM_CHUNK_BYTES):
                crc = zlib.crc32(view[begin : min(begin + _CHECKSUM_CHUNK_BYTES, first + num_bytes)], crc)
        return crc

    def row_ids(self, segment: int, num_records: int) -> Int64:
        out = np.empty(num_records, np.int64)
        read_row_ids(self._records, self._first(segment), out)
        return out

    def copy_words(self, segment: int, order: Int64) -> Float32:
        """The words of some records of a segment, one after the other, without their ids."""
        out = np.empty((len(order), self._record_words - HEADER_WORDS), np.float32)
        _copy_words(self._records, order + self._first(segment), out)
        return out

    def release(self, segment: int) -> None:
        """The records of a sealed segment are in the base: reads find them there. Its space stays for the next one."""
        with self._lock:
            self._index.drop(self._first(segment), self._first(segment + 1))

    def rewind(self, sealed: tuple[int, int] | None) -> None:
        """Forgets all records, except those of a sealed segment (number, records), which are found again."""
        with self._lock:
            self._index.clear()
            if sealed is not None:
                segment, num_records = sealed
                self.segment = (segment + 1) % NUM_SEGMENTS
                self._index.insert(self.row_ids(segment, num_records), self._first(segment))
            self._end = self._first(self.segment)

    def discard(self) -> None:
        """Forgets everything and gives the space back. Only when no segment is sealed."""
        self.rewind(None)
        os.ftruncate(self._descriptor, 0)
        os.ftruncate(self._descriptor, self._num_bytes)
        self._reserved_bytes = [0] * NUM_SEGMENTS

    def close(self, *, keep: bool) -> None:
        """Ends the mapping; `keep` leaves the records in the file, for a commit that has to be finished."""
        self._records = np.zeros((0, self._record_words), np.float32)
        with suppress(BufferError):  # a reader's view keeps the mapping until it goes
            self._mapped.close()
        if not keep:
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)
