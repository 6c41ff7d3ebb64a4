"""Tables of a run on another number of servers, or on none: rows are streamed into new folders, which then take over.

In: the tables of a run at a commit, and how many shards are wanted. Out: a tables folder with as many shards at the
same commit, every row with its state and version. The old tables stay until the new ones are complete: then two renames
put these in their place, and whatever was interrupted is finished, or begun again, by the next call. Only a run that
goes on does this.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from foresee.engine.checkpoint import open_newest
from foresee.engine.launcher.local_shards import LocalShards, shard_folder, shard_folders
from foresee.errors import StoreError
from foresee.store.contract import Layout, Rows
from foresee.store.disk import DiskStore
from foresee.store.disk.files import Files
from foresee.store.disk.manifest import MANIFEST_FILE
from foresee.store.server.shard import Share, disk_shard
from foresee.words import counted

ROWS_AT_ONCE = 1 << 15
COMPLETE_FILE = "complete"


def num_shards_in(tables: Path) -> int | None:
    """0: tables of one process; None: there are no tables."""
    if folders := shard_folders(tables):
        return len(folders)
    return 0 if (tables / MANIFEST_FILE).exists() else None


def reshard(
    tables: Path, layout: Layout, num_shards: int, checkpoints: Path, say: Callable[[str], None]
) -> None:
    """Brings the tables into so many shards, at the run's newest complete commit. Does nothing where they are."""
    finish_switch(tables)
    found = num_shards_in(tables)
    if found is None or found == num_shards:
        return
    say(f"{tables}: rows move from {_in_words(found)} to {_in_words(num_shards)}")
    fresh = _fresh(tables)
    try:
        _copy(tables, fresh, layout, num_shards, checkpoints)
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


def _copy(tables: Path, fresh: Path, layout: Layout, num_shards: int, checkpoints: Path) -> None:
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    source = LocalShards.open(tables, layout) if shard_folders(tables) else DiskStore.open(tables, layout)
    try:
        step = open_newest(source, checkpoints)
        target = _make(fresh, layout, num_shards)
        try:
            for begin in range(0, layout.num_rows, ROWS_AT_ONCE):
                rows = np.arange(begin, min(begin + ROWS_AT_ONCE, layout.num_rows), dtype=np.int64)
                values = Rows.empty(len(rows), layout)
                source.read(rows, values)
                # Versions count from one: a row of version 0 was never written and follows from the seed.
                at = np.flatnonzero(values.versions > 0)
                target.write(rows[at], Rows(values.values[at], values.state[at], values.versions[at]))
            if step:
                target.commit(step)
        finally:
            target.close()
    finally:
        source.close()


def _make(fresh: Path, layout: Layout, num_shards: int) -> LocalShards | DiskStore:
    if not num_shards:
        return DiskStore.create(fresh, layout)
    return LocalShards(
        [disk_shard(shard_folder(fresh, shard), layout, Share(shard, num_shards)) for shard in range(num_shards)]
    )


def _fresh(tables: Path) -> Path:
    return tables.with_name(f"{tables.name}.resharded")


def _former(tables: Path) -> Path:
    return tables.with_name(f"{tables.name}.former")


def _in_words(num_shards: int) -> str:
    return counted(num_shards, "shard") if num_shards else "one folder"
