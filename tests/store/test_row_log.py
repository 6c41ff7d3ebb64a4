"""Rows lie by their next use, each with a checksum, by every way; space is used again; older folders are taken over."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from numpy.typing import NDArray
from test_disk_store import reopen_after_kill

from foresee.arrays import Int64
from foresee.errors import ConfigError, StoreError
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskReader, DiskStore, open_table
from foresee.store.disk.log import RowLog
from foresee.store.kernels import crc_of_words, crc_step, crc_step_by_table
from foresee.store.layout import Layout, Table
from foresee.testing import TwoPhaseStoreSuite
from foresee.testing.fake_disk import small_chunks
from foresee.testing.store_suite import (
    assert_same,
    ids,
    initial_rows,
    random_rows,
    read_rows,
    store_machine,
)
from foresee.tools.cli.check import fold

WAYS = ("mapped", "threads", "io_uring")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FORESEE_DISK", request.param)
    return str(request.param)


def crc32c(content: bytes) -> int:
    """From the definition, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_the_checksum_is_crc32c() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    words = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 40).astype(np.int32)
    for row, begin, end in ((0, 0, 1), (7, 3, 10), ((1 << 40) + 5, 0, 40), (2, 5, 5)):
        content = struct.pack("<q", row) + words[begin:end].tobytes()
        assert int(crc_of_words(row, words, begin, end)) == crc32c(content + b"\0" * (-len(content) % 8))
    for crc, word in ((0, 0), (0xFFFFFFFF, 1), (123, (1 << 64) - 1)):
        assert crc_step(np.uint64(crc), np.uint64(word)) == crc_step_by_table(np.uint64(crc), np.uint64(word))


class TestSmallChunks(TwoPhaseStoreSuite):
    """The contract with chunks of a few rows, past the page cache."""

    durable = True

    @pytest.fixture(autouse=True)
    def _small(self, way: str) -> Iterator[None]:
        with small_chunks():
            yield

    def make_store(self, folder: Path, layout: Layout) -> Store:
        return DiskStore.create(folder, layout)

    def reopen(self, store: Store, folder: Path, layout: Layout) -> Store:
        return reopen_after_kill(store, folder, layout)


def _create(folder: Path, layout: Layout) -> Store:
    with small_chunks():
        return DiskStore.create(folder, layout)


def _reopen(store: Store, folder: Path, layout: Layout) -> Store:
    with small_chunks():
        return reopen_after_kill(store, folder, layout)


class _Machine(store_machine(_create, _reopen)):  # type: ignore[misc]
    """As any store; and it is told next uses that may be wrong, is folded, and compacts."""

    @rule(rows=st.lists(st.integers(0, 40), max_size=30, unique=True), seed=st.integers(0, 1 << 31))
    def write_with_hints(self, rows: list[int], seed: int) -> None:
        rng = np.random.default_rng(seed)
        source = random_rows(rng, len(rows), self.store.layout, int(rng.integers(5, 15)))
        self.store.write(ids(*rows), source, rng.integers(-1, 9, len(rows)).astype(np.int32))
        self.remember(ids(*rows), source)

    @rule()
    def fold(self) -> None:
        with small_chunks():
            self.commit(1)
            self.store.fold()


class TestSmallMachine(_Machine.TestCase):  # type: ignore[misc, name-defined]
    settings = settings(max_examples=20, stateful_step_count=30, deadline=None)

    def setUp(self) -> None:
        # Its crash is a kill, which loses nothing that was written: syncs show nothing here, and on a busy disk they
        # take most of the time. What is lost without them is tested by power cuts, on a disk that is simulated.
        super().setUp()
        syncs = mock.patch("os.fsync")
        syncs.start()
        self.addCleanup(syncs.stop)


