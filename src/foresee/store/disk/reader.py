"""A table folder opened for reading: nothing in it is written, made, folded or given up.

In: a folder, on a disk that may refuse every write. Out: a store that reads the rows of one of the commits that the
folder has, the last one unless `open_at` chooses another. What `DiskStore` would bring into the base first (a commit
that is sealed and not folded, one that was given up half-way) is read through an index of its records instead. An
existing lock file is shared, so that nobody trains meanwhile; none is made.
"""

from __future__ import annotations

import fcntl
import os
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import numpy as np

from foresee.base.arrays import Float32, Int64
from foresee.base.files import Files
from foresee.errors import StoreError, UsageError
from foresee.store.commits import GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Layout, Rows, check_request, open_part
from foresee.store.disk.base import Base
from foresee.store.disk.folder import LOCK_FILE, in_use
from foresee.store.disk.index import RowIndex
from foresee.store.disk.journal import OVERLAY_FILE
from foresee.store.disk.manifest import Journal, Manifest, Undo, check_same_layout, read_manifest
from foresee.store.disk.overlay import HEADER_WORDS, read_row_ids
from foresee.store.disk.parallel import ParallelCopy
from foresee.store.disk.undo import NOT_WRITTEN, UNDO_FILE
from foresee.store.kernels import INITIAL, gather, initial_key, initial_unit, read_only

_CHECKSUM_BYTES = 1 << 24


