"""The base of a table folder: `rows.npy`, the rows as of the last fold, and `written.npy`, which of them are there.

`rows.npy` is one structured array (value, state, version) that numpy.load(mmap_mode="r") opens; it is sparse, and a row
that was never written is a hole. `checksums.npy` has the crc32c of each row (see `checksums`). Rows are read directly
or through a mapping and written with pwrite: a write into a hole of a full disk is then an error and not a signal. The
files change only while the log (or an initial value) can redo the change, so a crash at any point leaves nothing to
repair but to write the same bytes again.
"""

from __future__ import annotations

import mmap
import os
import tokenize
import zlib
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.errors import StoreError
from foresee.io.direct import Transfers, Way
from foresee.io.files import Files, Sequence
from foresee.store.contract import Rows
from foresee.store.disk.checksums import CHECKSUMS_FILE, KnownChecksums, lost_checksum, row_checksums
from foresee.store.disk.chunks import ParallelCopy, damaged_bits, damaged_row
from foresee.store.kernels import (
    NO_CRC,
    Bits,
    Initial,
    clear_bits,
    fill_initial_row,
    initial_of,
    is_set,
    read_only,
    set_bits,
    take_rows,
)
from foresee.store.layout import Layout

ROWS_FILE = "rows.npy"
WRITTEN_FILE = "written.npy"
VALUE_FIELDS = {"float32": ("value", "<f4"), "float16": ("value", "<f2"), "bfloat16": ("value_bfloat16", "<u2")}
BLOCK_BYTES = 4096
UNREADABLE_HEADER = (
    ValueError,
    TypeError,
    SyntaxError,
    EOFError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
    DeprecationWarning,
)
"""What numpy raises on bytes that are no header of an array; it reads them as a literal and never runs them."""
_INITIALISE_BYTES = 1 << 23
NO_ROWS: Int64 = read_only(np.empty(0, np.int64))


def row_dtype(layout: Layout) -> np.dtype[Any]:
    """One row in `rows.npy`. numpy has no bfloat16: its bits are uint16, under a name that says so."""
    name, kind = VALUE_FIELDS[layout.dtype]
    odd = [("padding", "<u2", (1,))] if layout.dtype != "float32" and layout.width % 2 else []
    return np.dtype([(name, kind, (layout.width,)), *odd, ("state", "<f4", (layout.state_width,)), ("version", "<i4")])


def create_base(folder: Path, layout: Layout, files: Files) -> None:
    """Makes the two files: the rows a hole, the bits all zero and their space taken."""
    _create_array(folder / ROWS_FILE, row_dtype(layout), layout.num_rows, files, reserve=False)
    _create_array(folder / WRITTEN_FILE, np.dtype("u1"), (layout.num_rows + 7) // 8, files, reserve=True)
    _create_array(folder / CHECKSUMS_FILE, np.dtype("<u4"), layout.num_rows, files, reserve=False)


def add_checksums(folder: Path, layout: Layout, files: Files) -> None:
    """Gives a folder of an older format a place for checksums; none of its rows has one yet."""
    path = folder / CHECKSUMS_FILE
    if not path.exists():
        draft = path.with_name(path.name + ".draft")
        _create_array(draft, np.dtype("<u4"), layout.num_rows, files, reserve=False)
        files.replace(draft, path)
        files.sync_folder(folder)


def _create_array(path: Path, dtype: np.dtype[Any], length: int, files: Files, *, reserve: bool) -> None:
    with open(path, "wb") as stream:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (length,)}
        np.lib.format.write_array_header_1_0(stream, header)
        stream.flush()
        begin, num_bytes = stream.tell(), length * dtype.itemsize
        os.ftruncate(stream.fileno(), begin + num_bytes)
        if reserve:
            files.reserve(stream.fileno(), begin, num_bytes)
        files.sync(stream.fileno())


def open_array(path: Path, dtype: np.dtype[Any], length: int, flags: int) -> tuple[int, int]:
    """Descriptor and offset of the data of an .npy file that holds exactly this array."""
    try:
        with open(path, "rb") as stream:
            version = np.lib.format.read_magic(stream)
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else None
            shape, _, found = read_header(stream) if read_header else ((), False, None)
            offset, num_bytes = stream.tell(), os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: this table folder is incomplete; restore it from a copy") from None
    except UNREADABLE_HEADER as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(f"{path} is damaged ({reason}); restore it from a copy") from error
    if shape != (length,) or found != dtype:
        raise StoreError(f"{path} holds {shape} of {found}, but layout.json says ({length},) of {dtype}; restore it")
    if num_bytes != offset + length * dtype.itemsize:
        raise StoreError(
            f"{path} has {num_bytes} bytes where {offset + length * dtype.itemsize} are expected: it was cut off; "
            "restore it from a copy"
        )
    return os.open(path, flags), offset


