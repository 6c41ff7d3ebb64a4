"""A store on disk: committed rows in the base, rows written since then in the overlay.

In: a folder and a layout. Reads look into the overlay first, then the base; a row in neither has its initial value and
costs no read. A commit seals the overlay (checksum, sync, then `layout.json` replaced: from here on the commit stands)
and folds it into the base. Opening a folder finishes a commit that was interrupted after the seal and forgets what was
written after the last commit: a crash leaves exactly the last commit. Who commits rows together with something else
does it in two phases, `prepare` and `settle`, and decides after a crash with `open_at` (see store.commits).

Locks, always taken in this order: writer (writes and commits, one at a time), reader (a whole read; a commit takes it
only to empty the overlay), and the overlay's own around its index. The thread that folds never takes the writer's.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from foresee.base.arrays import Int64
from foresee.base.files import Files
from foresee.errors import StoreError, UsageError
from foresee.store.commits import Discard, ForgetWrites, GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Layout, Rows, check_request, open_part, prepare_part, settle_part
from foresee.store.disk.base import ROWS_FILE, Base
from foresee.store.disk.folder import create_folder, lock_folder
from foresee.store.disk.journal import OVERLAY_FILE, CommitJournal
from foresee.store.disk.manifest import MANIFEST_FILE, Manifest, check_same_layout, read_manifest
from foresee.store.disk.overlay import HEADER_WORDS, Overlay
from foresee.store.disk.parallel import ParallelCopy
from foresee.store.kernels import gather, initial_key, initial_unit

HISTORY_FILE = "sources.json"
NOTHING_COMMITTED = "start anew: nothing was committed yet"


class DiskStore:
    """Rows in a folder. Made with `create`, `open` or `open_or_create`."""

    def __init__(self, folder: Path, manifest: Manifest, lock: int, files: Files) -> None:
        self._folder, self._files, self._lock_descriptor = folder, files, lock
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
            self._journal = CommitJournal(folder, manifest, self._base, self._overlay, files, self._reader)
            undo.callback(self._journal.close)
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
    def layout(self) -> Layout:
        return self._journal.manifest.layout

    @property
    def committed_step(self) -> int:
        return self._journal.manifest.committed_step

    @property
    def parts(self) -> tuple[Part]:
        """The commits that this folder can be opened at."""
        return (self._journal.part,)

    @property
    def bytes_when_full(self) -> int:
        """Disk space of the tables once every row has been written, without the overlay."""
        return self.layout.num_rows * self.layout.row_bytes

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
            self._check_decided()
            missing = self._overlay.missing_bytes(len(rows))
            with self._full_disk_as_sentence("the rows written since the last commit", missing):
                self._overlay.reserve(len(rows))
            with self._unusable_on_failure("a write"):
                version_max = self._overlay.write(
                    rows, source, base=self._base.words, written=self._base.written,
                    base_version_max=self._journal.manifest.version_max,
                )  # fmt: skip
            self._version_max = max(self._version_max, version_max)

    def commit(self, step: int) -> None:
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
                self._journal.fold()

    def prepare(self, step: int) -> None:
        """Makes what was written so far durable as the state after `step` steps, without giving up the last commit."""
        prepare_part(self, step)

    def settle(self, step: int) -> None:
        """The prepared step is the last commit. It is folded in the background."""
        settle_part(self, step)

    def open_at(self, step: int) -> None:
        """Goes to one of the commits that are kept, and gives up everything after it."""
        open_part(self, step)

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
                journal.fold_in_background()
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

    def initialise_all(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Writes every row's initial value now, the same bytes as on first touch; progress(rows done, rows)."""
        self._check_usable()
        with self._writer:
            self._journal.finish_folding()
            needed, free = self.bytes_when_full, self._files.free_bytes(self._folder)
            taken = (self._folder / ROWS_FILE).stat().st_blocks * 512
            if needed - taken > free:
                raise StoreError(self._full_disk_sentence("all initial values", needed - taken - free))
            with self._full_disk_as_sentence("all initial values", needed - taken):
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
        with self._writer:
            self._closed = True
            self._journal.close()
            with self._reader:
                self._parallel.close()
                self._base.close()
                # If a commit may be sealed, its records have to stay.
                manifest = self._journal.manifest
                sealed = manifest.prepared is not None or manifest.journal is not None
                self._overlay.close(keep=sealed or self._unusable is not None)
                os.close(self._lock_descriptor)

    def _make_room(self) -> None:
        """A commit that would fill the disk is refused before it begins. The one before has to be folded for it."""
        with self._unusable_on_failure("the fold of the last commit"):
            self._journal.finish_folding()
        needed, free = self._journal.bytes_needed(), self._files.free_bytes(self._folder)
        if needed > free:
            raise StoreError(self._full_disk_sentence("the rows of this commit", needed - free))

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
        if self._journal.failure is not None and self._unusable is None:
            with self._unusable_on_failure("the fold of the last commit"):
                raise self._journal.failure
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
