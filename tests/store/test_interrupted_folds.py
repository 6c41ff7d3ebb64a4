"""A fold that was interrupted is not finished by whoever opens the folder; its rows are read from the log."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from test_disk_two_phases import ALL_ROWS, commit_in_two_phases, expected_after, store_at

from foresee.store.disk import DiskReader, DiskStore, open_table
from foresee.store.disk.manifest import read_manifest
from foresee.testing.fake_disk import FakeDisk, PowerCut, small_chunks
from foresee.testing.store_suite import assert_same, read_rows
from foresee.tools.fsck import check

STEP = 3


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows() -> Iterator[None]:
    with small_chunks():
        yield


def interrupted_folds(place: Path) -> Iterator[Path]:
    """Folders at step 3, whose fold lost power at each of its calls; what was not synced is gone, or is there."""
    for stop_at in count():
        folder, disk = place / str(stop_at) / "tables", FakeDisk()
        store = store_at(folder, STEP, files=disk)
        disk.stop_at = len(disk.calls) + stop_at
        try:
            store.fold()
        except PowerCut:
            for name in ("killed", "lost"):
                shutil.copytree(folder, folder.with_name(name))
            disk.lose_unsynced(folder.with_name("lost"), np.random.default_rng(stop_at))
            store.close()
            yield folder.with_name("killed")
            yield folder.with_name("lost")
        else:
            store.close()
            assert stop_at > 10
            return


def opened(folder: Path) -> DiskStore:
    store = DiskStore.open(folder)
    store.fold_at_end = "never"
    return store


def assert_at(folder: Path, *steps: int) -> None:
    """Assert that the folder is whole and has the rows of these commits, for readers and for who writes to a copy."""
    found = check(folder)
    assert found.is_whole, found.sentence
    for step in steps:
        with closing(DiskReader.open(folder)) as reader:
            reader.open_at(step)
            assert_same(read_rows(reader, ALL_ROWS), expected_after(step))
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        with closing(opened(copy)) as store:
            store.open_at(step)
            assert_same(read_rows(store, ALL_ROWS), expected_after(step))
            store.fold()
            assert_same(read_rows(store, ALL_ROWS), expected_after(step))
        assert check(copy).is_whole
        expected = expected_after(step).versions[:90]
        assert (open_table(copy, "a")["version"] == expected)[expected > 0].all()
        shutil.rmtree(copy)


def go_on(folder: Path) -> list[int]:
    with closing(opened(folder)) as store:
        commit_in_two_phases(store, STEP + 1)
    return [STEP, STEP + 1]


def go_on_twice(folder: Path) -> list[int]:
    go_on(folder)
    with closing(opened(folder)) as store:
        commit_in_two_phases(store, STEP + 2)
    return [STEP + 1, STEP + 2]


def go_back(folder: Path) -> list[int]:
    with closing(opened(folder)) as store:
        store.open_at(STEP - 1)
    return [STEP - 1]


def go_back_and_on(folder: Path) -> list[int]:
    go_back(folder)
    return go_on_again(folder)


def go_on_again(folder: Path) -> list[int]:
    with closing(opened(folder)) as store:
        commit_in_two_phases(store, STEP)
    return [STEP - 1, STEP]


def fold_again_in_vain(folder: Path) -> list[int]:
    """The power goes in the second fold, too."""
    disk = FakeDisk()
    store = DiskStore.open(folder, files=disk)
    disk.stop_at_name("write_rows")
    if store.manifest.chunks is not None:
        with pytest.raises(PowerCut):
            store.fold()
    store.close()
    return [STEP - 1, STEP]


def nothing(folder: Path) -> list[int]:
    return [STEP - 1, STEP]


def open_only(folder: Path) -> list[int]:
    opened(folder).close()
    return [STEP - 1, STEP]


@pytest.mark.parametrize(
    "act",
    [nothing, open_only, go_on, go_on_twice, go_back, go_back_and_on, fold_again_in_vain],
    ids=lambda it: it.__name__,
)
def test_a_folder_whose_fold_was_interrupted_goes_on(tmp_path: Path, act: Callable[[Path], list[int]]) -> None:
    half_folded = 0
    for folder in interrupted_folds(tmp_path):
        half_folded += read_manifest(folder).folding
        assert_at(folder, *act(folder))
        shutil.rmtree(folder)
    assert half_folded > 5, "a test of nothing"


def test_opening_writes_nothing_to_the_arrays(tmp_path: Path) -> None:
    seen = 0
    for folder in interrupted_folds(tmp_path):
        if not read_manifest(folder).folding:
            continue
        before = {name: (folder / name).read_bytes() for name in ("rows.npy", "checksums.npy", "written.npy")}
        disk = FakeDisk()
        store = DiskStore.open(folder, files=disk)
        assert disk.calls == []
        store.fold_at_end = "never"
        store.close()
        assert {name: (folder / name).read_bytes() for name in before} == before
        seen += 1
    assert seen > 5
