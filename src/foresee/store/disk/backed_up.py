"""A disk store whose commits are copied to a storage in the background, and can be had back from there.

In: a folder, a layout, a `Storage`. Out: a store like any other, which says of its part which commits the storage has
(`Part.stored`). A commit is durable here first; then a thread copies what is new of it. Opening at a commit that only
the storage has loads it: that is what a server does whose node was lost, and one that has gone on beyond what others
have. The tables are not folded: what is in the storage stays what is here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foresee.arrays import Int32, Int64
from foresee.errors import ConfigError, StoreError
from foresee.io.storage import Storage
from foresee.io.uploads import Uploads
from foresee.store.commits import Discard, ForgetWrites, GoBack, Instruction, Load, Part, Promote
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.disk.backup import LOADING_FILE, FolderCopies, empty_folder, snapshot
from foresee.store.layout import Layout
from foresee.store.parts import PartWrapper
from foresee.store.registry import StoreKind

_logger = logging.getLogger(__name__)

SHARDS = "tables"
"""Where the tables of a run are in its storage."""
ALONE = "alone"


def shard_place(shard: int, num_shards: int) -> tuple[str, str]:
    """Where the rows of a shard are in the storage of a run."""
    return SHARDS, f"shard-{shard}-of-{num_shards}"


def copied(kind: StoreKind, folder: Path, storage: Storage) -> StoreKind:
    """The same kind of store, for tables in this folder: their commits are copied to a storage."""
    if not kind.checked:
        raise ConfigError(
            f"tables.store: commits of the store {kind.name!r} cannot be copied to {storage.url}; use disk, or leave "
            "storage out"
        )

    def open_one(below: Path, layout: Layout) -> CopiedStore:
        names = below.relative_to(folder).parts
        return CopiedStore(below, layout, storage.below(*names) if names else storage)

    return replace(kind, open=open_one, open_server=open_one)


class CopiedStore(PartWrapper):
    """One table folder, and the copies of its commits."""

    takes_next_use = True

    def __init__(self, folder: Path, layout: Layout, storage: Storage) -> None:
        self._folder, self._layout = folder, layout
        if (folder / LOADING_FILE).exists():
            empty_folder(folder)
            (folder / LOADING_FILE).unlink()
        self._uploads = Uploads(storage.url)
        copying = storage.patient(storage.patience_seconds, lambda: self._uploads.closed)
        super().__init__(self._open())
        try:
            self._copies = FolderCopies(copying, folder)
        except BaseException:
            self.inner.close()
            raise
        self._opened = self._loading = False
        self._uploads.submit("clean", "the rest of an interrupted copy", self._copies.clean)

    def _open(self) -> DiskStore:
        store = DiskStore.open_or_create(self._folder, self._layout)
        store.fold_at_end = "never"
        return store

    @property
    def parts(self) -> tuple[Part]:
        part = self.inner.parts[0]
        steps = self._copies.steps
        # Copies of what a run has given up are none; they go with the next one.
        return (replace(part, stored=frozenset(it for it in steps if not self._opened or it <= part.committed)),)

    @property
    def behind(self) -> str | None:
        """What is not copied yet, as a sentence; None: nothing."""
        return self._uploads.behind()

    def write(self, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        self.inner.write(rows, source, next_use)

    def commit(self, step: int) -> None:
        self.inner.commit(step)
        self._copy()

    def carry_out(self, instruction: Instruction) -> None:
        """As a disk store does; `Load` is for the copies."""
        if isinstance(instruction, Load):
            self._load(instruction.step)
            return
        if isinstance(instruction, GoBack):
            self._copies.distrust_folder()
        self.inner.carry_out(instruction)
        self._opened = self._opened or isinstance(instruction, ForgetWrites)
        if isinstance(instruction, Promote | Discard | GoBack | ForgetWrites):
            self._copy()

    def _copy(self) -> None:
        """The last commit, unless the storage has it."""
        manifest = self.inner.manifest
        if not manifest.committed_step or manifest.prepared is not None or manifest.folding:
            return
        taken = snapshot(self._folder, manifest)
        if taken.step in self._copies.steps and self._opened and self._is_that(taken.manifest, taken.step):
            return

        def still_here() -> bool:
            now = self.inner.manifest
            return taken.step in (now.committed_step, now.previous_step) and not self._loading

        what = f"the commit of step {taken.step} of {self._folder}"
        self._uploads.submit("commit", what, lambda: self._copies.copy(taken, still_here))

    def _is_that(self, manifest: str, step: int) -> bool:
        return any(it.step == step and it.manifest == manifest for it in self._copies.copies)

    def _load(self, step: int) -> None:
        _logger.info("loads the commit of step %d from %s", step, self._copies.storage.url)
        self._loading, self._opened = True, False
        self._uploads.wait()  # what is on its way is of no use any more, and finds that out
        self.inner.close()
        try:
            self._copies.load(step, self._layout)
            self._opened = True
        finally:
            self.inner, self._loading = self._reopened(), False

    def _reopened(self) -> DiskStore:
        """Whatever a broken load has left goes: the storage still has everything."""
        if (self._folder / LOADING_FILE).exists():
            empty_folder(self._folder)
            (self._folder / LOADING_FILE).unlink()
        return self._open()

    def fold(self) -> None:
        """Brings the last commit into `rows.npy`; with the next one, all of that is copied again."""
        if not self._uploads.wait(0.0):
            raise StoreError(f"{self._folder} cannot be folded now: {self.behind}; wait for it")
        self.inner.fold()

    @property
    def way(self) -> Any:
        return self.inner.way

    @property
    def history(self) -> bytes | None:
        kept: bytes | None = self.inner.history
        return kept

    @history.setter
    def history(self, content: bytes) -> None:
        self.inner.history = content

    def close(self) -> None:
        self._uploads.close()
        self.inner.close()


def behind_of(parts: Sequence[Part]) -> list[int]:
    """Which parts have a last commit that the storage does not have yet."""
    return [number for number, part in enumerate(parts) if part.committed and part.committed not in part.stored]
