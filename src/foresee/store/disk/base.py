"""The base of a table folder: `rows.npy`, the rows as of the last commit, and `written.npy`, which of them are there.

`rows.npy` is one structured array (value, state, version) that numpy.load(mmap_mode="r") opens; it is sparse, and a row
that was never written is a hole. It is read through a mapping and written with pwrite: a write into a hole of a full
disk is then an error and not a signal. Both files change only while a sealed journal (or an initial value) can redo
the change, so a crash at any point leaves nothing to repair but to write the same bytes again.
"""

from __future__ import annotations

import mmap
import os
import tokenize
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from foresee.base.arrays import Float32, Int64
from foresee.base.files import Files
from foresee.errors import StoreError
from foresee.store.contract import Layout
from foresee.store.kernels import (
    Bits,
    clear_bits,
    fill_initial_row,
    initial_key,
    initial_unit,
    is_set,
    read_only,
    set_bits,
)

ROWS_FILE = "rows.npy"
WRITTEN_FILE = "written.npy"
BLOCK_BYTES = 4096
UNREADABLE_HEADER = (ValueError, TypeError, SyntaxError, EOFError, MemoryError, RecursionError, tokenize.TokenError)
"""What numpy raises on bytes that are no header of an array; it reads them as a literal and never runs them."""
_INITIALISE_BYTES = 1 << 23


def row_dtype(layout: Layout) -> np.dtype[Any]:
    """One row in `rows.npy`."""
    return np.dtype([("value", "<f4", (layout.width,)), ("state", "<f4", (layout.state_width,)), ("version", "<i4")])


def create_base(folder: Path, layout: Layout, files: Files) -> None:
    """Makes the two files: the rows a hole, the bits all zero and their space taken."""
    _create_array(folder / ROWS_FILE, row_dtype(layout), layout.num_rows, files, reserve=False)
    _create_array(folder / WRITTEN_FILE, np.dtype("u1"), (layout.num_rows + 7) // 8, files, reserve=True)


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
def _fill_block(begin: int, width: int, base: Float32, written: Bits, key: np.uint64, unit: np.float32,
                out: Float32) -> None:  # fmt: skip
    """Rows from `begin` on, as they are, or with their initial values where they were never written."""
    for k in range(out.shape[0]):
        row = begin + k
        if is_set(written, row):
            for i in range(out.shape[1]):
                out[k, i] = base[row, i]
        else:
            fill_initial_row(key, unit, row, width, out, k)
            for i in range(width, out.shape[1]):
                out[k, i] = 0.0


class Base:
    """The committed rows of a table folder."""

    def __init__(self, folder: Path, layout: Layout, files: Files, *, writable: bool = True) -> None:
        self._files, self._layout = files, layout
        flags = os.O_RDWR if writable else os.O_RDONLY
        self._rows_descriptor, self._rows_offset = open_array(
            folder / ROWS_FILE, row_dtype(layout), layout.num_rows, flags
        )
        try:
            self._bits_descriptor, bits_offset = open_array(
                folder / WRITTEN_FILE, np.dtype("u1"), (layout.num_rows + 7) // 8, flags
            )
        except (StoreError, OSError):
            os.close(self._rows_descriptor)
            raise
        self._rows_map = mmap.mmap(self._rows_descriptor, 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_RANDOM"):
            # Rows are read at random: reading ahead would fetch thirty pages for each one that is wanted.
            self._rows_map.madvise(mmap.MADV_RANDOM)
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._bits_map = mmap.mmap(self._bits_descriptor, 0, access=access)
        words = np.frombuffer(self._rows_map, np.float32, offset=self._rows_offset)
        self.words: Float32 = words.reshape(layout.num_rows, -1)  # [rows, words of a row], for reading only
        self._bits: Bits = np.frombuffer(self._bits_map, np.uint8, offset=bits_offset)

    @property
    def written(self) -> Bits:
        """One bit a row: set if the row is in `rows.npy`. For reading only."""
        view: Bits = read_only(self._bits)
        return view

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
        """Writes rows (ascending) into `rows.npy`; they count once `mark_written` has been called."""
        self._files.write_rows(self._rows_descriptor, self._rows_offset, rows, words)

    def mark_written(self, rows: Int64) -> None:
        set_bits(self._bits, rows)

    def mark_unwritten(self, rows: Int64) -> None:
        """These rows have their initial values again."""
        clear_bits(self._bits, rows)

    def sync(self) -> None:
        self._files.sync(self._rows_descriptor)
        self._files.sync_map(self._bits_map, len(self._bits_map))
        self._files.sync(self._bits_descriptor)

    def initialise_all(self, progress: Callable[[int, int], None] | None) -> None:
        """Writes the initial values of all rows that are not there yet.

        A row whose bit is not set is read as its initial value whatever the file holds, so the bits are set only after
        all rows are on the disk, and an interrupted call is as if it had not been made.
        """
        layout = self._layout
        key, unit = initial_key(layout), initial_unit(layout)
        block_rows = max(1, _INITIALISE_BYTES // layout.row_bytes)
        for begin in range(0, layout.num_rows, block_rows):
            end = min(begin + block_rows, layout.num_rows)
            words = np.empty((end - begin, self.words.shape[1]), np.float32)
            _fill_block(begin, layout.width, self.words, self._bits, key, unit, words)
            self.write_rows(np.arange(begin, end, dtype=np.int64), words)
            if progress is not None:
                progress(end, layout.num_rows)
        self._files.sync(self._rows_descriptor)
        self._bits.fill(0xFF)
        self.sync()

    def forget_pages(self) -> None:
        """Asks the system to give up the memory in which it keeps the rows."""
        self._rows_map.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._rows_descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self.words = np.zeros((0, self.words.shape[1]), np.float32)
        self._bits = np.zeros(0, np.uint8)
        with suppress(BufferError):  # a reader's view keeps the mapping until it goes
            self._rows_map.close()
        with suppress(BufferError):
            self._bits_map.close()
        os.close(self._rows_descriptor)
        os.close(self._bits_descriptor)
