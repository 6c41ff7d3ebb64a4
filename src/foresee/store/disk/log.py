"""The log of a table folder: rows written since the last fold, found by an index, laid down by their next use.

In: rows with the steps at which they are needed next. They are collected in memory, and when that is full sorted by
those steps and written as chunks: what one step needs is then one neighbourhood of the file. Out: rows again, wherever
they are. A chunk without live rows is used again once no commit that can be opened lists it and no read is under way;
when less than half of the rows in chunks are live, the emptiest are written anew. `seal` makes everything durable.

One thread writes while another reads other rows; the lock here is held for lookups and copies in memory alone.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.io.direct import BUFFER_BYTES, Transfers
from foresee.io.files import Files
from foresee.plan.record import NOT_KNOWN
from foresee.store.contract import Rows
from foresee.store.disk.chunks import (
    WRITE_BYTES,
    ChunkFile,
    Shape,
    as_sequence,
    damaged_row,
    live_rows,
    load,
    read_directory,
    write_directory,
)
from foresee.store.disk.index import PLACES_MAX, RowIndex
from foresee.store.disk.manifest import Chunks
from foresee.store.kernels import Bits
from foresee.store.layout import Layout

RECENT_BYTES = 1 << 25
"""Memory in which written rows are collected."""
LIVE_SHARE = 0.5
"""Chunks are written anew when less than this share of their rows is live."""
RECENT_ROWS_MIN = 64
_EXTEND_CHUNKS_MAX = 512
_COMPACT_CHUNKS_MIN = 16


def recent_rows_of(layout: Layout) -> int:
    """Rows that are collected in memory."""
    return min(layout.num_rows, max(RECENT_ROWS_MIN, RECENT_BYTES // (layout.row_bytes + 12)))


def log_memory_bytes(layout: Layout) -> int:
    """Memory that index, known checksums, collected rows and buffers of an open folder take at most."""
    return 8 * layout.num_rows + recent_rows_of(layout) * (layout.row_bytes + 12) + log_buffer_bytes(layout)


def log_buffer_bytes(layout: Layout) -> int:
    """What of it is not taken at once: known checksums, and buffers while rows are read or written."""
    return min(BUFFER_BYTES + WRITE_BYTES + 4 * layout.num_rows, 2 * layout.num_rows * layout.row_bytes)


class RowLog:
    """Rows that are not in the base yet."""

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        chunk_bytes: int,
        files: Files,
        reads: Transfers,
        reader: threading.Lock,
        *,
        writable: bool = True,
        file: ChunkFile | None = None,
    ) -> None:
        self._folder, self._layout, self._files = folder, layout, files
        self.reader, self.reads = reader, reads
        shape = Shape.of(layout, chunk_bytes)
        recent_rows = recent_rows_of(layout) if writable else 1
        self.index = RowIndex(layout.num_rows, shape.row_words, recent_rows, shape.chunk_rows)
        self.file = file or ChunkFile(folder, layout, shape, reads.way, files, writable=writable)
        self._lock = threading.Lock()
        self._chunks = np.zeros((0, 3), np.int64)
        """What each chunk of the file was last written as: itself, sequence, rows."""
        self._free = np.empty(0, np.int64)
        self._kept: dict[int, Int64] = {}
        """Chunks that openable commits list, by the number of their directory."""
        self._sequence = 0
        self._number = max((_number(path) for path in folder.glob("chunks-*.bin")), default=0)
        self._changed = False
        self._grow()

    @property
    def changed(self) -> bool:
        """Rows were written since the last seal."""
        return self._changed

    def read(self, rows: Int64, written: Bits, out: Rows) -> tuple[Int64, Int64]:
        """Fills in what is here, with the reader's lock held; which rows are in the base, and which are initial."""
        with self._lock:
            found = self.index.look_up(rows, written, out)
        if len(found.logged):
            self.file.read(found.positions, found.logged, rows, out, self.reads)
            # An older record of the same row has a right checksum, too.
            older = out.versions[found.logged] != found.versions
            if older.any():
                raise damaged_row(self._layout, int(rows[found.logged[older][0]]), self.file.path)
        return found.in_base, found.initial

    def missing_bytes(self, num_rows: int) -> int:
        """Bytes that must be reserved before so many rows can be written."""
        return max(0, self._chunks_for(num_rows) - len(self._free)) * self.file.shape.chunk_bytes

    def reserve(self, num_rows: int) -> None:
        """Takes disk space for so many rows more; OSError if there is none, and nothing has changed."""
        if not self.missing_bytes(num_rows):
            return
        with self.reader:  # a read that is under way may still look into a chunk whose rows were written anew since
            self._reclaim()
        missing = self._chunks_for(num_rows) - len(self._free)
        if missing > 0:
            try:
                self.file.extend(max(missing, min(self.file.num_chunks // 4, _EXTEND_CHUNKS_MAX)))
            except OSError:
                self.file.extend(missing)
            before = len(self._chunks)
            self._grow()
            self._free = np.concatenate([self._free, np.arange(before, len(self._chunks))])

    def write(self, rows: Int64, source: Rows, next_use: Int32 | None, floors: Int32) -> int:
        """Assigns rows for which space is reserved, except older ones; returns their highest version."""
        if next_use is None:
            next_use = np.full(len(rows), NOT_KNOWN, np.int32)
        position = version_max = 0
        flushed = False
        while True:
            with self._lock:
                position, version = self.index.assign(rows, source, next_use, floors, position)
            version_max = max(version_max, version)
            self._changed = True
            if position == len(rows):
                break
            self.flush()
            flushed = True
        if flushed:
            self.compact()
        return version_max

    def flush(self) -> None:
        """Writes what was collected in memory, in the order in which it will be needed."""
        order = self.index.by_next_use()
        if not len(order):
            return
        shape = self.file.shape
        num_chunks = -(-len(order) // shape.chunk_rows)
        chunks, self._free = self._free[:num_chunks], self._free[num_chunks:]
        assert len(chunks) == num_chunks, "space is reserved before"
        self._sequence += 1
        self.file.write(order, self.index.recent, chunks, self._sequence)
        place = np.arange(len(order))
        positions = chunks[place // shape.chunk_rows] * shape.chunk_rows + place % shape.chunk_rows
        self._chunks[chunks, 1] = self._sequence
        self._chunks[chunks, 2] = np.bincount(place // shape.chunk_rows)
        with self._lock:
            self.index.move_to_log(order, positions)

    def compact(self) -> None:
        """Takes the live rows of the emptiest chunks into memory again, if chunks hold little that is live."""
        shape, live = self.file.shape, self.index.live
        used = np.flatnonzero(live)
        if len(used) < _COMPACT_CHUNKS_MIN or live.sum() >= LIVE_SHARE * len(used) * shape.chunk_rows:
            return
        emptiest = used[np.argsort(live[used])][: len(used) // 2]
        room = (self.index.capacity - self.index.count) // 2
        emptiest = emptiest[np.cumsum(live[emptiest]) <= room]
        if not len(emptiest):
            return
        rows, positions = live_rows(self.file, self._chunks[emptiest], self.index)
        with suppress(OSError):  # a full disk: then not now
            self.reserve(len(rows))
            moved = Rows.empty(len(rows), self._layout)
            with self.reader:
                self.file.read(positions, np.arange(len(rows)), rows, moved, self.reads)
            self.write(rows, moved, None, np.zeros(len(rows), np.int32))

    def seal(self) -> Chunks | None:
        """Everything written so far is on the disk, and a list of where it is."""
        self.compact()
        self.flush()
        self.file.sync()
        entries = self.entries()
        self._changed = False
        if not len(entries):
            return None
        self._number += 1
        chunks = write_directory(self._folder, self._number, entries, self._files)
        self._kept[chunks.number] = entries
        return chunks

    def entries(self) -> Int64:
        """Chunks with live rows, in the order in which they were written."""
        return as_sequence(self._chunks[np.flatnonzero(self.index.live)])

    def show(self, chunks: Chunks | None) -> None:
        """Forgets everything but what a seal has. Nobody reads meanwhile."""
        entries = self.look(chunks)
        with self._lock:
            self.index.clear()
            load(self.file, entries, self.index)
            self._free = np.empty(0, np.int64)
        self._changed = False

    def look(self, chunks: Chunks | None) -> Int64:
        """The list of a seal, which is kept from now on."""
        entries = read_directory(self._folder, chunks)
        if chunks is not None:
            self._grow(int(entries[:, 0].max(initial=-1)) + 1)
            self._chunks[entries[:, 0]] = entries
            self._sequence = max(self._sequence, int(entries[:, 1].max(initial=0)))
            self._kept[chunks.number] = entries
        return entries

    def check(self, chunks: Chunks | None) -> None:
        """Raises StoreError if a seal is not whole."""
        for _ in self.file.headers(self.look(chunks)):
            pass

    def keep(self, openable: Iterable[Chunks | None]) -> None:
        """Only these can be opened from now on; the lists of all others go."""
        numbers = {chunks.number for chunks in openable if chunks is not None}
        self._kept = {number: entries for number, entries in self._kept.items() if number in numbers}
        for path in self._folder.glob("chunks-*.bin"):
            if _number(path) not in numbers:
                with suppress(OSError):
                    path.unlink()
        for path in self._folder.glob("chunks-*.draft"):
            with suppress(OSError):
                path.unlink()

    def clear(self) -> None:
        """All rows are in the base. Nobody reads meanwhile."""
        with self._lock:
            self.index.clear()
            self._free = np.empty(0, np.int64)
            self._chunks = self._chunks[:0]
            self.file.truncate()
        self._changed = False

    def close(self) -> None:
        self.file.close()

    def _chunks_for(self, num_rows: int) -> int:
        """Chunks that what is in memory and so many rows more take at most; each flush may end with a part of one."""
        flushes = num_rows // self.index.capacity + 1
        return -(-(self.index.count + num_rows) // self.file.shape.chunk_rows) + flushes

    def _reclaim(self) -> None:
        unused = self.index.live[: len(self._chunks)] == 0
        for entries in self._kept.values():
            unused[entries[:, 0]] = False
        self._free = np.flatnonzero(unused)

    def _grow(self, num_chunks: int = 0) -> None:
        num_chunks = max(num_chunks, self.file.num_chunks, len(self._chunks))  # a file may have been cut
        if self.index.capacity + num_chunks * self.file.shape.chunk_rows > PLACES_MAX:
            raise OSError(27, f"the log of {self._folder} would have more than {PLACES_MAX:,} rows; fold it")
        more = np.zeros((num_chunks - len(self._chunks), 3), np.int64)
        more[:, 0] = np.arange(len(self._chunks), num_chunks)
        self._chunks = np.concatenate([self._chunks, more])
        self.index.grow(num_chunks)


def _number(path: Path) -> int:
    found = re.fullmatch(r"chunks-(\d{1,18})\.bin", path.name)
    return int(found.group(1)) if found else 0
