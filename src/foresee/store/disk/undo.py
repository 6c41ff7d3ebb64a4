"""`undo.bin`: what the rows of the last commit were before it, so that a folder can go back by one commit.

In: the rows that a commit is about to change in the base. Out: a file of records as in the overlay, complete before the
first of them changes; a row that was not there has version -1. Applying it twice is the same as once, so a crash on the
way back leaves nothing to repair but to apply it again. It takes one sequential write beside the fold, which has to
bring the same pages into memory anyway, and no read ever looks at it.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numba
import numpy as np

from foresee.base.arrays import Float32, Int64
from foresee.base.files import Files
from foresee.base.prefetch import ROWS_AHEAD, prefetch
from foresee.errors import StoreError
from foresee.store.contract import Layout
from foresee.store.disk.base import Base
from foresee.store.disk.manifest import Undo
from foresee.store.disk.overlay import HEADER_WORDS, read_row_ids
from foresee.store.disk.parallel import ParallelCopy
from foresee.store.kernels import Bits, is_set

UNDO_FILE = "undo.bin"
NOT_WRITTEN = -1
"""Version of a row that was not in the base."""
_CHUNK_ROWS = 4096


@numba.njit(nogil=True, cache=True)
def _copy_old(rows: Int64, base: Float32, written: Bits, records: Float32, begin: int, end: int) -> None:
    """Records begin..end: the rows as the base has them."""
    as_ints, record_words = records.view(np.int32), records.shape[1]
    base_address, row_bytes = base.ctypes.data, 4 * base.shape[1]
    for k in range(begin, end):
        if k + ROWS_AHEAD < end:
            prefetch(base_address + rows[k + ROWS_AHEAD] * row_bytes, row_bytes)
        row = rows[k]
        as_ints[k, 0] = np.int32(row)
        as_ints[k, 1] = np.int32(row >> 32)
        if is_set(written, row):
            for i in range(base.shape[1]):
                records[k, HEADER_WORDS + i] = base[row, i]
        else:
            for i in range(base.shape[1]):
                records[k, HEADER_WORDS + i] = 0.0
            as_ints[k, record_words - 1] = NOT_WRITTEN


def undo_bytes(num_rows: int, layout: Layout) -> int:
    """Disk space of so many records."""
    return num_rows * (4 * HEADER_WORDS + layout.row_bytes)


def write_undo(folder: Path, rows: Int64, base: Base, files: Files, parallel: ParallelCopy) -> Undo:
    """Keeps these rows (ascending) as they are in the base. On return the file is on the disk."""
    draft = folder / f"{UNDO_FILE}.draft"
    record_words = HEADER_WORDS + base.words.shape[1]
    crc = 0
    try:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for begin in range(0, len(rows), _CHUNK_ROWS):
                piece = rows[begin : begin + _CHUNK_ROWS]
                records = np.empty((len(piece), record_words), np.float32)

                def copy(start: int, end: int, piece: Int64 = piece, records: Float32 = records) -> None:
                    _copy_old(piece, base.words, base.written, records, start, end)

                parallel.run(copy, len(piece))
                crc = zlib.crc32(records.view(np.uint8).data, crc)
                files.write(descriptor, records, begin * record_words * 4)
            files.sync(descriptor)
        finally:
            os.close(descriptor)
        files.replace(draft, folder / UNDO_FILE)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    files.sync_folder(folder)
    return Undo(num_records=len(rows), crc32=crc)


def apply_undo(folder: Path, undo: Undo, base: Base) -> None:
    """Brings the rows back. Refuses a file that is not the one that was written, before anything changes."""
    record_words = HEADER_WORDS + base.words.shape[1]
    crc = 0
    for records in _records(folder, undo, record_words):
        crc = zlib.crc32(records.view(np.uint8).data, crc)
    if crc != undo.crc32:
        raise StoreError(
            f"{folder / UNDO_FILE} is damaged: it has checksum {crc:08x} where {undo.crc32:08x} is expected; "
            "restore the folder from a copy"
        )
    for records in _records(folder, undo, record_words):
        rows = np.empty(len(records), np.int64)
        read_row_ids(records, 0, rows)
        was_written = records.view(np.int32)[:, -1] != NOT_WRITTEN
        base.write_rows(rows[was_written], np.ascontiguousarray(records[was_written, HEADER_WORDS:]))
        base.mark_unwritten(rows[~was_written])
    base.sync()


def forget_undo(folder: Path) -> None:
    """Gives its space back; without `layout.json` the file means nothing."""
    with suppress(OSError):
        (folder / UNDO_FILE).unlink(missing_ok=True)


def _records(folder: Path, undo: Undo, record_words: int) -> Iterator[Float32]:
    """The file piece by piece."""
    path = folder / UNDO_FILE
    try:
        with open(path, "rb") as stream:
            for begin in range(0, undo.num_records, _CHUNK_ROWS):
                num_rows = min(_CHUNK_ROWS, undo.num_records - begin)
                content = stream.read(num_rows * record_words * 4)
                if len(content) != num_rows * record_words * 4:
                    raise StoreError(f"{path} is cut off after record {begin}; restore the folder from a copy")
                yield np.frombuffer(content, np.float32).reshape(num_rows, record_words).copy()
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: this table folder is incomplete; restore it from a copy") from None
