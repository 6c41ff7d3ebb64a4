"""`undo.bin`: what the rows of the last commit were before it, so that a folded folder can go back by one commit.

In: the rows that differ between the two commits, as the one before has them. Out: a file of records (row id as int64,
then the row's words), complete before the base changes; a row that was not there has version -1. Applying it twice is
the same as once, so a crash on the way back leaves nothing to repair but to apply it again. Folders of older formats
have records of the same kind in `overlay.bin` (`sealed_records`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from foresee.arrays import Float32, Int64
from foresee.errors import StoreError
from foresee.io.files import Files
from foresee.store.contract import Rows
from foresee.store.disk.base import NO_ROWS, Base
from foresee.store.disk.manifest import Journal, Undo
from foresee.store.layout import Layout

UNDO_FILE = "undo.bin"
OVERLAY_FILE = "overlay.bin"
HEADER_WORDS = 2
"""float32 words before a row: its id as int64."""
NOT_WRITTEN = -1
"""Version of a row that was not in the base."""
PIECE_ROWS = 4096


def record_bytes(layout: Layout) -> int:
    return 4 * HEADER_WORDS + layout.row_bytes


def words_of(rows: Rows) -> Float32:
    """Rows as they are in `rows.npy`."""
    return np.concatenate([rows.values, rows.state, rows.versions.view(np.float32)[:, None]], axis=1)


def rows_of(words: Float32, layout: Layout) -> Rows:
    """The other way round."""
    versions = np.ascontiguousarray(words[:, -1]).view(np.int32)
    values, state = words[:, : layout.value_words], words[:, layout.value_words : -1]
    return Rows(np.ascontiguousarray(values), np.ascontiguousarray(state), versions)


def write_undo(folder: Path, layout: Layout, rows: Int64, read: Callable[[Int64, Rows], None], files: Files) -> Undo:
    """Keeps these rows (ascending) as `read` has them. On return the file is on the disk."""
    draft, crc = folder / f"{UNDO_FILE}.draft", 0
    try:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            for begin in range(0, len(rows), PIECE_ROWS):
                piece = rows[begin : begin + PIECE_ROWS]
                old = Rows.empty(len(piece), layout)
                read(piece, old)
                records = np.concatenate([piece.view(np.float32).reshape(-1, 2), words_of(old)], axis=1)
                crc = zlib.crc32(records.view(np.uint8).data, crc)
                files.write(descriptor, records, begin * record_bytes(layout))
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


def read_undo(folder: Path, undo: Undo, layout: Layout) -> Iterator[tuple[Int64, Float32]]:
    """Ids and words, piece by piece; refuses a file that is not the one that was written, before the first."""
    return _checked(folder / UNDO_FILE, 0, undo.num_records, undo.crc32, layout)


def sealed_records(folder: Path, journal: Journal, layout: Layout) -> Iterator[tuple[Int64, Float32]]:
    """The same for a sealed segment of the overlay of a folder of an older format."""
    begin = journal.segment * layout.num_rows * record_bytes(layout)
    return _checked(folder / OVERLAY_FILE, begin, journal.num_records, journal.crc32, layout)


def apply_undo(folder: Path, undo: Undo, base: Base, layout: Layout) -> None:
    """Brings the rows back."""
    for rows, words in read_undo(folder, undo, layout):
        was_written = words.view(np.int32)[:, -1] != NOT_WRITTEN
        base.write_rows(rows[was_written], np.ascontiguousarray(words[was_written]))
        base.mark_unwritten(rows[~was_written])
    base.sync()


def unwritten_before(folder: Path, undo: Undo, layout: Layout) -> Int64:
    """Rows that were not in the base."""
    found = [NO_ROWS]
    for rows, words in read_undo(folder, undo, layout):
        found.append(rows[words.view(np.int32)[:, -1] == NOT_WRITTEN])
    return np.concatenate(found)


def forget_undo(folder: Path) -> None:
    """Gives its space back; without `layout.json` the file means nothing."""
    with suppress(OSError):
        (folder / UNDO_FILE).unlink(missing_ok=True)


def _checked(path: Path, begin: int, number: int, crc32: int, layout: Layout) -> Iterator[tuple[Int64, Float32]]:
    crc = 0
    for piece in _pieces(path, begin, number, layout):
        crc = zlib.crc32(piece, crc)
    if crc != crc32:
        raise StoreError(
            f"{path} is damaged: it has checksum {crc:08x} where {crc32:08x} is expected; "
            "restore the folder from a copy"
        )
    for piece in _pieces(path, begin, number, layout):
        records = np.frombuffer(piece, np.float32).reshape(-1, record_bytes(layout) // 4)
        ids = np.ascontiguousarray(records[:, :HEADER_WORDS]).view(np.int64).ravel()
        yield ids, np.ascontiguousarray(records[:, HEADER_WORDS:])


def _pieces(path: Path, begin: int, number: int, layout: Layout) -> Iterator[bytes]:
    try:
        with open(path, "rb") as stream:
            stream.seek(begin)
            for first in range(0, number, PIECE_ROWS):
                num_bytes = min(PIECE_ROWS, number - first) * record_bytes(layout)
                content = stream.read(num_bytes)
                if len(content) != num_bytes:
                    raise StoreError(f"{path} is cut off after record {first}; restore the folder from a copy")
                yield content
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: this table folder is incomplete; restore it from a copy") from None
