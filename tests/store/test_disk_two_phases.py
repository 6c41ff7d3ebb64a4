"""Two commits are kept, a third may be prepared, and whatever happens a folder can be opened at what was promised."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from test_disk_recovery import flip

from foresee.arrays import Int64
from foresee.errors import StoreError, UsageError
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout, Table
from foresee.testing.fake_disk import FakeDisk, PowerCut, small_chunks
from foresee.testing.store_suite import assert_same, initial_rows, random_rows, read_rows

LAYOUT = Layout(tables=(Table("a", 90), Table("b", 40)), width=6, state_width=1, optimizer="rowwise_adagrad", seed=3)
ALL_ROWS = np.arange(LAYOUT.num_rows, dtype=np.int64)


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows() -> Iterator[None]:
    with small_chunks():
        yield


def rows_of_step(step: int) -> tuple[Int64, Rows]:
    """What step `step` writes: some rows for the first time, some again."""
    rng = np.random.default_rng(step)
    rows = rng.permutation(LAYOUT.num_rows)[:50].astype(np.int64)
    return rows, random_rows(rng, len(rows), LAYOUT, step)


def expected_after(step: int) -> Rows:
    expected = initial_rows(LAYOUT, ALL_ROWS)
    for k in range(1, step + 1):
        rows, source = rows_of_step(k)
        expected.values[rows], expected.state[rows] = source.values, source.state
        expected.versions[rows] = source.versions
    return expected


def commit_in_two_phases(store: DiskStore, step: int) -> None:
    store.write(*rows_of_step(step))
    store.prepare(step)
    store.settle(step)


def store_at(folder: Path, step: int, *, files: FakeDisk | None = None) -> DiskStore:
    store = DiskStore.create(folder, LAYOUT, files=files)
    for k in range(1, step + 1):
        commit_in_two_phases(store, k)
    return store


def at_step(store: DiskStore, step: int) -> None:
    assert store.committed_step == step
    assert_same(read_rows(store, ALL_ROWS), expected_after(step))


def test_rows_are_read_through_every_phase(tmp_path: Path) -> None:
    store = DiskStore.create(tmp_path / "tables", LAYOUT)
    for step in range(1, 6):
        store.write(*rows_of_step(step))
        assert_same(read_rows(store, ALL_ROWS), expected_after(step))
        store.prepare(step)
        assert_same(read_rows(store, ALL_ROWS), expected_after(step))
        assert store.committed_step == step - 1
        store.settle(step)
        at_step(store, step)
    store.close()


def test_writes_after_the_seal_do_not_belong_to_the_commit(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tables", 1)
    store.write(*rows_of_step(2))
    store.prepare(2)
    store.write(*rows_of_step(3))
    store.settle(2)
    assert_same(read_rows(store, ALL_ROWS), expected_after(3))
    store.close()
    store = DiskStore.open(tmp_path / "tables")
    at_step(store, 2)
    store.close()


@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("reopened", [False, True])
def test_each_commit_that_is_kept_can_be_opened(tmp_path: Path, step: int, reopened: bool) -> None:
    folder = tmp_path / "tables"
    store = store_at(folder, 3)
    store.write(*rows_of_step(4))
    store.prepare(4)
    store.write(*rows_of_step(5))
    assert store.parts[0].openable == {2, 3, 4}
    if reopened:
        store.close()
        store = DiskStore.open(folder)
        assert store.parts[0].openable == {2, 3, 4}
        at_step(store, 3)
    store.open_at(step)
    at_step(store, step)
    for k in range(step + 1, 7):
        commit_in_two_phases(store, k)
    at_step(store, 6)
    store.close()
    store = DiskStore.open(folder)
    at_step(store, 6)
    assert store.parts[0].openable == {5, 6}
    store.open_at(5)
    at_step(store, 5)
    store.close()


def test_going_back_to_the_beginning_brings_initial_values_back(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tables", 1)
    store.open_at(0)
    at_step(store, 0)
    store.close()
    store = DiskStore.open(tmp_path / "tables")
    at_step(store, 0)
    store.close()


def test_what_is_undecided_is_not_written_over(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tables", 1)
    store.write(*rows_of_step(2))
    store.prepare(2)
    with pytest.raises(UsageError, match="step 2 is prepared; settle it"):
        store.commit(3)
    store.close()
    store = DiskStore.open(tmp_path / "tables")
    with pytest.raises(StoreError, match=r"interrupted in the commit of step 2, .*go on with that run"):
        store.write(*rows_of_step(3))
    with pytest.raises(StoreError, match="interrupted in the commit of step 2"):
        store.commit(3)
    store.open_at(2)
    commit_in_two_phases(store, 3)
    at_step(store, 3)
    store.close()


def test_a_commit_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    store = store_at(tmp_path / "tables", 3)
    with pytest.raises(StoreError, match="no commit of step 1 here, only of 2, 3"):
        store.open_at(1)
    with pytest.raises(StoreError, match="step 7 is not prepared here"):
        store.settle(7)
    store.close()


def test_a_prepared_commit_that_is_damaged_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    store = store_at(folder, 2)
    store.write(*rows_of_step(3))
    store.prepare(3)
    store.close()
    number = json.loads((folder / "layout.json").read_text())["prepared"]["chunks"]["number"]
    flip(folder / f"chunks-{number}.bin", 40)
    store = DiskStore.open(folder)
    assert store.parts[0].openable == {1, 2}
    at_step(store, 2)
    store.close()


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_way_back_is_a_sentence(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "tables"
    store_at(folder, 2).close()
    undo = folder / "undo.bin"
    content = bytearray(undo.read_bytes())
    content[100] ^= 8
    if damage == "remove":
        undo.unlink()
    else:
        undo.write_bytes(content if damage == "flip" else content[:-20])
    store = DiskStore.open(folder)
    at_step(store, 2)
    with pytest.raises(StoreError, match=r"undo.bin is (damaged|cut off|missing)"):
        store.open_at(1)
    store.close()


def test_a_folder_of_the_first_format_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    store_at(folder, 2).close()
    layout = json.loads((folder / "layout.json").read_text())
    for key in ("prepared", "previous_step", "previous_version_max", "undo", "going_back", "written_crc32", "crc32"):
        del layout[key]
    (folder / "layout.json").write_text(json.dumps({**layout, "format_version": 1}))
    store = DiskStore.open(folder)
    at_step(store, 2)
    assert store.parts[0].openable == {2}
    commit_in_two_phases(store, 3)
    at_step(store, 3)
    store.close()


def one_life(store: DiskStore, decided: list[int]) -> None:
    """Commits as a run does: prepared, decided elsewhere, settled."""
    for step in range(store.committed_step + 1, 4):
        store.write(*rows_of_step(step))
        store.prepare(step)
        decided.append(step)
        store.settle(step)


def test_power_cut_at_every_call_of_two_phases(tmp_path: Path) -> None:
    """What was decided can be opened; what was not prepared everywhere may be gone; nothing is a mixture."""
    num_cuts = 0
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
        for seed in range(3):
            lost = folder.with_name(f"lost-{seed}")
            shutil.copytree(folder, lost)
            disk.lose_unsynced(lost, np.random.default_rng(seed))
            check_life_after(lost, decided)
        store.close()
    assert num_cuts > 30


def check_life_after(folder: Path, decided: list[int]) -> None:
    store = DiskStore.open(folder, files=FakeDisk())
    kept = store.parts[0].openable
    assert decided[-1] in kept
    assert len(decided) == 1 or decided[-2] in kept
    at_step(store, store.committed_step)
    store.open_at(decided[-1])
    at_step(store, decided[-1])
    one_life(store, [])
    at_step(store, 3)
    store.close()


def test_power_cut_at_every_call_of_going_back(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
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
            found = DiskStore.open(lost, files=FakeDisk())
            assert found.committed_step in (2, 3)
            at_step(found, found.committed_step)
            found.open_at(2)
            at_step(found, 2)
            found.close()
        else:
            store.close()
            assert stop_at > 5
            return
