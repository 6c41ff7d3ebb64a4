"""A run at a URL, brought to this machine to be looked at: its files, and its last commit.

In: a run folder, or the URL of a run's storage. Out: a run folder of this machine, which is the given one, or the one
in the cache folder that the run would use here. It is fetched as far as it is older than what the storage has; a run
that trains here is never older. Nothing of the storage is written.
"""

from __future__ import annotations

from pathlib import Path

from foresee.base.places import Place, shown
from foresee.base.storage import local_folder
from foresee.errors import ConfigError, StoreError
from foresee.run.build import open_log, table_layout
from foresee.run.config import RunConfig
from foresee.run.run_folder import CONFIG_FILE, RunFolder, open_run
from foresee.run.run_storage import RunStorage
from foresee.run.stored_shards import parts_of
from foresee.store.commits import step_to_open
from foresee.store.disk.manifest import read_manifest


def brought_run(run: Place, *, tables: bool = True) -> Path:
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
            _bring_commit(open_run(folder), stored)
    finally:
        stored.close()
    return folder


def _bring_commit(config: RunConfig, stored: RunStorage) -> None:
    """The newest commit that all parts have, unless this machine has it or a newer one."""
    parts = parts_of(stored, config.tables_folder, table_layout(config, open_log(config)), config.num_servers)
    step = step_to_open(stored.steps, [copies.steps for copies, _ in parts])
    if not step:
        return
    for copies, layout in parts:
        if _committed_step(copies.folder) < step:
            copies.load(step, layout)
    stored.bring(step)


def _committed_step(folder: Path) -> int:
    try:
        return read_manifest(folder).committed_step
    except StoreError:
        return 0
