"""Runs whose rows are in a storage: another number of servers for one, or all of it on this machine to look at.

In: a run that goes on with so many servers, its storage, and whatever tables this machine has. Out: tables in that many
shards, here or in the storage, at the newest commit that all parts have; servers load what they do not have. Tables
that are complete here are moved here (`shard_folders.reshard`), and copied by their servers. Else all shards are loaded
into a scratch folder, moved there, and copied back; the storage shows the old ones until the new ones are whole.

Also a run at a URL, brought to this machine to be looked at (`brought_run`): its files and last commit, in the folder
that the run would use here. It is fetched as far as it is older than what the storage has, which a run that trains here
never is; nothing of the storage is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from foresee.errors import ConfigError, StoreError
from foresee.io.urls import Place, local_folder, shown
from foresee.run.backup import RunStorage
from foresee.run.build import open_log, table_layout
from foresee.run.checkpoint import open_newest
from foresee.run.config import AnyRun, RunConfig
from foresee.run.folder import CONFIG_FILE, RunFolder, open_run
from foresee.store.commits import step_to_open
from foresee.store.disk.backed_up import shard_place
from foresee.store.disk.backup import FolderCopies, snapshot
from foresee.store.disk.manifest import read_manifest
from foresee.store.layout import Layout
from foresee.store.row_groups import group_folder
from foresee.store.server.shard import Share, inner_layout, read_shard_file
from foresee.store.shard_folders import reshard, shard_folder, shard_folders


def bring_shards(
    config: RunConfig, layout: Layout, stored: RunStorage, say: Callable[[str], None], *, trust_here: bool = True
) -> None:
    """Tables in as many shards as the run has servers, where the storage or this machine has others.

    trust_here: what this machine has is not older than the storage's.
    """
    here, there = _whole_here(config.tables_folder) if trust_here else None, stored.num_shards
    if here is not None and here != config.num_servers:
        reshard(
            config.tables_folder,
            layout,
            config.num_servers,
            partial(open_newest, folder=RunFolder(config.run).checkpoints),
            say,
        )
    elif here is None and there is not None and there != config.num_servers:
        reshard_stored(stored, layout, config.num_servers, config.run, say)


def _whole_here(tables: Path) -> int | None:
    """The number of shards of this machine's tables, if all of them are here."""
    folders = shard_folders(tables)
    if not folders:
        return 0 if any(tables.glob("layout.json")) or any(tables.glob("width-*/layout.json")) else None
    for number, folder in enumerate(folders):
        below = next(iter(sorted(folder.glob("width-*"))), folder)
        found = read_shard_file(below)
        known = (found["shard"], found["num_shards"]) if found is not None else (0, 1)
        if not (below / "layout.json").exists() or known != (number, len(folders)):
            return None
    return len(folders)


def reshard_stored(stored: RunStorage, layout: Layout, num_shards: int, run: Path, say: Callable[[str], None]) -> None:
    """The rows of the storage's newest commit, in another number of shards of the same storage."""
    before = stored.num_shards or 1
    scratch = run / "resharding"
    shutil.rmtree(scratch, ignore_errors=True)
    tables = scratch / "tables"
    parts = parts_of(stored, tables, layout, before)
    step = step_to_open(stored.steps, [copies.steps for copies, _ in parts])
    if not step:
        raise StoreError(f"{stored.storage.url} has no commit that all of its {before} shards have; start anew")
    say(f"loading the commit of step {step} from {stored.storage.url}, to move its rows to {num_shards} servers")
    for copies, inner in parts:
        copies.load(step, inner)
    stored.bring(step)
    reshard(tables, layout, num_shards, partial(open_newest, folder=RunFolder(run).checkpoints), say)
    for shard in range(num_shards):
        for copies, _ in _shard(stored, shard_folder(tables, shard), layout, Share(shard, num_shards)):
            copies.copy(snapshot(copies.folder, read_manifest(copies.folder)), lambda: True)
    stored.resharded(step, num_shards)
    shutil.rmtree(scratch, ignore_errors=True)


def parts_of(stored: RunStorage, tables: Path, layout: Layout, num_servers: int) -> list[tuple[FolderCopies, Layout]]:
    """The copies of all table folders of a run with so many servers; 0: of one process."""
    if not num_servers:
        return _shard(stored, tables, layout, Share(0, 1), inner=False)
    shares = [Share(shard, num_servers) for shard in range(num_servers)]
    return [part for it in shares for part in _shard(stored, shard_folder(tables, it.shard), layout, it)]


def stored_steps(stored: RunStorage, layout: Layout, num_servers: int) -> frozenset[int]:
    """Commits whose rows are all in the storage, in whatever number of shards; `num_servers` if it knows of none."""
    parts = parts_of(stored, Path(os.devnull), layout, stored.num_shards or num_servers)
    return frozenset.intersection(*(copies.steps for copies, _ in parts))


def _shard(
    stored: RunStorage, folder: Path, layout: Layout, share: Share, *, inner: bool = True
) -> list[tuple[FolderCopies, Layout]]:
    """The copies of each row group of a shard, for a folder of this machine."""
    storage = stored.storage.below(*shard_place(share.shard, share.num_shards))

    def of_part(whole: Layout) -> Layout:
        return inner_layout(whole, share) if inner else whole

    if not layout.widths:
        return [(FolderCopies(storage, folder), of_part(layout))]
    return [
        (FolderCopies(storage.below(below.name), below), of_part(group))
        for group in layout.groups
        for below in [group_folder(folder, group)]
    ]


def described_run(folder: Path) -> tuple[AnyRun, Layout]:
    """A run on a log, and how its rows look."""
    config = open_run(folder)
    return config, table_layout(config, open_log(config))


Described = Callable[[Path], tuple[AnyRun, Layout]]


def brought_run(run: Place, *, tables: bool = True, described: Described = described_run) -> Path:
    """The run folder. Without `tables`, its rows and weights may be missing."""
    if isinstance(run, Path):
        return run
    folder = local_folder(run, "runs")
    stored = RunStorage(run, RunFolder(folder))
    try:
        if stored.storage.published(CONFIG_FILE) is None:
            raise ConfigError(f"{shown(run)} holds no run ({CONFIG_FILE} is missing); start one with `foresee train`")
        stored.forget_other_run()
        stored.fetch_files()
        if tables and stored.num_shards is not None:
            _bring_commit(*described(folder), stored)
    finally:
        stored.close()
    return folder


def _bring_commit(config: AnyRun, layout: Layout, stored: RunStorage) -> None:
    """The newest commit that all parts have, unless this machine has it or a newer one."""
    parts = parts_of(stored, config.tables_folder, layout, config.num_servers)
    step = step_to_open(stored.steps, [copies.steps for copies, _ in parts])
    if not step:
        return
    for copies, part in parts:
        if _committed_step(copies.folder) < step:
            copies.load(step, part)
    stored.bring(step)


def _committed_step(folder: Path) -> int:
    try:
        return read_manifest(folder).committed_step
    except StoreError:
        return 0
