"""The commits of one table folder: sealed, promoted, given up, undone, and folded into the base.

In: instructions (see store.commits), one at a time, from the store that holds the writer's lock. Out: a folder in which
`layout.json` names the last commit, a prepared one and the one before, each by the list of its chunks. A commit copies
nothing: the rows stay in the log until the folder is folded. Everything that can be needed again after a crash is on
the disk before `layout.json` says so, and `recover` finishes whatever was interrupted, except a fold: the log still has
all rows of the last commit, and rows of the log hide those of the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from foresee.arrays import Int64
from foresee.errors import StoreError
from foresee.io import failpoints
from foresee.io.failpoints import failpoint
from foresee.io.files import Files
from foresee.store.commits import Part
from foresee.store.contract import Rows
from foresee.store.disk.base import Base
from foresee.store.disk.chunks import ParallelCopy, live_rows, read_directory
from foresee.store.disk.log import RowLog
from foresee.store.disk.manifest import MANIFEST_FILE, Chunks, Journal, Manifest, Prepared, to_json
from foresee.store.disk.undo import (
    NOT_WRITTEN,
    OVERLAY_FILE,
    apply_undo,
    forget_undo,
    record_bytes,
    rows_of,
    sealed_records,
    unwritten_before,
    words_of,
    write_undo,
)

Progress = Callable[[int, int], None]
"""Takes rows done, and rows in all."""
_FOLD_ROWS = 1 << 15
_FOLD_THREADS = 4


class CommitJournal:
    """Made with a folder that is open."""

    def __init__(self, folder: Path, manifest: Manifest, base: Base, log: RowLog, files: Files) -> None:
        self._folder, self._base, self._log, self._files = folder, base, log, files
        self.progress: Progress | None = None
        """Told how far a fold is."""
        self.manifest = manifest

    @property
    def part(self) -> Part:
        """What the disk says, as the decisions of commits see it."""
        manifest = self.manifest
        prepared = None if manifest.prepared is None else manifest.prepared.step
        return Part(committed=manifest.committed_step, previous=manifest.previous_step, prepared=prepared)

    def recover(self) -> None:
        """Finish what was interrupted, and forget everything after the newest commit; a prepared one stays prepared."""
        if not self.manifest.going_back and not self.manifest.folding:
            self._base.check_bits(self.manifest.written_crc32)
        if self.manifest.going_back:
            self._finish_going_back()
        self._take_over_overlay()
        self._log.show(self.manifest.chunks)
        if self.manifest.folding:
            rows = live_rows(self._log.file, read_directory(self._folder, self.manifest.chunks), self._log.index)[0]
            self._base.check_bits(self.manifest.written_crc32, add=rows)
            self.manifest = replace(self.manifest, folding=False, half_folded=True)
        with suppress(StoreError):  # whoever goes back is told
            self._log.look(self.manifest.previous_chunks)
        self.manifest = replace(self.manifest, written_crc32=self._base.bits_crc())
        if self.manifest.prepared is not None:
            try:
                self._log.check(self.manifest.prepared.chunks)
            except StoreError:
                self.discard()
        self._keep()

    def seal(self, step: int, version_max: int) -> None:
        """What was written becomes the prepared commit of a step."""
        chunks = self._log.seal()
        failpoint(failpoints.SEALING)
        self._publish(replace(self.manifest, prepared=Prepared(step=step, version_max=version_max, chunks=chunks)))
        failpoint(failpoints.SEALED)

    def seal_decided(self, step: int, version_max: int) -> None:
        """What was written becomes the commit of a step, in one move: for who commits nothing else beside it."""
        chunks = self._log.seal()
        failpoint(failpoints.SEALING)
        self._publish(self._committed(step, version_max, chunks))
        failpoint(failpoints.SEALED)

    def promote(self) -> None:
        """The prepared commit is the last one."""
        prepared = self.manifest.prepared
        assert prepared is not None, "only what is prepared can be promoted"
        self._publish(self._committed(prepared.step, prepared.version_max, prepared.chunks))
        failpoint(failpoints.PROMOTED)

    def discard(self) -> None:
        """The prepared commit is given up."""
        self._publish(replace(self.manifest, prepared=None))
        self._show(self.manifest.chunks)

    def forget_writes(self) -> None:
        """Reads see the newest commit again, a prepared one included."""
        prepared = self.manifest.prepared
        self._show(self.manifest.chunks if prepared is None else prepared.chunks)

    def go_back(self) -> None:
        """The commit before the last one is the last one again."""
        manifest = self.manifest
        assert manifest.previous_step is not None, "there is a commit to go back to"
        self._log.check(manifest.previous_chunks)
        bits = manifest.written_crc32
        if manifest.undo is not None:  # damage is found before anything goes
            bits = self._base.bits_crc(remove=unwritten_before(self._folder, manifest.undo, manifest.layout))
        self._publish(
            replace(
                manifest,
                committed_step=manifest.previous_step,
                version_max=manifest.previous_version_max,
                chunks=manifest.previous_chunks,
                previous_step=None,
                previous_chunks=None,
                going_back=manifest.undo is not None,
                written_crc32=bits,
            )
        )
        failpoint(failpoints.GOING_BACK)
        if self.manifest.going_back:
            self._finish_going_back()
        self._show(self.manifest.chunks)

    def fold_bytes(self) -> int:
        """Disk space that folding takes, at most."""
        rows, _ = live_rows(self._log.file, read_directory(self._folder, self.manifest.chunks), self._log.index)
        return self._base.new_bytes(rows) + len(rows) * record_bytes(self.manifest.layout)

    def fold(self) -> None:
        """Brings the last commit into the base, and gives up what was written after it. Nothing may be prepared."""
        if self.manifest.chunks is None:
            return
        if self._log.changed:
            self._show(self.manifest.chunks)
        self._begin_fold()
        self._fold()

    @property
    def log_bytes(self) -> int:
        """Size of the chunks that the last commit lists."""
        chunks = self.manifest.chunks
        return 0 if chunks is None else chunks.num_chunks * self._log.file.shape.chunk_bytes

    def _begin_fold(self) -> None:
        """Write the way back before the base changes. Rows that an interrupted fold has changed come from the log."""
        manifest, undo = self.manifest, self.manifest.undo
        if manifest.previous_step is not None and undo is None:
            changed, read = self._before()
            undo = write_undo(self._folder, manifest.layout, changed, read, self._files)
        rows, _ = live_rows(self._log.file, read_directory(self._folder, manifest.chunks), self._log.index)
        self._publish(replace(manifest, undo=undo, folding=True, written_crc32=self._base.bits_crc(add=rows)))
        failpoint(failpoints.UNDO_WRITTEN)

    def _before(self) -> tuple[Int64, Callable[[Int64, Rows], None]]:
        """Rows in which the last commit may differ from the one before, ascending; and a way to read them as of that:
        from its own chunks, which are still there, else from the base."""
        last = read_directory(self._folder, self.manifest.chunks)
        before = read_directory(self._folder, self.manifest.previous_chunks)
        new = ~np.isin(last[:, 1] << 32 | last[:, 0], before[:, 1] << 32 | before[:, 0])
        changed, _ = live_rows(self._log.file, last[new], self._log.index)
        positions = np.full(len(changed), -1, np.int64)
        for chunk, ids, _ in self._log.file.headers(before):
            at = np.minimum(np.searchsorted(changed, ids), max(len(changed) - 1, 0))
            found = np.flatnonzero(changed[at] == ids) if len(changed) else np.empty(0, np.int64)
            positions[at[found]] = chunk * self._log.file.shape.chunk_rows + found

        def read(rows: Int64, out: Rows) -> None:
            places = positions[np.searchsorted(changed, rows)]
            logged = np.flatnonzero(places >= 0)
            written = (self._base.written[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1 == 1
            out.values.fill(0.0)
            out.state.fill(0.0)
            out.versions.fill(NOT_WRITTEN)
            self._log.file.read(places[logged], logged, rows, out, self._log.reads)
            self._base.read(np.flatnonzero((places < 0) & written), rows, out, self._log.reads)

        return changed, read

    def _fold(self) -> None:
        """Writes the rows of the log into the base, and says that they are there. May be repeated from any point."""
        manifest = self.manifest
        rows, _ = live_rows(self._log.file, read_directory(self._folder, manifest.chunks), self._log.index)
        self._base.check_bits(manifest.written_crc32, add=rows)
        parallel = ParallelCopy(_FOLD_THREADS)
        try:
            for begin in range(0, len(rows), _FOLD_ROWS):
                self._fold_piece(rows[begin : begin + _FOLD_ROWS], parallel)
                if self.progress is not None:
                    self.progress(min(begin + _FOLD_ROWS, len(rows)), len(rows))
        finally:
            parallel.close()
        self._base.mark_written(rows)
        self._base.sync()
        self._publish(
            replace(
                manifest,
                chunks=None,
                previous_chunks=None,
                folding=False,
                half_folded=False,
                base_version_max=manifest.version_max,
                written_crc32=self._base.bits_crc(),
            )
        )
        with self._log.reader:
            if manifest.prepared is None:
                self._log.clear()
            else:  # taken over from an older format; its chunks stay
                self._log.show(None)
        failpoint(failpoints.FOLDED)

    def _fold_piece(self, rows: Int64, parallel: ParallelCopy) -> None:
        found = Rows.empty(len(rows), self.manifest.layout)
        with self._log.reader:  # the log refuses older records, which would get a right checksum in the base
            self._log.read(rows, self._base.written, found)
        words = words_of(found)

        def write(begin: int, end: int) -> None:
            self._base.write_rows(rows[begin:end], words[begin:end])
            failpoint(failpoints.FOLDING)

        parallel.run_threads(write, 0, len(rows))

    @contextmanager
    def other_bits(self) -> Iterator[None]:
        """While all bits of the base are being set, nobody knows what they are."""
        self._publish(replace(self.manifest, written_crc32=None))
        yield
        self._publish(replace(self.manifest, written_crc32=self._base.bits_crc()))

    def _committed(self, step: int, version_max: int, chunks: Chunks | None) -> Manifest:
        """The next commit. One of the same step replaces the last one, and there is no way back from it."""
        manifest = self.manifest
        again = step == manifest.committed_step
        return replace(
            manifest,
            committed_step=step,
            version_max=version_max,
            chunks=chunks,
            prepared=None,
            undo=None,
            previous_step=None if again else manifest.committed_step,
            previous_version_max=manifest.version_max,
            previous_chunks=None if again else manifest.chunks,
        )

    def _finish_going_back(self) -> None:
        assert self.manifest.undo is not None, "the way back is known"
        with self._log.reader:
            gone = unwritten_before(self._folder, self.manifest.undo, self.manifest.layout)
            self._base.check_bits(self.manifest.written_crc32, remove=gone)
            apply_undo(self._folder, self.manifest.undo, self._base, self.manifest.layout)
        self._publish(replace(self.manifest, undo=None, going_back=False))
        forget_undo(self._folder)

    def _take_over_overlay(self) -> None:
        """A folder of an older format was left in mid-commit: what is sealed in its overlay goes to the log."""
        manifest, prepared = self.manifest, self.manifest.prepared
        if manifest.journal is not None or (prepared is not None and prepared.journal is not None):
            self._log.show(None)
            chunks = None if manifest.journal is None else self._log_of(manifest.journal)
            if prepared is not None and prepared.journal is not None:
                try:
                    prepared = replace(prepared, chunks=self._log_of(prepared.journal), journal=None)
                except StoreError:  # damaged: as if it had never been prepared
                    prepared = None
            # If the way back is written, the base may have begun to change.
            folding = manifest.journal is not None and manifest.undo is not None
            self._publish(replace(manifest, chunks=chunks, journal=None, prepared=prepared, folding=folding))
        (self._folder / OVERLAY_FILE).unlink(missing_ok=True)

    def _log_of(self, journal: Journal) -> Chunks | None:
        layout = self.manifest.layout
        for ids, words in sealed_records(self._folder, journal, layout):
            self._log.reserve(len(ids))
            self._log.write(ids, rows_of(words, layout), None, np.zeros(len(ids), np.int32))
        return self._log.seal()

    def _show(self, chunks: Chunks | None) -> None:
        with self._log.reader:
            self._log.show(chunks)

    def _publish(self, manifest: Manifest) -> None:
        manifest = replace(manifest, chunk_bytes=self._log.file.shape.chunk_bytes)
        self._files.publish(self._folder / MANIFEST_FILE, to_json(manifest))
        self.manifest = manifest
        self._keep()

    def _keep(self) -> None:
        manifest = self.manifest
        prepared = None if manifest.prepared is None else manifest.prepared.chunks
        self._log.keep((manifest.previous_chunks, manifest.chunks, prepared))
