"""A store on disk: committed rows in the base, rows written since then in the overlay.

In: a folder and a layout. Reads look into the overlay first, then the base; a row in neither has its initial value and
costs no read. A commit seals the overlay (checksum, sync, then `layout.json` replaced: from here on the commit stands),
folds it into the base, and replaces `layout.json` once more. Opening a folder finishes a commit that was interrupted
after the seal and forgets what was written after the last commit: a crash leaves exactly the last commit.

Locks, always taken in this order: writer (writes and commits, one at a time), reader (a whole read; a commit takes it
only to empty the overlay), and the overlay's own around its index.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from foresee.errors import StoreError, UsageError
from foresee.store.check import check_request
from foresee.store.contract import Int64, Layout, Rows
from foresee.store.disk.base import ROWS_FILE, Base
from foresee.store.disk.files import Files
from foresee.store.disk.folder import create_folder, lock_folder
from foresee.store.disk.manifest import MANIFEST_FILE, Journal, Manifest, check_same_layout, read_manifest, to_json
from foresee.store.disk.overlay import HEADER_WORDS, Overlay
from foresee.store.disk.parallel import ParallelCopy
from foresee.store.initial import initial_key, initial_unit
from foresee.store.kernels import gather

OVERLAY_FILE = "overlay.bin"
_FOLD_ROWS = 4096


class DiskStore:
    """Rows in a folder. Made with `create`, `open` or `open_or_create`."""

    def __init__(self, folder: Path, manifest: Manifest, lock: int, files: Files) -> None:
        self._folder, self._manifest, self._files, self._lock_descriptor = folder, manifest, files, lock
        self._key, self._unit = initial_key(manifest.layout), initial_unit(manifest.layout)
        self._writer, self._reader = threading.Lock(), threading.Lock()
        self._closed = False
        self._unusable: str | None = None
        self._version_max = manifest.version_max
        with ExitStack() as undo:
            self._base = Base(folder, manifest.layout, files)
            undo.callback(self._base.close)
            self._overlay = Overlay(folder / OVERLAY_FILE, manifest.layout, files)
            undo.callback(self._overlay.close, keep=True)
            self._parallel = ParallelCopy()
            undo.callback(self._parallel.close)
            self._recover()
            undo.pop_all()

    @classmethod
    def create(cls, path: str | Path, layout: Layout, *, files: Files | None = None) -> DiskStore:
        """Makes a folder of new tables. Rows take disk space when they are first written."""
        folder, files = Path(path), files or Files()
        if (folder / MANIFEST_FILE).exists():
            raise StoreError(f"{folder} already holds tables; open them, or choose another folder")
        create_folder(folder, layout, files)
        return cls.open(folder, layout, files=files)

    @classmethod
    def open(cls, path: str | Path, layout: Layout | None = None, *, files: Files | None = None) -> DiskStore:
        """Opens a table folder as of its last commit; with `layout`, only if it is that of the tables."""
        folder = Path(path)
        manifest = read_manifest(folder)
        if layout is not None:
            check_same_layout(folder, manifest.layout, layout)
        with ExitStack() as undo:
            lock = lock_folder(folder)
            undo.callback(os.close, lock)
            try:
                # Read again: another process may have committed before we had the lock.
                store = cls(folder, read_manifest(folder), lock, files or Files())
            except OSError as error:
                raise StoreError(f"{folder} cannot be opened: {error.strerror}; check the disk") from error
            undo.pop_all()
        return store

    @classmethod
    def open_or_create(cls, path: str | Path, layout: Layout, *, files: Files | None = None) -> DiskStore:
        """Opens the tables of this layout in a folder, or makes them if there are none."""
        exists = (Path(path) / MANIFEST_FILE).exists()
        return (cls.open if exists else cls.create)(path, layout, files=files)

    @property
    def layout(self) -> Layout:
        return self._manifest.layout

    @property
    def committed_step(self) -> int:
        return self._manifest.committed_step

    @property
    def bytes_when_full(self) -> int:
        """Disk space of the tables once every row has been written, without the overlay."""
        return self.layout.num_rows * self.layout.row_bytes

    def read(self, rows: Int64, out: Rows) -> None:
        self._check_usable()
        check_request(self.layout, rows, out)
        with self._reader:
            places = self._overlay.locate(rows, self._base.written)
            base, overlay = self._base.words, self._overlay.records

            def copy(begin: int, end: int) -> None:
                gather(
                    rows, places, base, overlay, HEADER_WORDS, self._key, self._unit,
                    out.values, out.state, out.versions, begin, end,
                )  # fmt: skip

            self._parallel.run(copy, len(rows))

    def write(self, rows: Int64, source: Rows) -> None:
        self._check_usable()
        check_request(self.layout, rows, source)
        with self._writer:
            missing = self._overlay.missing_bytes(len(rows))
            with self._full_disk_as_sentence(missing, "the rows written since the last commit"):
                self._overlay.reserve(len(rows))
            with self._unusable_on_failure("a write"):
                version_max = self._overlay.write(
                    rows, source, base=self._base.words, written=self._base.written,
                    base_version_max=self._manifest.version_max,
                )  # fmt: skip
            self._version_max = max(self._version_max, version_max)

    def commit(self, step: int) -> None:
        self._check_usable()
        if step < self.committed_step:
            raise UsageError(f"{self._folder}: step {step} cannot be committed: step {self.committed_step} already is")
        with self._writer:
            rows = self._overlay.row_ids(len(self._overlay))
            self._check_room_for(np.sort(rows))
            with self._unusable_on_failure(f"the commit of step {step}"):
                self._seal(step)
                self._fold(rows)
            with self._reader:
                self._overlay.clear()

    def initialise_all(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Writes every row's initial value now, the same bytes as on first touch; progress(rows done, rows)."""
        self._check_usable()
        with self._writer:
            needed, free = self.bytes_when_full, self._files.free_bytes(self._folder)
            taken = (self._folder / ROWS_FILE).stat().st_blocks * 512
            if needed - taken > free:
                raise StoreError(self._full_disk_sentence(needed - taken - free, "all initial values"))
            with self._full_disk_as_sentence(needed - taken, "all initial values"):
                self._base.initialise_all(progress)

    def forget_pages(self) -> None:
        """Lets the system forget the table files, as it does when they are far larger than memory.

        Changes nothing but the time of later reads: a way to measure cold tables without tables of that size.
        """
        self._check_usable()
        self._base.forget_pages()
        self._overlay.forget_pages()

    def close(self) -> None:
        if self._closed:
            return
        with self._writer, self._reader:
            self._closed = True
            self._parallel.close()
            self._base.close()
            # If a commit may be sealed, its records have to stay.
            self._overlay.close(keep=self._unusable is not None)
            os.close(self._lock_descriptor)

    def _recover(self) -> None:
        """Finishes the commit that was interrupted, if there is one, and forgets everything after it."""
        journal = self._manifest.journal
        if journal is not None:
            found = self._overlay.checksum(journal.num_records)
            if found != journal.crc32:
                raise StoreError(
                    f"{self._folder / OVERLAY_FILE} is damaged: the commit of step {self.committed_step} has checksum "
                    f"{journal.crc32:08x}, the file {found:08x}; restore the folder from a copy"
                )
            rows = self._overlay.row_ids(journal.num_records)
            with self._full_disk_as_sentence(self._base.new_bytes(np.sort(rows)), "the rows of an interrupted commit"):
                self._fold(rows)
        self._overlay.discard()

    def _seal(self, step: int) -> None:
        """After this the commit stands, whatever happens."""
        num_records = len(self._overlay)
        self._overlay.sync()
        journal = Journal(num_records=num_records, crc32=self._overlay.checksum(num_records))
        self._publish(replace(self._manifest, committed_step=step, version_max=self._version_max, journal=journal))

    def _fold(self, rows: Int64) -> None:
        """Writes the sealed records into the base, in the order of the file, and says that they are there."""
        order = np.argsort(rows)
        ascending = rows[order]

        def write(begin: int, end: int) -> None:
            for start in range(begin, end, _FOLD_ROWS):
                stop = min(start + _FOLD_ROWS, end)
                self._base.write_rows(ascending[start:stop], self._overlay.copy_words(order[start:stop]))

        self._parallel.run_threads(write, 0, len(rows))
        self._base.mark_written(rows)
        self._base.sync()
        self._publish(replace(self._manifest, journal=None))

    def _publish(self, manifest: Manifest) -> None:
        self._files.publish(self._folder / MANIFEST_FILE, to_json(manifest))
        self._manifest = manifest

    def _check_room_for(self, rows: Int64) -> None:
        """A commit that would fill the disk is refused before it begins."""
        needed, free = self._base.new_bytes(rows), self._files.free_bytes(self._folder)
        if needed > free:
            raise StoreError(self._full_disk_sentence(needed - free, "the rows of this commit"))

    def _full_disk_sentence(self, num_bytes: int, what: str) -> str:
        return (
            f"the disk of {self._folder} is full: {what} need {num_bytes:,} bytes more; free some space and resume "
            f"from the commit of step {self.committed_step}"
        )

    @contextmanager
    def _full_disk_as_sentence(self, num_bytes: int, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(self._full_disk_sentence(num_bytes, what)) from error
            raise StoreError(f"{self._folder} cannot be written: {error.strerror}; check the disk") from error

    @contextmanager
    def _unusable_on_failure(self, what: str) -> Iterator[None]:
        """After a failed write or sync nobody knows what is on the disk; only opening the folder again finds out."""
        try:
            yield
        except BaseException as error:
            self._unusable = (
                f"{self._folder}: {what} was interrupted ({error}); make sure that the disk works and has space, then "
                "open the folder again and go on from the commit it is at"
            )
            if isinstance(error, OSError):
                raise StoreError(self._unusable) from error
            raise

    def _check_usable(self) -> None:
        if self._closed:
            raise UsageError(f"the store of {self._folder} is closed; open it again to use it")
        if self._unusable is not None:
            raise StoreError(self._unusable)
