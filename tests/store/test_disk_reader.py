"""Whatever state a folder was left in, a reader sees each of its commits exactly, and leaves every byte as it was."""

from __future__ import annotations

import json
import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_disk_two_phases import (
    ALL_ROWS,
    LAYOUT,
    chunks_of_a_few_rows,
    expected_after,
    one_life,
    rows_of_step,
    store_at,
)

from foresee.errors import StoreError, UsageError
from foresee.store.disk import DiskReader, DiskStore
from foresee.store.server.shard import Share, disk_shard
from foresee.store.shard_folders import LocalShards, shard_folder
from foresee.testing.fake_disk import FakeDisk, PowerCut
from foresee.testing.store_suite import assert_same, read_rows

__all__ = ["chunks_of_a_few_rows"]


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def check_reader(folder: Path) -> frozenset[int]:
    """Every commit that the folder has is read as it was made; what counts as written are the rows written by then."""
    before = contents(folder)
    with_each = DiskReader.open(folder, LAYOUT)
    steps = with_each.parts[0].openable
    with_each.close()
    for step in sorted(steps):
        reader = DiskReader.open(folder)
        reader.open_at(step)
        assert reader.committed_step == step
        assert_same(read_rows(reader, ALL_ROWS), expected_after(step))
        rows = [rows_of_step(k)[0] for k in range(1, step + 1)]
        expected = np.unique(np.concatenate(rows)) if rows else np.empty(0, np.int64)
        np.testing.assert_array_equal(reader.written(0, LAYOUT.num_rows), expected)
        np.testing.assert_array_equal(reader.written(13, 101), expected[(expected >= 13) & (expected < 101)])
        reader.close()
    assert contents(folder) == before
    return steps


def test_all_kept_commits_of_a_folder_that_was_left_in_mid_commit(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tables", 3)
    store.write(*rows_of_step(4))
    store.prepare(4)
    store.write(*rows_of_step(5))
    store.close()
    assert check_reader(tmp_path / "tables") == {2, 3, 4}


def test_a_power_cut_at_every_call_of_two_phases(tmp_path: Path) -> None:
    num_cuts, unfolded = 0, 0
    for stop_at in count():
        folder, disk = tmp_path / str(stop_at) / "tables", FakeDisk()
        store = DiskStore.create(folder, LAYOUT, files=disk)
        disk.stop_at, decided = len(disk.calls) + stop_at, [0]
        try:
            one_life(store, decided)
            store.fold()
        except (PowerCut, StoreError):
            num_cuts += 1
        else:
            store.close()
            break
        lost = folder.with_name("lost")
        shutil.copytree(folder, lost)
        disk.lose_unsynced(lost, np.random.default_rng(stop_at))
        store.close()
        unfolded += json.loads((lost / "layout.json").read_text())["chunks"] is not None
        assert decided[-1] in check_reader(lost)
    assert num_cuts > 30
    assert unfolded > 5


def test_a_power_cut_at_every_call_of_going_back(tmp_path: Path) -> None:
    origin, half_way = tmp_path / "origin", 0
    store_at(origin, 3).close()
    for stop_at in count():
        folder, disk = tmp_path / str(stop_at) / "tables", FakeDisk()
        shutil.copytree(origin, folder)
        for path in folder.iterdir():
            disk._durable[path.name] = path.read_bytes()
        store = DiskStore.open(folder, files=disk)
        disk.stop_at = len(disk.calls) + stop_at
        try:
            store.open_at(2)
        except PowerCut:
            lost = folder.with_name("lost")
            shutil.copytree(folder, lost)
            disk.lose_unsynced(lost, np.random.default_rng(stop_at))
            store.close()
            half_way += json.loads((lost / "layout.json").read_text())["going_back"]
            assert 2 in check_reader(lost)
        else:
            store.close()
            assert half_way > 2
            return


def test_shards_are_read_at_a_commit_that_all_have(tmp_path: Path) -> None:
    for number in range(3):
        disk_shard(shard_folder(tmp_path, number), LAYOUT, Share(number, 3)).close()
    shards = LocalShards.open(tmp_path, LAYOUT)
    for step in (1, 2):
        shards.write(*rows_of_step(step))
        shards.commit(step)
    shards.write(*rows_of_step(3))
    shards.members[1].prepare(3)  # the run ended before the others had prepared it
    shards.close()
    for step in (1, 2):
        reader = LocalShards.open(tmp_path, LAYOUT, for_reading=True)
        reader.open_at(step)
        assert reader.committed_step == step
        assert_same(read_rows(reader, ALL_ROWS), expected_after(step))
        rows = np.unique(np.concatenate([rows_of_step(k)[0] for k in range(1, step + 1)]))
        np.testing.assert_array_equal(reader.written(10, 99), rows[(rows >= 10) & (rows < 99)])
        reader.close()


def test_readers_share_a_folder_and_keep_a_trainer_away(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    store = store_at(folder, 1)
    with pytest.raises(StoreError, match="is in use by this process, which opened"):
        DiskReader.open(folder)
    store.close()
    one, other = DiskReader.open(folder), DiskReader.open(folder)
    with pytest.raises(StoreError, match="is in use by this process, which opened"):
        DiskStore.open(folder)
    one.close()
    other.close()
    (folder / "lock").unlink()
    DiskReader.open(folder).close()
    assert not (folder / "lock").exists()


def test_a_reader_writes_nothing_and_says_what_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "tables"
    store = store_at(folder, 2)
    store.write(*rows_of_step(3))
    store.prepare(3)
    store.close()
    opened, flags_of = os.open, list[int]()

    def watched(path: Any, flags: int, *rest: Any) -> int:
        flags_of.append(flags)
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", watched)
    reader = DiskReader.open(folder)
    assert flags_of
    assert all(flags & os.O_ACCMODE == os.O_RDONLY for flags in flags_of)
    rows, source = rows_of_step(4)
    with pytest.raises(UsageError, match="were opened for reading"):
        reader.write(rows, source)
    for refused in (reader.commit, reader.prepare, reader.settle):
        with pytest.raises(UsageError, match="were opened for reading"):
            refused(4)
    reader.close()
    (folder / "chunks-3.bin").write_bytes(b"rubbish")
    reader = DiskReader.open(folder)
    assert reader.parts[0].openable == {1, 2}, "a prepared commit that is damaged is none"
    reader.close()
    (folder / "log.bin").unlink()
    with pytest.raises(StoreError, match=r"log.bin is missing"):
        DiskReader.open(folder)


def test_a_damaged_way_back_is_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    store_at(folder, 2).close()
    undo = bytearray((folder / "undo.bin").read_bytes())
    undo[100] ^= 8
    (folder / "undo.bin").write_bytes(undo)
    reader = DiskReader.open(folder)
    with pytest.raises(StoreError, match=r"undo.bin is damaged: it has checksum"):
        reader.open_at(1)
    reader.close()
