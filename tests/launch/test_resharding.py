"""Tables on another number of servers hold the same bytes, whenever the move was interrupted; runs go on with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from run_results import dense_half, rows_in_folders, rows_of
from warm_commands import Commands

from foresee.errors import StoreError
from foresee.run import checkpoint
from foresee.run.checkpoint import open_newest
from foresee.store import shard_folders
from foresee.store.disk import DiskStore
from foresee.store.disk.manifest import read_manifest
from foresee.store.layout import Layout, Table
from foresee.store.shard_folders import LocalShards, finish_switch, num_shards_in, reshard
from foresee.testing.fake_disk import small_chunks
from foresee.testing.store_suite import random_rows

LAYOUT = Layout(tables=(Table("a", 90), Table("b", 41)), width=6, state_width=1, optimizer="rowwise_adagrad", seed=3)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Tables of one process that was killed after step 3: rows in the base, newer ones in the log, and some that were
    never written."""
    import numpy as np

    folder, rng = tmp_path / "tables", np.random.default_rng(0)
    with small_chunks():
        store = DiskStore.create(tmp_path / "killed" / "tables", LAYOUT)
        for step in (2, 3):
            rows = rng.permutation(LAYOUT.num_rows)[:50].astype(np.int64)
            store.write(rows, random_rows(rng, len(rows), LAYOUT, step), (rows % 7).astype(np.int32))
            store.commit(step)
            if step == 2:
                store.fold()
        shutil.copytree(tmp_path / "killed" / "tables", folder)
        store.close()
        shutil.rmtree(tmp_path / "killed")
        assert read_manifest(folder).chunks is not None
        monkeypatch.setattr(checkpoint, "whole_steps", lambda folder: [3])
        yield folder


def bytes_in(tables: Path) -> dict[str, bytes]:
    store = LocalShards.open(tables, LAYOUT) if num_shards_in(tables) else DiskStore.open(tables, LAYOUT)
    assert store.committed_step == 3
    try:
        return rows_of(store)
    finally:
        store.close()


def move(tables: Path, num_shards: int) -> list[str]:
    said: list[str] = []
    reshard(tables, LAYOUT, num_shards, partial(open_newest, folder=tables.parent / "checkpoints"), said.append)
    return said


def test_every_number_of_shards_holds_the_same_bytes(tables: Path) -> None:
    shutil.copytree(tables, tables.with_name("copy"))
    before = bytes_in(tables.with_name("copy"))  # whoever looks at a folder folds it
    shutil.rmtree(tables.with_name("copy"))
    for num_shards in (2, 3, 1, 5, 0):
        assert len(move(tables, num_shards)) == 1
        assert num_shards_in(tables) == num_shards
        assert bytes_in(tables) == before
        assert move(tables, num_shards) == []
    assert [path.name for path in tables.parent.iterdir()] == ["tables"]


class Cut(BaseException):
    pass


@pytest.mark.parametrize("call", range(12))
def test_a_move_that_is_interrupted_is_finished_or_begun_again(
    tables: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    before, calls = bytes_in(tables), 0

    class Cutting(shard_folders.Files):  # type: ignore[name-defined,misc]
        def _count(self) -> None:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Cut

        def replace(self, source: Path, target: Path) -> None:
            self._count()
            super().replace(source, target)
            self._count()

        def sync_folder(self, folder: Path) -> None:
            self._count()
            super().sync_folder(folder)

    with monkeypatch.context() as patch:
        patch.setattr(shard_folders, "Files", Cutting)
        try:
            move(tables, 2)
        except Cut:
            assert call
        else:
            assert not call or calls < call
    finish_switch(tables)
    assert bytes_in(tables) == before
    move(tables, 2)
    assert num_shards_in(tables) == 2
    assert bytes_in(tables) == before


def test_a_full_disk_is_a_sentence(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    before = bytes_in(tables)
    with monkeypatch.context() as patch:
        patch.setattr(shard_folders, "_copy", full)
        with pytest.raises(StoreError, match=r"cannot be brought to 2 shards .* or resume with 0 servers"):
            move(tables, 2)
    assert bytes_in(tables) == before


def test_a_run_goes_on_with_another_number_of_servers(commands: Commands, run_file: Path) -> None:
    whole, run = run_file.parent / "whole", run_file.parent / "run"
    code, text = commands.run("train", run_file, "--set", f"run={whole}")
    assert code == 0, text
    for stop_after, servers in ((5, 2), (10, 3), (15, 1)):
        options = ["--resume"] if stop_after > 5 else []
        code, text = commands.run("train", run_file, "--servers", servers, "--stop-after", stop_after, *options)
        assert code == 0, text
    code, text = commands.run("train", run_file, "--resume")
    assert code == 0, text
    assert rows_in_folders(run) == rows_in_folders(whole)
    assert dense_half(run, 25) == dense_half(whole, 25)


def test_a_run_goes_on_with_another_number_of_trainers(commands: Commands, run_file: Path) -> None:
    """The same samples in the same order; sums are in another order, so that only the last bits differ."""
    for options in (
        ["--stop-after", 5],
        ["--resume", "--stop-after", 10, "--workers", 1, "--servers", 1],
        ["--resume", "--stop-after", 15, "--workers", 1, "--set", "distributed.servers=0"],
        ["--resume", "--workers", 2],
    ):
        code, text = commands.run("train", run_file, *options)
        assert code == 0, text
    assert "done: 25 steps" in text
