"""The disk store keeps the contract, and a table folder is what its format page says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from foresee.errors import StoreError
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskStore, open_table
from foresee.store.kernels import initial_values
from foresee.store.layout import Layout, Table
from foresee.testing import TwoPhaseStoreSuite
from foresee.testing.fake_disk import FakeDisk, PowerCut
from foresee.testing.store_suite import (
    SUITE_LAYOUT,
    assert_same,
    ids,
    initial_rows,
    random_rows,
    read_rows,
    store_machine,
)


def reopen_after_kill(store: Store, folder: Path, layout: Layout) -> Store:
    """The files as they are now, in another place and opened anew: what kill -9 leaves."""
    copy = folder.with_name(folder.name + ".copy")
    shutil.copytree(folder, copy)
    store.close()
    shutil.rmtree(folder)
    copy.rename(folder)
    return DiskStore.open(folder, layout)


class TestDiskStore(TwoPhaseStoreSuite):
    durable = True

    def make_store(self, folder: Path, layout: Layout) -> Store:
        return DiskStore.create(folder, layout)

    def reopen(self, store: Store, folder: Path, layout: Layout) -> Store:
        return reopen_after_kill(store, folder, layout)


TestDiskMachine = store_machine(
    lambda folder, layout: DiskStore.create(folder, layout, files=FakeDisk()), reopen_after_kill
).TestCase
TestDiskMachine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tables"


def written_store(folder: Path, version: int = 1) -> tuple[DiskStore, Rows]:
    """Tables in which rows 3, 1000 and 1006 are committed."""
    store = DiskStore.create(folder, SUITE_LAYOUT)
    source = random_rows(np.random.default_rng(0), 3, SUITE_LAYOUT, version)
    store.write(ids(3, 1000, 1006), source)
    store.commit(1)
    return store, source


def test_the_base_is_a_plain_array(folder: Path) -> None:
    store, source = written_store(folder)
    store.close()
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    assert rows.shape == (1007,)
    assert rows["value"][[3, 1000, 1006]].tobytes() == source.values.tobytes()
    assert rows["state"][[3, 1000, 1006]].tobytes() == source.state.tobytes()
    assert rows["version"][[0, 3]].tolist() == [0, 1]
    written = np.unpackbits(np.load(folder / "written.npy"), bitorder="little")
    assert np.flatnonzero(written).tolist() == [3, 1000, 1006]


def test_open_table(folder: Path) -> None:
    store, source = written_store(folder)
    store.close()
    item = open_table(folder, "item")
    assert item["value"].shape == (7, 5)
    assert item["value"][[0, 6]].tobytes() == source.values[1:].tobytes()
    assert item["version"].tolist() == [1, 0, 0, 0, 0, 0, 1]
    with pytest.raises(StoreError, match="no table 'film'; it has user, item"):
        open_table(folder, "film")


def test_unwritten_rows_take_no_space(folder: Path) -> None:
    layout = Layout(tables=(Table("t", 10**9),), width=64, state_width=1, optimizer="rowwise_adagrad")
    store = DiskStore.create(folder, layout)
    assert store.bytes_when_full == 264 * 10**9
    source = random_rows(np.random.default_rng(0), 1, layout, 1)
    store.write(ids(10**9 - 1), source)
    store.commit(1)
    assert_same(read_rows(store, ids(10**9 - 1)), source)
    store.close()
    assert (folder / "rows.npy").stat().st_blocks * 512 < 1 << 20


def test_initialise_all_gives_the_bytes_of_first_touch(folder: Path) -> None:
    store, source = written_store(folder)
    store.write(ids(5), random_rows(np.random.default_rng(1), 1, SUITE_LAYOUT, 2))
    reports: list[tuple[int, int]] = []
    store.initialise_all(lambda done, total: reports.append((done, total)))
    assert reports[-1] == (1007, 1007)
    store.close()
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    expected = initial_values(SUITE_LAYOUT, np.arange(1007, dtype=np.int64))
    expected[[3, 1000, 1006]] = source.values
    assert rows["value"].tobytes() == expected.tobytes()
    assert np.flatnonzero(rows["version"]).tolist() == [3, 1000, 1006]
    store = DiskStore.open(folder)
    assert_same(read_rows(store, ids(5, 1005)), initial_rows(SUITE_LAYOUT, ids(5, 1005)))
    assert_same(read_rows(store, ids(3, 1000, 1006)), source)
    store.close()


@pytest.mark.parametrize("num_rows", [1, 15, 16, 1007, 4096, 40_000])
def test_initial_values_past_the_page_cache_are_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_rows: int
) -> None:
    """Rows, header and checksums, whether the last block is whole or not; 40,000 rows fill the buffer twice."""
    layout = replace(SUITE_LAYOUT, tables=(Table("a", num_rows),), width=64)
    for way in ("io_uring", "threads", "mapped"):
        monkeypatch.setenv("FORESEE_DISK", way)
        store = DiskStore.create(tmp_path / way, layout)
        store.initialise_all()
        store.close()
    for name in ("rows.npy", "checksums.npy", "written.npy"):
        contents = {(tmp_path / way / name).read_bytes() for way in ("io_uring", "threads", "mapped")}
        assert len(contents) == 1, name
    rows = np.load(tmp_path / "io_uring/rows.npy")
    assert rows["value"].tobytes() == initial_values(layout, np.arange(num_rows, dtype=np.int64)).tobytes()


def test_a_power_cut_in_direct_initial_values_changes_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESEE_DISK", "io_uring")
    disk = FakeDisk()
    store = DiskStore.create(tmp_path / "tables", SUITE_LAYOUT, files=disk)
    disk.stop_at_name("write_pieces")
    with pytest.raises(PowerCut):
        store.initialise_all()
    store.close()
    store = DiskStore.open(tmp_path / "tables")
    everything = np.arange(SUITE_LAYOUT.num_rows, dtype=np.int64)
    assert_same(read_rows(store, everything), initial_rows(SUITE_LAYOUT, everything))
    store.close()


def test_the_log_gives_its_space_back(folder: Path) -> None:
    store, _ = written_store(folder)
    assert (folder / "log.bin").stat().st_blocks > 0
    assert len(list(folder.glob("chunks-*.bin"))) == 1
    store.close()
    assert (folder / "log.bin").stat().st_size == 0
    assert not list(folder.glob("chunks-*.bin"))


def test_open_or_create(folder: Path) -> None:
    DiskStore.open_or_create(folder, SUITE_LAYOUT).close()
    store = DiskStore.open_or_create(folder, SUITE_LAYOUT)
    store.commit(4)
    store.close()
    store = DiskStore.open(folder)
    assert (store.layout, store.committed_step) == (SUITE_LAYOUT, 4)
    store.close()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"width": 6}, "width 5, this run wants 6"),
        ({"state_width": 1}, "state_width 2, this run wants 1"),
        ({"optimizer": "sgd"}, "optimizer 'adagrad', this run wants 'sgd'"),
        ({"seed": 12}, "seed 11, this run wants 12"),
        ({"init_scale": 0.25}, "init_scale 0.5, this run wants 0.25"),
        ({"tables": (Table("user", 1007),)}, "holds 2 tables, this run wants 1"),
        ({"tables": (Table("user", 999), Table("item", 8))}, "'user' with 1000 rows .* 'user' with 999"),
    ],
)
def test_another_layout_is_refused_with_both_values(folder: Path, change: dict[str, object], sentence: str) -> None:
    DiskStore.create(folder, SUITE_LAYOUT).close()
    with pytest.raises(StoreError, match=sentence):
        DiskStore.open(folder, replace(SUITE_LAYOUT, **change))  # type: ignore[arg-type]


def test_create_does_not_overwrite(folder: Path) -> None:
    store, _ = written_store(folder)
    store.close()
    with pytest.raises(StoreError, match="already holds tables"):
        DiskStore.create(folder, SUITE_LAYOUT)
    (folder / "layout.json").unlink()
    with open(folder / "rows.npy", "ab") as stream:
        stream.write(b"x" * 200_000)
    with pytest.raises(StoreError, match=r"rows.npy holds data but no layout.json"):
        DiskStore.create(folder, SUITE_LAYOUT)


def test_two_stores_on_one_folder_are_refused(folder: Path) -> None:
    store = DiskStore.create(folder, SUITE_LAYOUT)
    with pytest.raises(StoreError, match="in use by this process, which opened these tables before; close them first"):
        DiskStore.open(folder)
    code = (
        "import pathlib, sys; from foresee.store.disk.store import DiskStore; DiskStore.open(pathlib.Path(sys.argv[1]))"
    )
    command = [sys.executable, "-c", code, str(folder)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert "is in use by another process; wait for it to end or stop it" in other.stderr
    store.close()
    DiskStore.open(folder).close()


def test_no_table_folder(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"not a table folder: it has no layout\.json"):
        DiskStore.open(tmp_path / "nothing")
    with pytest.raises(StoreError, match="0 rows"):
        DiskStore.create(tmp_path / "empty", replace(SUITE_LAYOUT, tables=()))
    assert not (tmp_path / "empty").exists()


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"cannot be created in .*file"):
        DiskStore.create(tmp_path / "file", SUITE_LAYOUT)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"{", "is not JSON"),
        (b"[]", "format version None"),
        (b'{"format_version": 99}', "format version 99, this program reads 4"),
        (b'{"format_version": 1}', r"lacks or garbles a key \(tables is missing"),
    ],
)
def test_bad_manifest(folder: Path, content: bytes, sentence: str) -> None:
    DiskStore.create(folder, SUITE_LAYOUT).close()
    (folder / "layout.json").write_bytes(content)
    with pytest.raises(StoreError, match=sentence):
        DiskStore.open(folder)


@pytest.mark.parametrize("name", ["rows.npy", "written.npy"])
def test_bad_arrays(folder: Path, name: str) -> None:
    DiskStore.create(folder, SUITE_LAYOUT).close()
    path = folder / name
    kept = path.read_bytes()
    path.write_bytes(kept[:-1])
    with pytest.raises(StoreError, match=f"{name} has .* bytes where .* was cut off"):
        DiskStore.open(folder)
    path.write_bytes(b"rubbish" * 100)
    with pytest.raises(StoreError, match=f"{name} is damaged"):
        DiskStore.open(folder)
    np.save(path, np.zeros(3))
    with pytest.raises(StoreError, match=f"{name} holds .* but layout.json says"):
        DiskStore.open(folder)
    path.unlink()
    with pytest.raises(StoreError, match=f"{name} is missing"):
        DiskStore.open(folder)
    path.write_bytes(kept)
    DiskStore.open(folder).close()


def test_nothing_stays_open(folder: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    store, _ = written_store(folder)
    store.close()
    (folder / "written.npy").unlink()
    with pytest.raises(StoreError):
        DiskStore.open(folder)
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_the_manifest_can_be_read_by_a_person(folder: Path) -> None:
    store, _ = written_store(folder)
    store.close()
    content = json.loads((folder / "layout.json").read_text())
    assert content["tables"] == [{"name": "user", "num_rows": 1000}, {"name": "item", "num_rows": 7}]
    assert (content["committed_step"], content["version_max"], content["chunks"]) == (1, 1, None)


def test_reads_with_threads_give_the_same_rows(folder: Path) -> None:
    layout = Layout(tables=(Table("t", 50_000),), width=8, state_width=1, optimizer="rowwise_adagrad")
    store = DiskStore.create(folder, layout)
    rng = np.random.default_rng(0)
    rows = rng.permutation(layout.num_rows).astype(np.int64)
    half = random_rows(rng, 25_000, layout, 1)
    store.write(rows[:25_000], half)
    store.commit(1)
    warm = read_rows(store, rows)
    store.close()
    descriptor = os.open(folder / "rows.npy", os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    store = DiskStore.open(folder)
    assert_same(read_rows(store, rows), warm)
    assert_same(warm.first(25_000), half)
    store.close()