def test_a_step_needs_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told when rows are needed, the store reads them in a few pieces; not told, nearly one by one."""
    monkeypatch.setenv("FORESEE_DISK", "io_uring")
    layout = Layout(tables=(Table("t", 20_000),), width=60, state_width=1, optimizer="x")
    rng = np.random.default_rng(0)
    next_use = rng.integers(0, 50, layout.num_rows).astype(np.int32)
    requests = {}
    for told in (True, False):
        store = DiskStore.create(tmp_path / str(told), layout)
        if store.way.name != "io_uring":
            pytest.skip(f"this machine has {store.way}")
        source = random_rows(rng, layout.num_rows, layout, 1)
        for some in np.array_split(rng.permutation(layout.num_rows), 40):
            part = Rows(source.values[some], source.state[some], source.versions[some])
            store.write(some, part, next_use[some] if told else None)
        store.commit(1)
        for step in range(50):
            rows = np.flatnonzero(next_use == step)
            found = read_rows(store, rows)
            assert found.values.tobytes() == source.values[rows].tobytes()
        requests[told] = store.disks()[0]["read_requests"]
        store.close()
    assert requests[True] < 50 * 6
    assert requests[False] > 10 * requests[True]


def test_space_is_used_again(tmp_path: Path, way: str) -> None:
    """However often rows are written, the log is a few times what they take."""
    layout = Layout(tables=(Table("t", 500),), width=6, state_width=1, optimizer="x")
    with small_chunks():
        store = DiskStore.create(tmp_path / "tables", layout)
        rng, version, sizes = np.random.default_rng(0), 0, []
        expected = initial_rows(layout, np.arange(500))
        for step in range(1, 61):
            for _ in range(4):
                version += 1
                rows = rng.permutation(500)[:120]
                source = random_rows(rng, 120, layout, version)
                store.write(rows, source)
                expected.values[rows], expected.state[rows] = source.values, source.state
                expected.versions[rows] = version
            store.commit(step)
            sizes.append((tmp_path / "tables" / "log.bin").stat().st_size)
        assert_same(read_rows(store, np.arange(500)), expected)
        assert sizes[-1] <= 1.2 * max(sizes[:10]), "it does not grow for ever"
        store.close()
        rows_file = open_table(tmp_path / "tables", "t")
        assert rows_file["version"].tolist() == expected.versions.tolist()


def test_the_emptiest_chunks_are_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tables=(Table("t", 400),), width=6, state_width=1, optimizer="x")
    moved: list[int] = []
    compact = RowLog.compact

    def watched(log: RowLog) -> None:
        before = log.index.count
        compact(log)
        moved.append(log.index.count - before)

    monkeypatch.setattr(RowLog, "compact", watched)
    rng = np.random.default_rng(0)
    with small_chunks():
        store = DiskStore.create(tmp_path / "tables", layout)
        all_rows = random_rows(rng, 400, layout, 1)
        store.write(np.arange(400), all_rows)
        for version in range(2, 40):  # nine of ten rows of every chunk are written again and again
            rows = np.flatnonzero(np.arange(400) % 10 != 0)
            some = random_rows(rng, len(rows), layout, version)
            store.write(rows, some)
            all_rows.values[rows], all_rows.state[rows], all_rows.versions[rows] = some.values, some.state, version
            assert_same(read_rows(store, np.arange(400)), all_rows)
        assert sum(moved) > 0, "nothing was compacted: a test of nothing"
        store.commit(1)
        assert_same(read_rows(store, np.arange(400)), all_rows)
        store.close()


# Folders of an older format ------------------------------------------------------------------------------------------

OLD = Layout(tables=(Table("a", 90), Table("b", 40)), width=6, state_width=1, optimizer="rowwise_adagrad", seed=3)


def records(rows: Int64, source: Rows) -> bytes:
    """As `overlay.bin` and `undo.bin` of format 2 had them."""
    kind = np.dtype([("row", "<i8"), ("value", "<f4", 6), ("state", "<f4", 1), ("version", "<i4")])
    found = np.zeros(len(rows), kind)
    found["row"], found["value"], found["state"], found["version"] = rows, source.values, source.state, source.versions
    return found.tobytes()


def old_folder(folder: Path, *, prepared: bool, undo: bool) -> tuple[Rows, Rows, Rows]:
    """Step 1 in the base, step 2 sealed and not folded, step 3 perhaps prepared; the rows after each."""
    rng = np.random.default_rng(0)
    store = DiskStore.create(folder, OLD)
    after = [initial_rows(OLD, np.arange(130))]
    sealed = []
    for step in (1, 2, 3):
        rows, now = rng.permutation(130)[:50], Rows(*(part.copy() for part in _parts(after[-1])))
        source = random_rows(rng, 50, OLD, step)
        now.values[rows], now.state[rows], now.versions[rows] = source.values, source.state, source.versions
        after.append(now)
        sealed.append((rows, source))
    store.write(*sealed[0])
    store.commit(1)
    store.close()
    second, third = (records(*sealed[k]) for k in (1, 2))
    segment = 130 * (8 + OLD.row_bytes)
    (folder / "overlay.bin").write_bytes(second.ljust(segment, b"\0") + third)
    layout = json.loads((folder / "layout.json").read_text())
    for key in ("base_version_max", "chunk_bytes", "chunks", "folding", "previous_chunks", "written_crc32", "crc32"):
        del layout[key]
    journal = {"num_records": 50, "crc32": zlib.crc32(second), "segment": 0}
    layout |= {"format_version": 2, "committed_step": 2, "version_max": 2, "journal": journal, "undo": None,
               "previous_step": 1, "previous_version_max": 1}  # fmt: skip
    if prepared:
        mark = {"num_records": 50, "crc32": zlib.crc32(third), "segment": 1}
        layout["prepared"] = {"step": 3, "version_max": 3, "journal": mark}
    if undo:
        rows = np.sort(sealed[1][0])
        old = Rows(*(part[rows].copy() for part in _parts(after[1])))
        old.versions[old.versions == 0] = -1
        (folder / "undo.bin").write_bytes(records(rows, old))
        layout["undo"] = {"num_records": 50, "crc32": zlib.crc32((folder / "undo.bin").read_bytes())}
    (folder / "layout.json").write_text(json.dumps(layout))
    (folder / "checksums.npy").unlink()
    return after[1], after[2], after[3]


def _parts(rows: Rows) -> tuple[NDArray[Any], ...]:
    return rows.values, rows.state, rows.versions


@pytest.mark.parametrize("undo", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_older_folder_in_mid_commit_is_taken_over(tmp_path: Path, step: int, undo: bool) -> None:
    folder = tmp_path / "tables"
    after = old_folder(folder, prepared=True, undo=undo)
    with pytest.raises(StoreError, match=r"left in mid-commit by an older version; .*foresee fold"):
        DiskReader.open(folder)
    store = DiskStore.open(folder)
    assert store.parts[0].openable == {1, 2, 3}
    assert_same(read_rows(store, np.arange(130)), after[1])
    store.open_at(step)
    assert_same(read_rows(store, np.arange(130)), after[step - 1])
    store.close()
    reader = DiskReader.open(folder)
    assert_same(read_rows(reader, np.arange(130)), after[step - 1])
    reader.close()
    assert not (folder / "overlay.bin").exists()


def test_fold_finishes_what_is_left(tmp_path: Path) -> None:
    after = old_folder(tmp_path / "run" / "tables", prepared=False, undo=False)[1]
    fold([tmp_path / "run"])
    versions = np.concatenate([open_table(tmp_path / "run" / "tables", name)["version"] for name in ("a", "b")])
    assert versions.tolist() == after.versions.tolist()
    shutil.rmtree(tmp_path / "run" / "tables")
    with pytest.raises(ConfigError, match=r"holds no tables: there is no layout\.json in it"):
        fold([tmp_path / "run"])
