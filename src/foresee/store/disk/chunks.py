"""`log.bin`: rows in chunks, written once each; and `chunks-N.bin`, the list of the chunks that a seal has rows in.

A chunk is a header (what it is, its sequence number, ids and versions of its rows, a crc32c of all that) and rows, each
followed by the crc32c of its id and content. It is encoded by a kernel and written directly, many at once. Positions
count rows through all chunks. What is read is checked: a row that is not what was written is a sentence with its name.
Which chunks are in use is known to `disk/log.py`.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int32, Int64
from foresee.errors import StoreError
from foresee.io.direct import Transfers, Way
from foresee.io.disk_stats import Moved
from foresee.io.files import Files
from foresee.store.contract import Rows
from foresee.store.disk.index import RowIndex
from foresee.store.disk.manifest import Chunks
from foresee.store.kernels import NO_CRC, Bits, crc_of_words, read_only, take_rows
from foresee.store.layout import Layout, row_name

NUM_THREADS = 16

PROBE_ROWS_MIN = 64
"""Rows copied before looking at the page faults for the first time; then twice as many, and so on."""

PROBE_ROWS_MAX = 4096

COLD_SHARE = 1 / 16
"""Share of rows that waited for the disk above which the rest of a request goes to the threads."""

PIECES_PER_THREAD = 4

PIECE_ROWS_MIN = 64


def _num_disk_waits() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt


class ParallelCopy:
    """Runs copy functions over ranges, with threads if they are worth it."""

    def __init__(self, num_threads: int = NUM_THREADS) -> None:
        self._num_threads = num_threads
        self._pool: ThreadPoolExecutor | None = None

    def run(self, copy: Callable[[int, int], None], num_rows: int) -> None:
        """Calls copy(begin, end) on ranges that together are 0..num_rows, and returns when all are done."""
        begin, probe = 0, PROBE_ROWS_MIN
        while begin < num_rows:
            end = min(begin + probe, num_rows)
            before = _num_disk_waits()
            copy(begin, end)
            waits = _num_disk_waits() - before
            if self._num_threads > 1 and waits > COLD_SHARE * (end - begin):
                self.run_threads(copy, end, num_rows)
                return
            begin, probe = end, min(2 * probe, PROBE_ROWS_MAX)

    def run_threads(self, copy: Callable[[int, int], None], begin: int, end: int) -> None:
        """The same with all threads at once."""
        piece = max(PIECE_ROWS_MIN, -(-(end - begin) // (self._num_threads * PIECES_PER_THREAD)))
        if end - begin <= piece:
            copy(begin, end)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="foresee-disk")
        starts = range(begin, end, piece)
        # list() waits for all, and raises what the first failed one raised.
        list(self._pool.map(lambda start: copy(start, min(start + piece, end)), starts))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


LOG_FILE = "log.bin"

CHUNK_BYTES_MAX = 1 << 17

CHUNK_BYTES_MIN = 1 << 14

_CHUNKS_OF_A_TABLE = 1 << 6
"""Small tables have smaller chunks, so that a few rows do not take much space."""

_BLOCK = 4096

_MAGIC = 0x6B6E7568632D7366

_FIELDS = 8
"""int64 before the ids: magic, sequence, rows, words of a row, checksum, and three that are 0."""

WRITE_BYTES = 1 << 22

_HEADERS_AT_ONCE = 256

_NO_CRCS = np.zeros(0, np.uint32)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a chunk looks."""

    chunk_bytes: int
    chunk_rows: int
    header_bytes: int
    row_words: int

    @classmethod
    def of(cls, layout: Layout, chunk_bytes: int) -> Shape:
        record_bytes, ids = layout.row_bytes + 4, 8 * _FIELDS
        chunk_bytes = max(chunk_bytes, _rounded(ids + _BLOCK + 4 * (record_bytes + 12)))
        chunk_rows = (chunk_bytes - ids) // (record_bytes + 12)
        while _rounded(ids + 12 * chunk_rows) + chunk_rows * record_bytes > chunk_bytes:
            chunk_rows -= 1
        return cls(chunk_bytes, chunk_rows, _rounded(ids + 12 * chunk_rows), layout.row_bytes // 4)

    @property
    def record_bytes(self) -> int:
        return 4 * (self.row_words + 1)

    def written_bytes(self, num_rows: int) -> int:
        """What a chunk with so many rows takes of its place, in whole blocks."""
        return _rounded(self.header_bytes + num_rows * self.record_bytes)

    def starts(self, positions: Int64) -> Int64:
        """Where rows at these positions begin in the file."""
        starts = np.empty(len(positions), np.int64)
        _starts(positions, self.chunk_rows, self.chunk_bytes, self.header_bytes, self.record_bytes, starts)
        return starts


def chunk_bytes_for(layout: Layout) -> int:
    """The size of chunks for new tables."""
    share = layout.num_rows * layout.row_bytes // _CHUNKS_OF_A_TABLE
    return min(max(_rounded(share), CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


def _rounded(num_bytes: int) -> int:
    return -(-num_bytes // _BLOCK) * _BLOCK


@numba.njit(nogil=True, cache=True)
def _starts(
    positions: Int64, chunk_rows: int, chunk_bytes: int, header_bytes: int, record_bytes: int, out: Int64
) -> None:
    for k in range(len(positions)):
        chunk = positions[k] // chunk_rows
        out[k] = chunk * chunk_bytes + header_bytes + (positions[k] - chunk * chunk_rows) * record_bytes


@numba.njit(nogil=True, cache=True)
def _header_crc(ints: Int32, num_rows: int, versions_at: int) -> int:
    crc = crc_of_words(0, ints, 0, 8)
    crc = crc_of_words(crc, ints, 2 * _FIELDS, 2 * _FIELDS + 2 * num_rows)
    return int(crc_of_words(crc, ints, versions_at, versions_at + num_rows))


@numba.njit(nogil=True, cache=True)
def _encode(
    slots: Int64,
    recent_rows: Int64,
    recent_words: Float32,
    sequence: int,
    chunk_rows: int,
    header_bytes: int,
    out: Int64,
) -> None:
    ints, words, row_words = out.view(np.int32), out.view(np.float32), recent_words.shape[1]
    versions_at = 2 * (_FIELDS + chunk_rows)
    for k in range(header_bytes // 8):
        out[k] = 0
    out[0], out[1], out[2], out[3] = _MAGIC, sequence, len(slots), row_words
    at = header_bytes // 4
    for k in range(len(slots)):
        slot = slots[k]
        for i in range(row_words):
            words[at + i] = recent_words[slot, i]
        out[_FIELDS + k] = recent_rows[slot]
        ints[versions_at + k] = ints[at + row_words - 1]
        ints[at + row_words] = np.int32(np.uint32(crc_of_words(recent_rows[slot], ints, at, at + row_words)))
        at += row_words + 1
    out[4] = _header_crc(ints, len(slots), versions_at)


@numba.njit(nogil=True, cache=True)
def _encode_all(
    order: Int64,
    recent_rows: Int64,
    recent_words: Float32,
    sequence: int,
    chunk_rows: int,
    header_bytes: int,
    chunk_bytes: int,
    out: Int64,
) -> None:
    """One chunk after the other."""
    for k in range(-(-len(order) // chunk_rows)):
        slots = order[k * chunk_rows : (k + 1) * chunk_rows]
        content = out[k * (chunk_bytes // 8) : (k + 1) * (chunk_bytes // 8)]
        _encode(slots, recent_rows, recent_words, sequence, chunk_rows, header_bytes, content)


@numba.njit(nogil=True, cache=True)
def _is_header(header: Int64, sequence: int, num_rows: int, row_words: int, chunk_rows: int) -> bool:
    if header[0] != _MAGIC or header[1] != sequence or header[2] != num_rows or header[3] != row_words:
        return False
    return num_rows <= chunk_rows and header[4] == _header_crc(
        header.view(np.int32), num_rows, 2 * (_FIELDS + chunk_rows)
    )


class ChunkFile:
    """The chunks of one folder."""

    def __init__(self, folder: Path, layout: Layout, shape: Shape, way: Way, files: Files, *, writable: bool) -> None:
        self.path, self.shape = folder / LOG_FILE, shape
        self._layout, self._way, self._files = layout, way, files
        direct = os.O_DIRECT if way.direct else 0
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        self.descriptor = os.open(self.path, flags | direct, 0o644)
        self._num_bytes = os.fstat(self.descriptor).st_size
        self._mapped: mmap.mmap | None = None
        self.syncs, self.sync_seconds = 0, 0.0
        self._parallel = ParallelCopy()
        self._writes = Transfers(way, WRITE_BYTES) if writable else None

    @property
    def num_chunks(self) -> int:
        return self._num_bytes // self.shape.chunk_bytes

    @property
    def written(self) -> Moved:
        """What was written."""
        return Moved() if self._writes is None else self._writes.moved

    def extend(self, num_chunks: int) -> None:
        """Takes disk space for so many chunks more; OSError if there is none, and nothing has changed."""
        begin = self.num_chunks * self.shape.chunk_bytes
        self._files.reserve(self.descriptor, begin, num_chunks * self.shape.chunk_bytes)
        self._num_bytes = begin + num_chunks * self.shape.chunk_bytes

    def write(self, order: Int64, recent: tuple[Int64, Float32], chunks: Int64, sequence: int) -> None:
        """Writes slots `order` of what was collected in memory, one chunk after the other into these chunks."""
        assert self._writes is not None, "opened for writing"
        shape, buffer = self.shape, self._writes.buffer
        if len(buffer) < shape.chunk_bytes:
            self._writes.resize(shape.chunk_bytes)
            buffer = self._writes.buffer
        at_once = len(buffer) // shape.chunk_bytes
        for first in range(0, len(chunks), at_once):
            some = chunks[first : first + at_once]
            slots = order[first * shape.chunk_rows : (first + at_once) * shape.chunk_rows]
            _encode_all(
                slots, *recent, sequence, shape.chunk_rows, shape.header_bytes, shape.chunk_bytes, buffer.view(np.int64)
            )
            lengths = np.full(len(some), shape.written_bytes(shape.chunk_rows))
            lengths[-1] = shape.written_bytes(len(slots) - (len(some) - 1) * shape.chunk_rows)
            places = buffer.ctypes.data + shape.chunk_bytes * np.arange(len(some), dtype=np.int64)
            self._files.write_pieces(self._writes, self.descriptor, some * shape.chunk_bytes, lengths, places)

    def sync(self) -> None:
        begun = time.perf_counter()
        self._files.sync(self.descriptor)
        self.syncs += 1
        self.sync_seconds += time.perf_counter() - begun

    def read(self, positions: Int64, picks: Int64, rows: Int64, out: Rows, reads: Transfers) -> None:
        """Rows rows[picks] of a request, which are at these positions."""
        bad: list[int] = []

        def take(words: Float32, at: Int64, which: Int64) -> None:
            wanted = picks[which]

            def copy(begin: int, end: int) -> None:
                found = take_rows(
                    words, at, wanted, rows, _NO_CRCS, True, out.values, out.state, out.versions, begin, end
                )
                if found >= 0:
                    bad.append(found)

            if self._way.direct:
                copy(0, len(at))
            else:
                reads.moved.copied(self._parallel.run, copy, len(at), self.shape.record_bytes)

        starts = self.shape.starts(positions)
        if self._way.direct:
            reads.read(self.descriptor, starts, self.shape.record_bytes, take)
        elif len(positions):
            whole = starts + self.shape.record_bytes <= os.fstat(self.descriptor).st_size
            if whole.all():
                take(self._words(), starts // 4, np.arange(len(positions)))
            else:
                bad.append(int(picks[np.flatnonzero(~whole)[0]]))
        if bad:
            raise damaged_row(self._layout, int(rows[bad[0]]), self.path)

    def headers(self, entries: Int64) -> Iterator[tuple[int, Int64, Int32]]:
        """Chunk, ids and versions for each entry of a directory, in its order."""
        shape = self.shape
        with open(self.path, "rb") as stream:
            for begin in range(0, len(entries), _HEADERS_AT_ONCE):
                for chunk, sequence, num_rows in entries[begin : begin + _HEADERS_AT_ONCE].tolist():
                    stream.seek(chunk * shape.chunk_bytes)
                    header = np.frombuffer(stream.read(shape.header_bytes).ljust(shape.header_bytes, b"\0"), np.int64)
                    if not _is_header(header, sequence, num_rows, shape.row_words, shape.chunk_rows):
                        raise StoreError(
                            f"{self.path} is damaged: chunk {chunk} is not the one that was written as number "
                            f"{sequence} with {num_rows} rows; restore the folder from a copy"
                        )
                    versions = header.view(np.int32)[2 * (_FIELDS + shape.chunk_rows) :][:num_rows]
                    ids = header[_FIELDS : _FIELDS + num_rows]
                    if num_rows and (int(ids.min()) < 0 or int(ids.max()) >= self._layout.num_rows):
                        raise StoreError(f"{self.path} has rows of other tables; restore the folder from a copy")
                    yield chunk, ids, versions

    def truncate(self) -> None:
        """No chunk is needed: gives the space back."""
        self._mapped = None
        os.ftruncate(self.descriptor, 0)
        self._num_bytes = 0

    def forget_pages(self) -> None:
        """Asks the system to give up the memory in which it keeps the file."""
        if self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._mapped = None
        self._parallel.close()
        if self._writes is not None:
            self._writes.close()
        os.close(self.descriptor)

    def _words(self) -> Float32:
        """The file as it is now."""
        num_bytes = os.fstat(self.descriptor).st_size // 4 * 4
        mapped = self._mapped
        if mapped is None or len(mapped) < num_bytes:
            mapped = mmap.mmap(self.descriptor, num_bytes, access=mmap.ACCESS_READ)
            mapped.madvise(mmap.MADV_RANDOM)
            self._mapped = mapped
        words: Float32 = read_only(np.frombuffer(mapped, np.float32))
        return words


def listed_rows(folder: Path, layout: Layout, chunk_bytes: int, chunks: Chunks) -> Int64:
    """All rows of the chunks that a commit lists, ascending."""
    file = ChunkFile(folder, layout, Shape.of(layout, chunk_bytes), Way("mapped"), Files(), writable=False)
    try:
        found = [ids for _, ids, _ in file.headers(read_directory(folder, chunks))]
    finally:
        file.close()
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))


def check_chunks(folder: Path, layout: Layout, chunk_bytes: int, chunks: Chunks) -> str:
    """Looks at every row of the chunks that a commit lists; raises StoreError for the first that is damaged."""
    entries, way = read_directory(folder, chunks), Way("mapped")
    file, reads, num_rows = None, Transfers(way, 0), 0
    try:
        file = ChunkFile(folder, layout, Shape.of(layout, chunk_bytes), way, Files(), writable=False)
        for chunk, ids, _ in file.headers(entries):
            positions = chunk * file.shape.chunk_rows + np.arange(len(ids))
            file.read(positions, np.arange(len(ids)), ids, Rows.empty(len(ids), layout), reads)
            num_rows += len(ids)
    finally:
        reads.close()
        if file is not None:
            file.close()
    return f"{num_rows:,} rows in {len(entries):,} chunks, every checksum right"


def damaged_row(layout: Layout, row: int, path: Path) -> StoreError:
    """The sentence for a row whose checksum is another."""
    return StoreError(
        f"{path} is damaged: {row_name(layout, row)} has another checksum than when it was written; check the disk, "
        "then restore the folder from a copy"
    )


def damaged_bits(path: Path, layout: Layout, bits: Bits, crcs: NDArray[np.uint32] | None) -> StoreError:
    """The sentence for bits that are not what was written. A row is named if it is the only one of which bits and
    checksums tell different things."""
    suspects: Int64 = np.empty(0, np.int64)
    if crcs is not None:
        suspects = np.flatnonzero((np.unpackbits(bits, bitorder="little")[: layout.num_rows] == 1) != (crcs != NO_CRC))
    which = row_name(layout, int(suspects[0])) if len(suspects) == 1 else "some row"
    return StoreError(
        f"{path} is damaged: it has another checksum than when it was written, and whether {which} was ever written "
        "cannot be told; check the disk, then restore the folder from a copy"
    )


def directory_path(folder: Path, number: int) -> Path:
    return folder / f"chunks-{number}.bin"


def write_directory(folder: Path, number: int, entries: Int64, files: Files) -> Chunks:
    """Lists chunks (chunk, sequence, rows), in the order of their sequence."""
    content = entries.tobytes()
    files.publish(directory_path(folder, number), content)
    return Chunks(number=number, num_chunks=len(entries), crc32=zlib.crc32(content))


def read_directory(folder: Path, chunks: Chunks | None) -> Int64:
    """What was listed; refuses a file that is not the one that was written."""
    if chunks is None:
        return np.empty((0, 3), np.int64)
    path = directory_path(folder, chunks.number)
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: this table folder is incomplete; restore it from a copy") from None
    if len(content) != 24 * chunks.num_chunks or zlib.crc32(content) != chunks.crc32:
        raise StoreError(
            f"{path} is damaged: it has {len(content):,} bytes and checksum {zlib.crc32(content):08x} where "
            f"{24 * chunks.num_chunks:,} and {chunks.crc32:08x} are expected; restore the folder from a copy"
        )
    return np.frombuffer(content, np.int64).reshape(-1, 3)


def load(file: ChunkFile, entries: Int64, index: RowIndex) -> None:
    """Fills an empty index with what a directory lists."""
    if len(entries):
        index.grow(int(entries[:, 0].max()) + 1)
    for chunk, ids, versions in file.headers(entries):
        index.insert(ids, versions, chunk * file.shape.chunk_rows)


def live_rows(file: ChunkFile, entries: Int64, index: RowIndex) -> tuple[Int64, Int64]:
    """Rows of the listed chunks that are live there, ascending, and their positions."""
    rows, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for chunk, ids, _ in file.headers(entries):
        first = chunk * file.shape.chunk_rows
        live = np.flatnonzero(index.points_into(ids, first))
        rows.append(ids[live])
        positions.append(first + live)
    found, places = np.concatenate(rows), np.concatenate(positions)
    order = np.argsort(found)
    return found[order], places[order]


def as_sequence(entries: NDArray[np.int64]) -> Int64:
    """A directory in the order in which its chunks were written."""
    ordered: Int64 = np.ascontiguousarray(entries[np.argsort(entries[:, 1], kind="stable")])
    return ordered