@numba.njit(nogil=True, cache=True)
def _fill_block(begin: int, value_words: int, base: Float32, written: Bits, initial: Initial, out: Float32) -> None:
    """Rows from `begin` on, as they are, or with their initial values where they were never written."""
    for k in range(out.shape[0]):
        row = begin + k
        if is_set(written, row):
            for i in range(out.shape[1]):
                out[k, i] = base[row, i]
        else:
            fill_initial_row(initial, row, out, k)
            for i in range(value_words, out.shape[1]):
                out[k, i] = 0.0


class Base:
    """The rows of a table folder that are not in its log.

    Args:
        all_checked: Every written row has a checksum. False for folders of older formats, where some may have none.
    """

    def __init__(
        self, folder: Path, layout: Layout, files: Files, way: Way, *, writable: bool = True, all_checked: bool = True
    ) -> None:
        self._path, self._files, self._layout, self._way = folder / ROWS_FILE, files, layout, way
        self._all_checked = all_checked
        flags, bits_type, crc_type = os.O_RDWR if writable else os.O_RDONLY, np.dtype("u1"), np.dtype("<u4")
        self._descriptors: list[int] = []
        try:
            self._rows_descriptor, self._rows_offset = self._open(ROWS_FILE, row_dtype(layout), layout.num_rows, flags)
            bits, bits_offset = self._open(WRITTEN_FILE, bits_type, (layout.num_rows + 7) // 8, flags)
            self._crc_descriptor, self._crc_offset = -1, 0
            if writable or all_checked or (folder / CHECKSUMS_FILE).exists():
                self._crc_descriptor, self._crc_offset = self._open(CHECKSUMS_FILE, crc_type, layout.num_rows, flags)
            self._direct = [self._open_direct(name) for name in (ROWS_FILE, CHECKSUMS_FILE)] if way.direct else []
        except (StoreError, OSError):
            self._close_files()
            raise
        self._bits_descriptor = bits
        self._rows_map = _random_map(self._rows_descriptor)
        self._crc_map = None if self._crc_descriptor < 0 else _random_map(self._crc_descriptor)
        self._bits_map = mmap.mmap(bits, 0, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self._file_words: Float32 = read_only(np.frombuffer(self._rows_map, np.float32))
        self.words: Float32 = self._file_words[self._rows_offset // 4 :].reshape(layout.num_rows, -1)
        """[rows, words of a row], for reading only and unchecked."""
        self._bits: Bits = np.frombuffer(self._bits_map, np.uint8, offset=bits_offset)
        self._parallel = ParallelCopy()
        self._known_crcs = KnownChecksums(layout.num_rows if way.direct else 0)

    def _open(self, name: str, dtype: np.dtype[Any], length: int, flags: int) -> tuple[int, int]:
        descriptor, offset = open_array(self._path.with_name(name), dtype, length, flags)
        self._descriptors.append(descriptor)
        return descriptor, offset

    def _open_direct(self, name: str) -> int:
        path = self._path.with_name(name)
        if not path.exists():
            return -1
        self._descriptors.append(os.open(path, os.O_RDONLY | os.O_DIRECT))
        return self._descriptors[-1]

    def read(self, picks: Int64, rows: Int64, out: Rows, reads: Transfers) -> None:
        """Rows rows[picks] of a request, which are written here, each checked."""
        if not len(picks):
            return
        wanted, bad = rows[picks], list[int]()
        crcs = np.zeros(len(rows), np.uint32)
        crcs[picks] = self._crcs_of(wanted, reads)

        def take(words: Float32, at: Int64, which: Int64) -> None:
            picked = picks[which]

            def copy(begin: int, end: int) -> None:
                found = take_rows(
                    words, at, picked, rows, crcs, self._all_checked, out.values, out.state, out.versions, begin, end
                )
                if found >= 0:
                    bad.append(found)

            if self._way.direct:
                copy(0, len(at))
            else:
                reads.moved.copied(self._parallel.run, copy, len(at), self._layout.row_bytes)

        starts = self._rows_offset + wanted * self._layout.row_bytes
        if self._way.direct:
            reads.read(self._direct[0], starts, self._layout.row_bytes, take)
        else:
            take(self._file_words, starts // 4, np.arange(len(picks)))
        if bad and crcs[bad[0]] == NO_CRC:
            raise lost_checksum(self._layout, int(rows[bad[0]]), self._path.with_name(CHECKSUMS_FILE))
        if bad:
            raise damaged_row(self._layout, int(rows[bad[0]]), self._path)

    def _crcs_of(self, rows: Int64, reads: Transfers) -> NDArray[np.uint32]:
        if self._crc_map is None:
            return np.zeros(len(rows), np.uint32)
        if not self._way.direct:
            return np.frombuffer(self._crc_map, np.uint32, offset=self._crc_offset)[rows]
        return self._known_crcs.of(rows, self._direct[1], self._crc_offset, reads)

    @property
    def written(self) -> Bits:
        """One bit a row: set if the row is in `rows.npy`. For reading only."""
        view: Bits = read_only(self._bits)
        return view

    def bits_crc(self, add: Int64 = NO_ROWS, remove: Int64 = NO_ROWS) -> int:
        """Checksum of the bits, as if those of some rows were set and those of others were not."""
        bits = self._bits
        if len(add) or len(remove):
            bits = bits.copy()
            set_bits(bits, add)
            clear_bits(bits, remove)
        return zlib.crc32(bits.data)

    def check_bits(self, expected: int | None, add: Int64 = NO_ROWS, remove: Int64 = NO_ROWS) -> None:
        """Raises StoreError if the bits are not what was written; a row whose checksum says otherwise is named."""
        if expected is None or self.bits_crc(add, remove) == expected:
            return
        crcs = None if self._crc_map is None else np.frombuffer(self._crc_map, np.uint32, offset=self._crc_offset)
        raise damaged_bits(self._path.with_name(WRITTEN_FILE), self._layout, self._bits, crcs)

    def new_bytes(self, rows: Int64) -> int:
        """Upper bound of the disk space that writing these rows (ascending) takes: blocks of those not there yet."""
        bits: NDArray[np.bool_] = (self._bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 0
        row_bytes = self._layout.row_bytes
        first = (self._rows_offset + rows[bits] * row_bytes) // BLOCK_BYTES
        last = (self._rows_offset + (rows[bits] + 1) * row_bytes - 1) // BLOCK_BYTES
        if not len(first):
            return 0
        # Ranges of blocks in ascending order, each counted from where the one before it ended.
        new_from = np.maximum(first, np.concatenate(([first[0]], last[:-1] + 1)))
        return int(np.maximum(last - new_from + 1, 0).sum()) * BLOCK_BYTES

    def write_rows(self, rows: Int64, words: Float32) -> None:
        """Writes rows (ascending) and their checksums; they count once `mark_written` has been called."""
        self._files.write_rows(self._rows_descriptor, self._rows_offset, rows, words)
        self._write_checksums(rows, words)

    def _write_checksums(self, rows: Int64, words: Float32) -> None:
        crcs = np.empty((len(rows), 1), np.float32)
        row_checksums(rows, words, crcs)
        self._files.write_rows(self._crc_descriptor, self._crc_offset, rows, crcs)
        self._known_crcs.forget()

    def mark_written(self, rows: Int64) -> None:
        set_bits(self._bits, rows)

    def mark_unwritten(self, rows: Int64) -> None:
        """These rows have their initial values again."""
        clear_bits(self._bits, rows)

    def sync(self) -> None:
        self._sync_rows()
        self._files.sync_map(self._bits_map, len(self._bits_map))
        self._files.sync(self._bits_descriptor)

    def _sync_rows(self) -> None:
        self._files.sync(self._rows_descriptor)
        self._files.sync(self._crc_descriptor)

    def initialise_all(self, progress: Callable[[int, int], None] | None) -> None:
        """Writes the initial values of all rows that are not there yet.

        A row whose bit is not set is read as its initial value whatever the file holds, so the bits are set only after
        all rows are on the disk, and an interrupted call is as if it had not been made.
        """
        layout = self._layout
        initial = initial_of(layout)
        block_rows = max(1, _INITIALISE_BYTES // layout.row_bytes)
        with ExitStack() as undo:
            new_file = None
            if self._way.direct and not self._bits.any():
                new_file = Sequence(self._path, self._rows_offset, self._way, self._files)
                undo.callback(new_file.close)
            for begin in range(0, layout.num_rows, block_rows):
                end = min(begin + block_rows, layout.num_rows)
                words = np.empty((end - begin, self.words.shape[1]), np.float32)
                _fill_block(begin, layout.value_words, self.words, self._bits, initial, words)
                self._write_new(np.arange(begin, end, dtype=np.int64), words, new_file)
                if progress is not None:
                    progress(end, layout.num_rows)
            if new_file is not None:
                new_file.finish()
        self._sync_rows()
        self._bits.fill(0xFF)
        self.sync()

    def _write_new(self, rows: Int64, words: Float32, new_file: Sequence | None) -> None:
        """Rows that are there keep their bytes and their checksums: a wrong one must not become right."""
        if new_file is not None:
            new_file.write(words)
            self._write_checksums(rows, words)
            return
        new = (self._bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 0
        self.write_rows(rows[new], np.ascontiguousarray(words[new]))

    def forget_pages(self) -> None:
        """Asks the system to give up the memory in which it keeps the rows."""
        for mapped, descriptor in ((self._rows_map, self._rows_descriptor), (self._crc_map, self._crc_descriptor)):
            if mapped is not None:
                mapped.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self.words = self._file_words = np.zeros((0, self.words.shape[1]), np.float32)
        self._bits = np.zeros(0, np.uint8)
        self._parallel.close()
        for mapped in (self._rows_map, self._bits_map, self._crc_map):
            if mapped is not None:
                with suppress(BufferError):  # a reader's view keeps the mapping until it goes
                    mapped.close()
        self._close_files()

    def _close_files(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def _random_map(descriptor: int) -> mmap.mmap:
    """Rows are read at random: reading ahead would fetch thirty pages for each one that is wanted."""
    mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)
    return mapped
