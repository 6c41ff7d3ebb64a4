"""The folders of several embedding servers, without a server: as one store, or streamed into another number of them.

In: a folder with `shard-0`, `shard-1`, … as `foresee serve --folder` made them, which no server has open. Out: a
two-phase store, so that a run trained with servers can be evaluated, exported, inspected or resumed in one process.

A resumed run may want another number of shards, or none: rows with state and version are streamed at a commit into new
folders. The old tables stay until the new ones are complete; then two renames put these in their place, and an
interrupted change is finished, or begun again, by the next call.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import StoreError
from foresee.io.files import Files
from foresee.io.units import counted
from foresee.store.contract import Rows, Store, TwoPhaseStore, scan
from foresee.store.layout import Layout
from foresee.store.parts import ManyParts
from foresee.store.registry import DISK, StoreKind
from foresee.store.row_groups import group_folders, groups_of, open_groups
from foresee.store.server.shard import Shard, Share, disk_shard, read_shard
from foresee.store.sharding import scatter, split


def shard_folders(folder: Path) -> list[Path]:
    """Folders of shards, in their order."""
    found = [path for path in folder.glob("shard-*") if path.name.removeprefix("shard-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("shard-")))


def shard_folder(folder: Path, shard: int) -> Path:
    return folder / f"shard-{shard}"


class LocalShards(ManyParts):
    """Row r is on shard r modulo the number of shards, as with servers."""

    @classmethod
    def open(cls, folder: Path, layout: Layout, *, for_reading: bool = False, kind: StoreKind = DISK) -> LocalShards:
        """All shards as they are; where a commit was interrupted between them, `open_at` brings them to one step."""
        num_shards = len(shard_folders(folder))
        folders = [shard_folder(folder, shard) for shard in range(num_shards)]
        return cls.in_folders(folders, layout, for_reading=for_reading, kind=kind)

    @classmethod
    def in_folders(
        cls, folders: Sequence[Path], layout: Layout, *, for_reading: bool = False, kind: StoreKind = DISK
    ) -> LocalShards:
        """One shard in each of these folders."""
        open_shard = read_shard if for_reading else disk_shard
        shards: list[Shard] = []
        try:
            for shard, folder in enumerate(folders):
                shards.append(open_shard(folder, layout, Share(shard, len(folders)), kind=kind))
        except BaseException:
            for opened in shards:
                opened.close()
            raise
        return cls(shards)

    @property
    def layout(self) -> Layout:
        layout: Layout = self.members[0].layout
        return layout

    def read(self, rows: Int64, out: Rows) -> None:
        parts = split(rows, len(self.members))
        for number, shard in enumerate(self.members):
            positions = parts.of(number)
            part = Rows.empty(len(positions), self.layout)
            shard.read(rows[positions], part)
            scatter(part, positions, out)

    takes_next_use = True
    """Hands them to shards, which hand them to stores that care."""

    def write(self, rows: Int64, source: Rows, *, next_use: Int32 | None = None) -> None:
        parts = split(rows, len(self.members))
        for number, shard in enumerate(self.members):
            at = parts.of(number)
            shard.write(rows[at], source.part(at), None if next_use is None else next_use[at])

    def written(self, begin: int, end: int) -> Int64:
        """The rows from `begin` to `end` that somebody has written, ascending; for shards opened for reading."""
        return np.sort(np.concatenate([shard.written(begin, end) for shard in self.members]))


def open_store(folder: Path, layout: Layout, kind: StoreKind = DISK, *, for_reading: bool = False) -> Any:
    """The store in a folder, whether one process or several servers made it, and however many widths its tables have.

    In the folder of a shard, as in that of one process, each row group has a folder of its own.
    """
    open_alone = (kind.open_reader if for_reading else None) or kind.open
    shards = shard_folders(folder) if kind.in_folder else []
    if not shards:
        return open_groups(layout, folder, open_alone)

    def open_group(below: Path, group: Layout) -> LocalShards:
        folders = [it / below.relative_to(folder) for it in shards]
        return LocalShards.in_folders(folders, group, for_reading=for_reading, kind=kind)

    return open_groups(layout, folder, open_group)


COMPLETE_FILE = "complete"


def num_shards_in(tables: Path, kind: StoreKind = DISK) -> int | None:
    """0: tables of one process; None: there are no tables."""
    if folders := shard_folders(tables):
        return len(folders)
    return 0 if kind.holds(tables) or group_folders(tables) else None


def reshard(
    tables: Path,
    layout: Layout,
    num_shards: int,
    open_newest: Callable[[TwoPhaseStore], int],
    say: Callable[[str], None],
    *,
    kind: StoreKind = DISK,
) -> None:
    """Brings the tables into so many shards, at the run's newest complete commit. Does nothing where they are."""
    finish_switch(tables)
    found = num_shards_in(tables, kind)
    if found is None or found == num_shards:
        return
    say(f"{tables}: rows move from {_in_words(found)} to {_in_words(num_shards)}")
    fresh = _fresh(tables)
    try:
        _copy(tables, fresh, layout, num_shards, open_newest, kind)
        Files().publish(fresh / COMPLETE_FILE, b"")
        _switch(tables)
    except OSError as error:
        raise StoreError(
            f"{tables} cannot be brought to {_in_words(num_shards)} ({error.strerror}); free some space, or resume "
            f"with {counted(found, 'server')}"
        ) from error


def finish_switch(tables: Path) -> None:
    """Whatever an interrupted call has left: its new tables take their place if they are complete, else they go."""
    if not tables.exists() and (_fresh(tables) / COMPLETE_FILE).exists():
        _switch(tables)
    if tables.exists():
        shutil.rmtree(_fresh(tables), ignore_errors=True)
        shutil.rmtree(_former(tables), ignore_errors=True)
        if (tables / COMPLETE_FILE).exists():  # a disk that cannot be written refuses even what there is not
            (tables / COMPLETE_FILE).unlink()


def _switch(tables: Path) -> None:
    files = Files()
    if tables.exists():
        shutil.rmtree(_former(tables), ignore_errors=True)
        files.replace(tables, _former(tables))
        files.sync_folder(tables.parent)
    files.replace(_fresh(tables), tables)
    files.sync_folder(tables.parent)
    finish_switch(tables)


def _copy(
    tables: Path,
    fresh: Path,
    layout: Layout,
    num_shards: int,
    open_newest: Callable[[TwoPhaseStore], int],
    kind: StoreKind,
) -> None:
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    source = open_store(tables, layout, kind)
    try:
        step = open_newest(source)
        for shard in range(num_shards):
            shard_folder(fresh, shard).mkdir()
        target = open_store(fresh, layout, kind)
        try:
            for of_source, of_target in zip(groups_of(source), groups_of(target), strict=True):
                _copy_rows(of_source, of_target)
            if step:
                target.commit(step)
        finally:
            target.close()
    finally:
        source.close()


def _copy_rows(source: Store, target: Store) -> None:
    # Not `written_only`: shards that are open for writing find written rows by reading all of them, once more.
    for ids, rows in scan(source):
        # Versions count from one: a row of version 0 was never written and follows from the seed.
        written = rows.versions > 0
        target.write(ids[written], rows.part(written))


def _fresh(tables: Path) -> Path:
    return tables.with_name(f"{tables.name}.resharded")


def _former(tables: Path) -> Path:
    return tables.with_name(f"{tables.name}.former")


def _in_words(num_shards: int) -> str:
    return counted(num_shards, "shard") if num_shards else "one folder"
