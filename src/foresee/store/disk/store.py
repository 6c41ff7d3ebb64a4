"""A store on disk: rows written in the log, laid down by their next use, all others in the base.

In: a folder and a layout. Reads look into the log first, then the base; a row in neither has its initial value and
costs no read. A commit writes what is still in memory and lists the chunks it has rows in; then `layout.json` is
replaced, and from here on the commit stands. Opening a folder forgets what was written after the last commit: a crash
leaves exactly that. Closing it folds a small log into the base, so that numpy reads the tables (see `folding`). Who
commits rows together with something else does it in two phases, `prepare` and `settle`, and decides after a crash with
`open_at`.

Locks, always taken in this order: writer (writes and commits, one at a time), reader (a whole read; a commit takes it
only to show other rows), and the log's own around its index.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import StoreError, UsageError
from foresee.io.direct import BUFFER_BYTES, Transfers, probe
from foresee.io.disk_stats import DiskCounts, DiskFigures
from foresee.io.files import Files
from foresee.io.machine import available_bytes
from foresee.store.commits import Discard, ForgetWrites, GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Rows, check_request
from foresee.store.disk.base import ROWS_FILE, Base, add_checksums
from foresee.store.disk.chunks import chunk_bytes_for
from foresee.store.disk.folder import FOLD_BYTES_MAX, FoldAtEnd, create_folder, lock_folder
from foresee.store.disk.journal import CommitJournal, Progress
from foresee.store.disk.log import RowLog
from foresee.store.disk.manifest import MANIFEST_FILE, Manifest, check_same_layout, read_manifest
from foresee.store.kernels import fill_initial_rows, initial_of
from foresee.store.layout import Layout
from foresee.store.parts import OnePart

_logger = logging.getLogger(__name__)

HISTORY_FILE = "sources.json"
COMMIT_BYTES = 1 << 14
"""What a commit takes beside its rows and 24 bytes a chunk."""
NO_FLOORS = np.zeros(0, np.int32)
NOTHING_COMMITTED = "start anew: nothing was committed yet"


class DiskStore(OnePart):
    """Rows in a folder. Made with `create`, `open` or `open_or_create`."""

    takes_next_use = True
    """`write` lays rows down by the step of their next use, if it is told."""

    def __init__(self, folder: Path, manifest: Manifest, lock: int, files: Files) -> None:
        self._folder, self._files, self._lock_descriptor = folder, files, lock
        self._initial = initial_of(manifest.layout)
        self._writer, self._reader = threading.Lock(), threading.Lock()
        self._closed = False
        self.fold_at_end: FoldAtEnd = "auto"
        self._unusable: str | None = None
        self._version_max = manifest.version_max
        with ExitStack() as undo:
            layout = manifest.layout
            if not manifest.all_checked:
                add_checksums(folder, layout, files)
            # Log and base may both hold every row.
            self.way = probe(folder / ROWS_FILE, 2 * layout.num_rows * layout.row_bytes, available_bytes())
            self._reads = Transfers(self.way, BUFFER_BYTES if self.way.direct else 0)
            undo.callback(self._reads.close)
            self._base = Base(folder, layout, files, self.way, all_checked=manifest.all_checked)
            undo.callback(self._base.close)
            chunk_bytes = manifest.chunk_bytes or chunk_bytes_for(layout)
            self._log = RowLog(folder, layout, chunk_bytes, files, self._reads, self._reader)
            undo.callback(self._log.close)
            self._journal = CommitJournal(folder, manifest, self._base, self._log, files)
            with self._full_disk_as_sentence("the rows of an interrupted commit"):
                self._journal.recover()
            self._undecided = self._journal.part.prepared is not None
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
    def fold_progress(self) -> Progress | None:
        """Takes rows done and rows in all while the folder is folded."""
        return self._journal.progress

    @fold_progress.setter
    def fold_progress(self, progress: Progress | None) -> None:
        self._journal.progress = progress

    @property
    def kept_log_bytes(self) -> int:
        """Size of the log if `close` leaves it as it is because it is large; else 0."""
        log_bytes = self._journal.log_bytes
        return log_bytes if self.fold_at_end == "auto" and log_bytes > FOLD_BYTES_MAX else 0

    @property
    def layout(self) -> Layout:
        return self._journal.manifest.layout

    @property
    def manifest(self) -> Manifest:
        """What the folder's `layout.json` says."""
        return self._journal.manifest

    @property
    def parts(self) -> tuple[Part]:
        """The commits that this folder can be opened at."""
        return (self._journal.part,)

    @property
    def bytes_when_full(self) -> int:
        """Disk space of the tables once every row has been written, without the log."""
        return self.layout.num_rows * self.layout.row_bytes

    def disks(self) -> list[DiskFigures]:
        """What was read and written since the folder was opened."""
        file = self._log.file
        counts = DiskCounts(self.way.name, self._reads.moved, file.written, file.syncs, file.sync_seconds)
        return [counts.figures()]

    @property
    def history(self) -> bytes | None:
        """What the tables were trained on, as it was last set; it counts together with a commit (engine.history)."""
        try:
            return (self._folder / HISTORY_FILE).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"{self._folder / HISTORY_FILE} cannot be read: {error.strerror}; check it") from error

    @history.setter
    def history(self, content: bytes) -> None:
        self._check_usable()
        with self._writer, self._full_disk_as_sentence("the note of what the tables were trained on"):
            self._files.publish(self._folder / HISTORY_FILE, content)

    def read(self, rows: Int64, out: Rows) -> None:
        self._check_usable()
        check_request(self.layout, rows, out)
        with self._reader:
            self._read(rows, out)

    def _read(self, rows: Int64, out: Rows) -> None:
        in_base, initial = self._log.read(rows, self._base.written, out)
        self._base.read(in_base, rows, out, self._reads)
        if len(initial):
            fill_initial_rows(initial, rows, self._initial, out.values, out.state, out.versions)

    def write(self, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        """Assigns the rows.

        Args:
            rows: Distinct ids.
            source: Their values, state and versions.
            next_use: The step at which each is needed next, or NOT_KNOWN (-1). It decides where a row lies, and
                nothing that is read.
        """
        self._check_usable()
        check_request(self.layout, rows, source)
        with self._writer:
            self._check_decided()
            floors = self._floors(rows, source.versions)
            missing = self._log.missing_bytes(len(rows))
            with self._full_disk_as_sentence("the rows written since the last commit", missing):
                self._log.reserve(len(rows))
            with self._unusable_on_failure("a write"):
                version_max = self._log.write(rows, source, next_use, floors)
            self._version_max = max(self._version_max, version_max)

    def _floors(self, rows: Int64, versions: Int32) -> Int32:
        """The versions of rows in the base that may be newer than those to be written. A write-back of this training
        run has a version above every one that was folded, so hardly a row is looked at."""
        newest = self._journal.manifest.base_version_max
        if not len(rows) or int(versions.min()) >= newest:
            return NO_FLOORS
        floors = np.zeros(len(rows), np.int32)
        older = np.flatnonzero(versions < newest)
        older = older[self._log.index.unknown(rows[older])]
        stored = Rows.empty(len(older), self.layout)
        with self._reader:
            self._read(rows[older], stored)
        floors[older] = stored.versions
        return floors

    def commit(self, step: int) -> None:
        """Seal and publish in one phase: a store that commits alone needs no decision."""
        self._check_usable()
        if step < self.committed_step:
            raise UsageError(f"{self._folder}: step {step} cannot be committed: step {self.committed_step} already is")
        with self._writer:
            self._check_decided()
            if (prepared := self._journal.part.prepared) is not None:
                raise UsageError(f"{self._folder}: step {prepared} is prepared; settle it before you commit {step}")
            self._make_room()
            with self._unusable_on_failure(f"the commit of step {step}"):
                self._journal.seal_decided(step, self._version_max)

    def carry_out(self, instruction: Instruction) -> None:
        """What a part is told to do; if it fails, the folder has to be opened again."""
        self._check_usable()
        with self._writer:
            if isinstance(instruction, Seal):
                self._check_decided()
                self._make_room()
            with self._unusable_on_failure(_words(instruction)):
                self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        journal = self._journal
        match instruction:
            case Seal(step):
                journal.seal(step, self._version_max)
            case Promote():
                journal.promote()
            case Discard():
                journal.discard()
            case ForgetWrites():
                journal.forget_writes()
                self._version_max = journal.manifest.version_max
                if journal.manifest.prepared is not None:
                    self._version_max = journal.manifest.prepared.version_max
            case GoBack():
                journal.go_back()
        if not isinstance(instruction, Seal | ForgetWrites):
            self._undecided = False
        if isinstance(instruction, Discard | GoBack):
            self._version_max = journal.manifest.version_max

    def fold(self) -> None:
        """Bring the last commit into `rows.npy`, which numpy then reads; see `fold_at_end`."""
        self._check_usable()
        with self._writer:
            self._check_decided()
            if self._log.changed or self._journal.part.prepared is not None:
                raise UsageError(f"{self._folder} has rows that are not committed; commit them, then fold")
            needed, free = self._journal.fold_bytes(), self._files.free_bytes(self._folder)
            if needed > free:
                raise StoreError(self._full_disk_sentence("the rows of the log in the tables", needed - free))
            with self._unusable_on_failure("the fold of the last commit"):
                self._journal.fold()

    def initialise_all(self, progress: Progress | None = None) -> None:
        """Writes every row's initial value now, the same bytes as on first touch; progress(rows done, rows)."""
        self._check_usable()
        with self._writer:
            needed, free = self.bytes_when_full, self._files.free_bytes(self._folder)
            taken = (self._folder / ROWS_FILE).stat().st_blocks * 512
            if needed - taken > free:
                raise StoreError(self._full_disk_sentence("all initial values", needed - taken - free))
            with self._full_disk_as_sentence("all initial values", needed - taken), self._journal.other_bits():
                self._base.initialise_all(progress)

    def forget_pages(self) -> None:
        """Lets the system forget the table files, as it does when they are far larger than memory.

        Changes nothing but the time of later reads: a way to measure cold tables without tables of that size.
        """
        self._check_usable()
        self._base.forget_pages()
        self._log.file.forget_pages()

    def close(self) -> None:
        if self._closed:
            return
        with self._writer:
            self._fold_at_the_end()
            self._closed = True
            with self._reader:
                self._log.close()
                self._base.close()
                self._reads.close()
                os.close(self._lock_descriptor)

    def _fold_at_the_end(self) -> None:
        """Fold as `fold_at_end` says. If this fails, nothing is lost: the rows are read from the log."""
        if kept := self.kept_log_bytes:
            _logger.info("%s: %s of rows stay in the log; foresee fold brings them into rows.npy", self._folder, kept)
        elif self.fold_at_end != "never" and self._unusable is None and self._journal.manifest.prepared is None:
            with suppress(BaseException):
                if self._journal.fold_bytes() <= self._files.free_bytes(self._folder):
                    self._journal.fold()

    def _make_room(self) -> None:
        """A commit that would fill the disk is refused before it begins; the space of its rows is taken already."""
        needed = COMMIT_BYTES + 24 * self._log.file.num_chunks
        if (free := self._files.free_bytes(self._folder)) < needed:
            raise StoreError(self._full_disk_sentence("the list of the rows of this commit", needed - free))

    def _full_disk_sentence(self, what: str, num_bytes: int | None) -> str:
        need = "more bytes" if num_bytes is None else f"{num_bytes:,} bytes more"
        return f"the disk of {self._folder} is full: {what} need {need}; free some space and " + (
            f"resume from the commit of step {step}" if (step := self.committed_step) else NOTHING_COMMITTED
        )

    @contextmanager
    def _full_disk_as_sentence(self, what: str, num_bytes: int | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreError(self._full_disk_sentence(what, num_bytes)) from error
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

    def _check_decided(self) -> None:
        if self._undecided:
            raise StoreError(
                f"{self._folder} was interrupted in the commit of step {self._journal.part.prepared}, and whether that "
                "stands is known to its run alone; go on with that run (foresee train --resume)"
            )


def _words(instruction: Instruction) -> str:
    match instruction:
        case Seal(step) | Promote(step):
            return f"the commit of step {step}"
        case Discard(step):
            return f"giving up the commit of step {step}"
        case GoBack(step):
            return f"going back to step {step}"
    return "forgetting what was written since the last commit"