class DiskReader:
    """The rows of a folder as of one commit. Made with `open`."""

    def __init__(self, folder: Path, manifest: Manifest, lock: int | None) -> None:
        self._folder, self._manifest, self._lock = folder, manifest, lock
        self._key, self._unit = initial_key(manifest.layout), initial_unit(manifest.layout)
        self._record_words = HEADER_WORDS + manifest.layout.row_bytes // 4
        self._parallel = ParallelCopy()
        self._closed = False
        self._ids: Int64
        """Rows whose records are read instead of the base, ascending."""
        self._unwritten: Int64
        """Rows that have their initial values whatever the base says, ascending."""
        self._records: Float32
        with ExitStack() as undo:
            self._base = Base(folder, manifest.layout, Files(), writable=False)
            undo.callback(self._base.close)
            self._prepared = manifest.prepared
            if self._prepared is not None and self._sealed(self._prepared.journal) is None:
                self._prepared = None  # damaged: as if it had never been prepared
            self._show(manifest.committed_step)
            undo.pop_all()

    @classmethod
    def open(cls, path: str | Path, layout: Layout | None = None) -> DiskReader:
        """Opens a table folder as of its last commit; with `layout`, only if it is that of the tables."""
        folder = Path(path)
        with ExitStack() as undo:
            lock = _share_lock(folder)
            if lock is not None:
                undo.callback(os.close, lock)
            manifest = read_manifest(folder)
            if layout is not None:
                check_same_layout(folder, manifest.layout, layout)
            try:
                reader = cls(folder, manifest, lock)
            except OSError as error:
                reason = f"{error.filename or folder} cannot be read ({error.strerror})"
                raise StoreError(f"{reason}; check the folder's permissions") from error
            undo.pop_all()
        return reader

    @property
    def layout(self) -> Layout:
        return self._manifest.layout

    @property
    def committed_step(self) -> int:
        """The commit that is read."""
        return self._step

    @property
    def parts(self) -> tuple[Part]:
        """The commits that this folder can be opened at."""
        manifest, prepared = self._manifest, self._prepared
        return (
            Part(
                committed=manifest.committed_step,
                previous=manifest.previous_step,
                prepared=None if prepared is None else prepared.step,
            ),
        )

    def open_at(self, step: int) -> None:
        """Reads another of the commits that are kept; the folder stays as it is."""
        open_part(self, step)

    def carry_out(self, instruction: Instruction) -> None:
        """What a part is told to do, as far as it concerns what is read."""
        if isinstance(instruction, Seal):
            self._refuse()
        if isinstance(instruction, Promote | GoBack):
            self._show(instruction.step)

    def read(self, rows: Int64, out: Rows) -> None:
        if self._closed:
            raise UsageError(f"the store of {self._folder} is closed; open it again to use it")
        check_request(self.layout, rows, out)
        places = np.empty(len(rows), np.int64)
        self._index.locate(rows, self._base.written, places)
        if len(self._unwritten):
            places[np.isin(rows, self._unwritten)] = INITIAL
        base, records = self._base.words, self._records

        def copy(begin: int, end: int) -> None:
            gather(
                rows, places, base, records, HEADER_WORDS, self._key, self._unit,
                out.values, out.state, out.versions, begin, end,
            )  # fmt: skip

        self._parallel.run(copy, len(rows))

    def written(self, begin: int, end: int) -> Int64:
        """The rows from `begin` to `end` that somebody has written, ascending; all others have their initial values."""
        bits = np.unpackbits(self._base.written[begin >> 3 : (end + 7) >> 3], bitorder="little")
        rows: Int64 = np.flatnonzero(bits) + (begin & ~7)
        rows = rows[(rows >= begin) & (rows < end)]
        if len(self._ids):
            first, last = np.searchsorted(self._ids, (begin, end))
            rows = np.union1d(rows, self._ids[first:last])
        return np.setdiff1d(rows, self._unwritten, assume_unique=True) if len(self._unwritten) else rows

    def write(self, rows: Int64, source: Rows) -> None:
        self._refuse()

    def commit(self, step: int) -> None:
        self._refuse()

    def prepare(self, step: int) -> None:
        self._refuse()

    def settle(self, step: int) -> None:
        self._refuse()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._parallel.close()
        self._forget_records()
        self._base.close()
        if self._lock is not None:
            os.close(self._lock)

    def _show(self, step: int) -> None:
        """What has to be read instead of the base, for one of the commits of the folder."""
        manifest, prepared = self._manifest, self._prepared
        self._forget_records()
        self._step = step
        if prepared is not None and step == prepared.step:
            self._show_sealed([it for it in (manifest.journal, prepared.journal) if it is not None])
        elif step != manifest.committed_step or manifest.going_back:
            # Without an undo nothing of the last commit is in the base yet.
            if manifest.undo is not None:
                self._show_undo(manifest.undo)
        elif manifest.journal is not None:
            self._show_sealed([manifest.journal])

    def _show_sealed(self, journals: list[Journal]) -> None:
        for journal in journals:
            records = self._sealed(journal)
            if records is None:
                raise StoreError(
                    f"{self._folder / OVERLAY_FILE} is damaged: the commit of step {self._step} has another checksum "
                    f"than {journal.crc32:08x}; restore the folder from a copy"
                )
            if len(records):
                self._records = self._map(OVERLAY_FILE)
                self._index.insert(_row_ids(records), journal.segment * self.layout.num_rows)
                self._ids = np.union1d(self._ids, _row_ids(records))

    def _show_undo(self, undo: Undo) -> None:
        records = self._map(UNDO_FILE)
        if len(records) != undo.num_records or _checksum(records) != undo.crc32:
            raise StoreError(
                f"{self._folder / UNDO_FILE} is damaged: the way back to step {self._step} has another checksum than "
                f"{undo.crc32:08x}; restore the folder from a copy"
            )
        was_written = records.view(np.int32)[:, -1] != NOT_WRITTEN
        rows = _row_ids(records)
        self._records = records
        self._index.insert(rows, 0)
        self._ids, self._unwritten = np.sort(rows[was_written]), np.sort(rows[~was_written])

    def _sealed(self, journal: Journal) -> Float32 | None:
        """The records of a sealed segment; None if they are not those that were sealed."""
        first = journal.segment * self.layout.num_rows
        if journal.num_records == 0:
            return np.zeros((0, self._record_words), np.float32)
        records = self._map(OVERLAY_FILE)[first : first + journal.num_records]
        return records if len(records) == journal.num_records and _checksum(records) == journal.crc32 else None

    def _map(self, name: str) -> Float32:
        """All records of a file of ours; none if it is not there or is empty."""
        path = self._folder / name
        num_records = path.stat().st_size // (4 * self._record_words) if path.exists() else 0
        if not num_records:
            return np.zeros((0, self._record_words), np.float32)
        return np.asarray(np.memmap(path, np.float32, "r", 0, (num_records, self._record_words)))

    def _forget_records(self) -> None:
        self._index = RowIndex()
        self._records = read_only(np.zeros((0, self._record_words), np.float32))
        self._ids = np.empty(0, np.int64)
        self._unwritten = np.empty(0, np.int64)

    def _refuse(self) -> NoReturn:
        raise UsageError(f"the tables in {self._folder} were opened for reading; open them with DiskStore to write")


def _row_ids(records: Float32) -> Int64:
    rows = np.empty(len(records), np.int64)
    read_row_ids(read_only(records), 0, rows)
    return rows


def _checksum(records: Float32) -> int:
    crc, content = 0, records.reshape(-1).view(np.uint8)
    for begin in range(0, len(content), _CHECKSUM_BYTES):
        crc = zlib.crc32(content[begin : begin + _CHECKSUM_BYTES].data, crc)
    return crc


def _share_lock(folder: Path) -> int | None:
    """A share of the folder's lock, if it has one and this file system shares locks of files that are only read."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise in_use(folder) from None
    except OSError:
        pass
    return descriptor
