"""A table folder opened for reading: nothing in it is written, made, folded or given up.

In: a folder, on a disk that may refuse every write. Out: a store that reads the rows of one of the commits that the
folder has, the last one unless `open_at` chooses another. Rows in the log are read from there; what `DiskStore` would
bring into the base first (a commit that was given up half-way) is read from the records of `undo.bin` instead. An
existing lock file is shared, so that nobody trains meanwhile; none is made.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from foresee.arrays import Bool, Float32, Int64
from foresee.errors import StoreError, UsageError
from foresee.io.direct import BUFFER_BYTES, Transfers, probe
from foresee.io.files import Files
from foresee.io.machine import available_bytes
from foresee.store.commits import ForgetWrites, GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Rows, check_request
from foresee.store.disk.base import NO_ROWS, ROWS_FILE, Base
from foresee.store.disk.chunks import LOG_FILE, chunk_bytes_for, live_rows
from foresee.store.disk.folder import LOCK_FILE, in_use
from foresee.store.disk.log import RowLog
from foresee.store.disk.manifest import Chunks, Manifest, Undo, check_same_layout, read_manifest
from foresee.store.disk.undo import HEADER_WORDS, NOT_WRITTEN, UNDO_FILE, read_undo, record_bytes
from foresee.store.kernels import BASE, INITIAL, Bits, fill_initial_rows, initial_of
from foresee.store.layout import Layout
from foresee.store.parts import OnePart, ReadOnly


class DiskReader(ReadOnly, OnePart):
    """The rows of a folder as of one commit. Made with `open`."""

    def __init__(self, folder: Path, manifest: Manifest, lock: int | None) -> None:
        self._folder, self._manifest, self._lock = folder, manifest, lock
        self.refusal = f"the tables in {folder} were opened for reading; open them with DiskStore to write"
        layout = manifest.layout
        self._initial = initial_of(layout)
        self._closed = False
        self._one_at_a_time = threading.Lock()
        self._undo_ids: Int64
        """Rows whose records of `undo.bin` are read instead of anything else, ascending."""
        self._undo_words: Float32
        with ExitStack() as undo:
            way = probe(folder / ROWS_FILE, 2 * layout.num_rows * layout.row_bytes, available_bytes())
            self._reads = Transfers(way, BUFFER_BYTES if way.direct else 0)
            undo.callback(self._reads.close)
            self._base = Base(folder, layout, Files(), way, writable=False, all_checked=manifest.all_checked)
            undo.callback(self._base.close)
            self._log = self._open_log()
            if self._log is not None:
                undo.callback(self._log.close)
            self._prepared = manifest.prepared
            if self._prepared is not None and not self._is_whole(self._prepared.chunks):
                self._prepared = None  # damaged: as if it had never been prepared
            self._show(manifest.committed_step)
            self._check_bits()
            undo.pop_all()

    def _open_log(self) -> RowLog | None:
        if not (self._folder / LOG_FILE).exists():
            return None
        layout = self._manifest.layout
        chunk_bytes = self._manifest.chunk_bytes or chunk_bytes_for(layout)
        return RowLog(self._folder, layout, chunk_bytes, Files(), self._reads, self._one_at_a_time, writable=False)

    def _check_bits(self) -> None:
        """The bits of the base, as they are once somebody has finished what was interrupted."""
        versions = np.ascontiguousarray(self._undo_words[:, -1]).view(np.int32)
        gone = self._undo_ids[versions == NOT_WRITTEN]
        added = self._logged if self._manifest.folding else NO_ROWS
        self._base.check_bits(self._manifest.written_crc32, add=added, remove=gone)

    def _is_whole(self, chunks: Chunks | None) -> bool:
        if chunks is None:
            return True
        try:
            if self._log is not None:
                self._log.check(chunks)
            return self._log is not None
        except StoreError:
            return False

    @classmethod
    def open(cls, path: str | Path, layout: Layout | None = None) -> DiskReader:
        """Opens a table folder as of its last commit; with `layout`, only if it is that of the tables."""
        folder = Path(path)
        with ExitStack() as undo:
            lock = _share_lock(folder)
            if lock is not None:
                undo.callback(os.close, lock)
            manifest = read_manifest(folder)
            if manifest.journal is not None or (manifest.prepared and manifest.prepared.journal):
                raise StoreError(
                    f"{folder} was left in mid-commit by an older version; use foresee fold {folder} first"
                )
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

    def carry_out(self, instruction: Instruction) -> None:
        """Choose the commit that is read, as `open_at` decides; the folder stays as it is."""
        if isinstance(instruction, Seal):
            self.refuse()
        if isinstance(instruction, ForgetWrites) and self._step != self._manifest.committed_step:
            self._show(self._manifest.committed_step)  # another was read until now
        if isinstance(instruction, Promote | GoBack):
            self._show(instruction.step)

    def read(self, rows: Int64, out: Rows) -> None:
        if self._closed:
            raise UsageError(f"the store of {self._folder} is closed; open it again to use it")
        check_request(self.layout, rows, out)
        with self._one_at_a_time:
            in_base, initial = self._places(rows, out)
            undone = self._take_undone(rows, out)
            # Those may be half written in the base.
            self._base.read(np.setdiff1d(in_base, undone, assume_unique=True), rows, out, self._reads)
            initial = np.setdiff1d(initial, undone, assume_unique=True)
            fill_initial_rows(initial, rows, self._initial, out.values, out.state, out.versions)

    def _places(self, rows: Int64, out: Rows) -> tuple[Int64, Int64]:
        if self._log is not None:
            return self._log.read(rows, self._base.written, out)
        written = _bits_of(self._base.written, rows)
        return np.flatnonzero(written), np.flatnonzero(~written)

    def _take_undone(self, rows: Int64, out: Rows) -> Int64:
        """Fills in rows that the commit that is read does not have as they are now; which of the request they are."""
        if not len(self._undo_ids):
            return np.empty(0, np.int64)
        at = np.minimum(np.searchsorted(self._undo_ids, rows), len(self._undo_ids) - 1)
        undone = np.flatnonzero(self._undo_ids[at] == rows)
        words, width = self._undo_words[at[undone]], self.layout.value_words
        out.values[undone], out.state[undone] = words[:, :width], words[:, width:-1]
        out.versions[undone] = np.ascontiguousarray(words[:, -1]).view(np.int32)
        unwritten = undone[out.versions[undone] == NOT_WRITTEN]
        fill_initial_rows(unwritten, rows, self._initial, out.values, out.state, out.versions)
        return undone

    def place_of(self, row: int) -> str:
        """Where a row lies, in words."""
        rows, log = np.array([row], np.int64), self._log
        place = BASE if _bits_of(self._base.written, rows)[0] else INITIAL
        if log is not None:
            place = int(log.index.look_up(rows, self._base.written, Rows.empty(1, self.layout)).places(1)[0])
        if log is None or place < 0:
            initial = "it was not written: its initial value comes from its id"
            return f"it lies in {ROWS_FILE}" if place == BASE else initial
        chunk = place // log.file.shape.chunk_rows
        return f"it lies in chunk {chunk:,} of {LOG_FILE}, beside {int(log.index.live[chunk]) - 1:,} other rows"

    def written(self, begin: int, end: int) -> Int64:
        """The rows from `begin` to `end` that somebody has written, ascending; all others have their initial values."""
        bits = np.unpackbits(self._base.written[begin >> 3 : (end + 7) >> 3], bitorder="little")
        rows: Int64 = np.flatnonzero(bits) + (begin & ~7)
        rows = np.union1d(rows[(rows >= begin) & (rows < end)], _between(self._logged, begin, end))
        if len(self._undo_ids):
            versions = np.ascontiguousarray(self._undo_words[:, -1]).view(np.int32)
            rows = np.union1d(rows, _between(self._undo_ids[versions != NOT_WRITTEN], begin, end))
            rows = np.setdiff1d(rows, self._undo_ids[versions == NOT_WRITTEN], assume_unique=True)
        return rows

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._undo_words = np.zeros((0, 1), np.float32)
        if self._log is not None:
            self._log.close()
        self._base.close()
        self._reads.close()
        if self._lock is not None:
            os.close(self._lock)

    def _show(self, step: int) -> None:
        """What has to be read for one of the commits of the folder."""
        manifest, prepared = self._manifest, self._prepared
        self._step = step
        self._undo_ids, self._undo_words = np.empty(0, np.int64), np.zeros((0, 1), np.float32)
        if prepared is not None and step == prepared.step:
            self._show_chunks(prepared.chunks)
        elif step == manifest.committed_step and not manifest.going_back:
            self._show_chunks(manifest.chunks)
        elif manifest.undo is not None:
            self._show_chunks(manifest.chunks)
            self._show_undo(manifest.undo)
        else:
            self._show_chunks(manifest.previous_chunks)

    def _show_chunks(self, chunks: Chunks | None) -> None:
        self._logged = np.empty(0, np.int64)
        """Rows in the log, ascending."""
        if self._log is not None:
            self._log.show(chunks)
            self._logged, _ = live_rows(self._log.file, self._log.entries(), self._log.index)
        elif chunks is not None:
            raise StoreError(f"{self._folder / LOG_FILE} is missing: the folder is incomplete; restore it from a copy")

    def _show_undo(self, undo: Undo) -> None:
        ids = [rows for rows, _ in read_undo(self._folder, undo, self.layout)]
        if undo.num_records:
            shape = (undo.num_records, record_bytes(self.layout) // 4)
            records = np.memmap(self._folder / UNDO_FILE, np.float32, "r", 0, shape)
            self._undo_ids, self._undo_words = np.concatenate(ids), np.asarray(records)[:, HEADER_WORDS:]


def _between(rows: Int64, begin: int, end: int) -> Int64:
    """Those of ascending rows that are in a range."""
    first, last = np.searchsorted(rows, (begin, end))
    return rows[first:last]


def _bits_of(bits: Bits, rows: Int64) -> Bool:
    found: Bool = (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1
    return found


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
