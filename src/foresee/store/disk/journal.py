"""The commits of one table folder: sealed, promoted, folded into the base, given up, undone.

In: instructions (see store.commits), one at a time, from the store that holds the writer's lock. Out: a folder in which
`layout.json` names the last commit and how to reach the one before it and a prepared one. Sealing is all that training
waits for; a promoted commit is folded by a thread, while reads find its rows in the overlay. Everything that can be
needed again after a crash is on the disk before `layout.json` says so, and `recover` finishes whatever was interrupted.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from foresee.base import failpoints
from foresee.base.arrays import Int64
from foresee.base.failpoints import failpoint
from foresee.base.files import Files
from foresee.errors import StoreError
from foresee.store.commits import Part
from foresee.store.disk.base import Base
from foresee.store.disk.manifest import MANIFEST_FILE, Journal, Manifest, Prepared, to_json
from foresee.store.disk.overlay import Overlay
from foresee.store.disk.parallel import ParallelCopy
from foresee.store.disk.undo import apply_undo, forget_undo, undo_bytes, write_undo

OVERLAY_FILE = "overlay.bin"
_FOLD_ROWS = 4096
_FOLD_THREADS = 4
_FOLD_NICENESS = 10
"""Folding is in no hurry; training is."""


class CommitJournal:
    """Made with a folder that is open. Only `failure` may be asked without the writer's lock."""

    def __init__(
        self, folder: Path, manifest: Manifest, base: Base, overlay: Overlay, files: Files, reader: threading.Lock
    ) -> None:
        self._folder, self._base, self._overlay, self._files, self._reader = folder, base, overlay, files, reader
        self._parallel = ParallelCopy(_FOLD_THREADS)
        self._folding: threading.Thread | None = None
        self.manifest = manifest
        self.failure: BaseException | None = None
        """Why folding failed, if it did: the commit stands, and opening the folder again finishes it."""

    @property
    def part(self) -> Part:
        """What the disk says, as the decisions of commits see it."""
        manifest = self.manifest
        prepared = None if manifest.prepared is None else manifest.prepared.step
        return Part(committed=manifest.committed_step, previous=manifest.previous_step, prepared=prepared)

    def bytes_needed(self) -> int:
        """Disk space that a commit of what is in the overlay takes beyond the overlay, at most."""
        rows = np.sort(self._overlay.row_ids(self._overlay.segment, len(self._overlay)))
        return self._base.new_bytes(rows) + undo_bytes(len(rows), self.manifest.layout)

    def recover(self) -> None:
        """Finishes what was interrupted, forgets everything after the newest commit; a prepared one stays prepared."""
        if self.manifest.going_back:
            self._finish_going_back()
        if self.manifest.journal is not None:
            self._check_whole(self.manifest.journal)
            self._fold()
        prepared = self.manifest.prepared
        if prepared is None:
            self._overlay.discard()
        elif self._checksum(prepared.journal) == prepared.journal.crc32:
            self._overlay.rewind((prepared.journal.segment, prepared.journal.num_records))
            self._overlay.release(prepared.journal.segment)  # undecided: reads see the last commit
        else:
            self.discard()

    def seal(self, step: int, version_max: int) -> None:
        """The overlay becomes the prepared commit of a step."""
        journal = self._sync_overlay()
        failpoint(failpoints.SEALING)
        prepared = Prepared(step=step, version_max=version_max, journal=journal)
        self._publish(replace(self.manifest, prepared=prepared))
        self._overlay.switch()
        failpoint(failpoints.SEALED)

    def seal_decided(self, step: int, version_max: int) -> None:
        """The overlay becomes the commit of a step, in one move: for who commits nothing else beside it."""
        journal = self._sync_overlay()
        failpoint(failpoints.SEALING)
        self._publish(self._committed(step, version_max, journal))
        self._overlay.switch()
        failpoint(failpoints.SEALED)

    def promote(self) -> None:
        """The prepared commit is the last one. Whoever calls this folds it, now or in the background."""
        prepared = self.manifest.prepared
        assert prepared is not None, "only what is prepared can be promoted"
        self._publish(self._committed(prepared.step, prepared.version_max, prepared.journal))
        failpoint(failpoints.PROMOTED)

    def discard(self) -> None:
        """The prepared commit is given up."""
        self._publish(replace(self.manifest, prepared=None))
        with self._reader:
            self._overlay.discard()

    def forget_writes(self) -> None:
        """Reads see the newest commit again, a prepared one included."""
        self.finish_folding()
        prepared = self.manifest.prepared
        with self._reader:
            if prepared is None:
                self._overlay.rewind(None)
            else:
                self._overlay.rewind((prepared.journal.segment, prepared.journal.num_records))

    def go_back(self) -> None:
        """The commit before the last one is the last one again."""
        manifest = self.manifest
        assert manifest.previous_step is not None, "there is a commit to go back to"
        assert manifest.journal is None, "folded before"
        self._publish(
            replace(
                manifest, committed_step=manifest.previous_step, version_max=manifest.previous_version_max,
                previous_step=None, going_back=manifest.undo is not None,
            )
        )  # fmt: skip
        failpoint(failpoints.GOING_BACK)
        if self.manifest.going_back:
            self._finish_going_back()

    def fold(self) -> None:
        """Brings the last commit into the base, now."""
        if self.manifest.journal is not None:
            self._fold()

    def fold_in_background(self) -> None:
        """The same by a thread; `finish_folding` waits for it."""
        self._folding = threading.Thread(target=self._fold_and_remember, name="foresee-fold", daemon=True)
        self._folding.start()

    def finish_folding(self) -> None:
        """Waits for the thread; raises why it failed."""
        if self._folding is not None:
            self._folding.join()
            self._folding = None
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        with suppress(BaseException):  # the next one that opens the folder finishes it, or says why it cannot
            self.finish_folding()
        self._parallel.close()

    def _sync_overlay(self) -> Journal:
        num_records, segment = len(self._overlay), self._overlay.segment
        self._overlay.sync()
        return Journal(num_records=num_records, crc32=self._overlay.checksum(segment, num_records), segment=segment)

    def _committed(self, step: int, version_max: int, journal: Journal) -> Manifest:
        """The next commit. One of the same step replaces the last one, and there is no way back from it."""
        manifest = self.manifest
        again = step == manifest.committed_step
        return replace(
            manifest, committed_step=step, version_max=version_max, journal=journal, prepared=None, undo=None,
            previous_step=None if again else manifest.committed_step, previous_version_max=manifest.version_max,
        )  # fmt: skip

    def _fold_and_remember(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _FOLD_NICENESS)
        try:
            self._fold()
        except BaseException as error:
            self.failure = error

    def _fold(self) -> None:
        """Writes the sealed records into the base, and says that they are there. May be repeated from any point: the
        way back is written before the base changes, and never from a base that has begun to."""
        journal = self.manifest.journal
        assert journal is not None, "there is something to fold"
        rows = self._overlay.row_ids(journal.segment, journal.num_records)
        order = np.argsort(rows)
        ascending = rows[order]
        if self.manifest.undo is None and self.manifest.previous_step is not None:
            undo = write_undo(self._folder, ascending, self._base, self._files, self._parallel)
            self._publish(replace(self.manifest, undo=undo))
            failpoint(failpoints.UNDO_WRITTEN)
        self._write_base(journal, ascending, order)
        self._base.mark_written(rows)
        self._base.sync()
        self._publish(replace(self.manifest, journal=None))
        with self._reader:
            self._overlay.release(journal.segment)
        failpoint(failpoints.FOLDED)

    def _write_base(self, journal: Journal, ascending: Int64, order: Int64) -> None:
        def write(begin: int, end: int) -> None:
            for start in range(begin, end, _FOLD_ROWS):
                piece = slice(start, min(start + _FOLD_ROWS, end))
                self._base.write_rows(ascending[piece], self._overlay.copy_words(journal.segment, order[piece]))
                failpoint(failpoints.FOLDING)

        self._parallel.run_threads(write, 0, len(ascending))

    def _finish_going_back(self) -> None:
        assert self.manifest.undo is not None, "the way back is known"
        with self._reader:
            apply_undo(self._folder, self.manifest.undo, self._base)
        self._publish(replace(self.manifest, undo=None, going_back=False))
        forget_undo(self._folder)

    def _checksum(self, journal: Journal) -> int:
        return self._overlay.checksum(journal.segment, journal.num_records)

    def _check_whole(self, journal: Journal) -> None:
        found = self._checksum(journal)
        if found != journal.crc32:
            raise StoreError(
                f"{self._folder / OVERLAY_FILE} is damaged: the commit of step {self.manifest.committed_step} has "
                f"checksum {journal.crc32:08x}, the file {found:08x}; restore the folder from a copy"
            )

    def _publish(self, manifest: Manifest) -> None:
        self._files.publish(self._folder / MANIFEST_FILE, to_json(manifest))
        self.manifest = manifest
