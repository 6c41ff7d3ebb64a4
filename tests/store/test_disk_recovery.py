"""A crash at any point leaves exactly a commit: the last one that was acknowledged, or the one that was under way."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foresee.arrays import Float32, Int64
from foresee.errors import StoreError
from foresee.io.files import Files
from foresee.store.contract import Rows
from foresee.store.disk import DiskReader, DiskStore, open_table
from foresee.store.disk.chunks import Shape
from foresee.store.disk.manifest import read_manifest
from foresee.store.layout import Layout, Table
from foresee.testing.fake_disk import FakeDisk, PowerCut, small_chunks
from foresee.testing.store_suite import assert_same, ids, initial_rows, random_rows, read_rows

LAYOUT = Layout(tables=(Table("a", 90), Table("b", 40)), width=6, state_width=1, optimizer="rowwise_adagrad", seed=3)
ALL_ROWS = np.arange(LAYOUT.num_rows, dtype=np.int64)
NUM_STEPS = 3


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows() -> Iterator[None]:
    with small_chunks():
        yield


def test_files_are_brought_to_the_disk_before_they_take_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disks of the other tests do this in their own way: here it is the operating system that is asked."""
    asked: list[str] = []
    named = "/proc/self/fd/{}".format
    monkeypatch.setattr(os, "fsync", lambda descriptor: asked.append(Path(named(descriptor)).readlink().name))
    monkeypatch.setattr(os, "replace", lambda source, target: asked.append(f"{source.name} becomes {target.name}"))
    Files().publish(tmp_path / "manifest.json", b"{}")
    assert asked == ["manifest.json.draft", "manifest.json.draft becomes manifest.json", tmp_path.name]
    flushed: list[tuple[int, int]] = []
    mapped: Any = SimpleNamespace(flush=lambda begin, num_bytes: flushed.append((begin, num_bytes)))
    Files().sync_map(mapped, 4096)
    assert flushed == [(0, 4096)]


def rows_of_step(step: int) -> tuple[Int64, Rows]:
    """What step `step` writes: some rows for the first time, some again."""
    rng = np.random.default_rng(step)
    rows = rng.permutation(LAYOUT.num_rows)[:50].astype(np.int64)
    return rows, random_rows(rng, len(rows), LAYOUT, step)


def expected_after(step: int) -> Rows:
    """All rows after some steps, from the definition."""
    expected = initial_rows(LAYOUT, ALL_ROWS)
    for k in range(1, step + 1):
        rows, source = rows_of_step(k)
        expected.values[rows], expected.state[rows] = source.values, source.state
        expected.versions[rows] = source.versions
    return expected


def run_steps(store: DiskStore, first: int, acknowledged: list[int]) -> None:
    for step in range(first, NUM_STEPS + 1):
        store.write(*rows_of_step(step))
        store.commit(step)
        acknowledged.append(step)


def check_folder(folder: Path, acknowledged: int, *, go_on: bool = True) -> None:
    """The folder is at an allowed commit, byte for byte; and from there the run ends as it would have."""
    store = DiskStore.open(folder, LAYOUT, files=FakeDisk())
    assert store.committed_step in (acknowledged, acknowledged + 1)
    assert_same(read_rows(store, ALL_ROWS), expected_after(store.committed_step))
    if go_on:
        run_steps(store, store.committed_step + 1, [])
        assert_same(read_rows(store, ALL_ROWS), expected_after(NUM_STEPS))
    step = store.committed_step
    store.close()
    versions = np.concatenate([open_table(folder, name)["version"] for name in ("a", "b")])
    assert versions.tolist() == expected_after(step).versions.tolist()


def copy_of(folder: Path, name: str) -> Path:
    target = folder.with_name(name)
    shutil.copytree(folder, target)
    return target


def test_power_cut_at_every_call(tmp_path: Path) -> None:
    for stop_at in count():
        folder = tmp_path / str(stop_at) / "tables"
        disk = FakeDisk()
        store = DiskStore.create(folder, LAYOUT, files=disk)
        disk.stop_at = len(disk.calls) + stop_at
        acknowledged = [0]
        try:
            run_steps(store, 1, acknowledged)
            store.fold()
        except PowerCut:
            check_folder(copy_of(folder, "killed"), acknowledged[-1])
            for seed in range(3):
                lost = copy_of(folder, f"lost-{seed}")
                disk.lose_unsynced(lost, np.random.default_rng(seed))
                check_folder(lost, acknowledged[-1], go_on=seed == 0)
            store.close()
        else:
            store.close()
            # Each commit: chunks, their list, the manifest; then a fold. Fewer calls would be a test of nothing.
            assert stop_at > 10 * NUM_STEPS
            return


def test_power_cut_at_every_call_of_recovery(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    disk = FakeDisk()
    store = DiskStore.create(folder, LAYOUT, files=disk)
    rows, source = rows_of_step(1)
    store.write(rows, source)
    store.commit(1)
    disk.stop_at_name("write_rows")
    with pytest.raises(PowerCut):
        store.fold()
    sealed = copy_of(folder, "sealed")
    store.close()
    with pytest.raises(StoreError, match=r"is not yet in its arrays; bring it there with foresee fold"):
        open_table(sealed, "a")
    for stop_at in count():
        attempt = copy_of(sealed, f"attempt-{stop_at}")
        disk = FakeDisk(stop_at)
        store = DiskStore.open(attempt, files=disk)
        assert not disk.calls, "opening writes nothing: the fold is for later"
        try:
            store.fold()
        except PowerCut:
            check_folder(copy_of(attempt, f"killed-{stop_at}"), 1)
            store.close()
        else:
            store.close()
            assert stop_at >= 5
            return


def test_power_cut_at_every_call_of_create(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without power nobody tidies up.
    monkeypatch.setattr("foresee.store.disk.folder._remove_files", lambda folder: None)
    monkeypatch.setattr("foresee.store.disk.folder._remove_if_empty", lambda folder: None)
    for stop_at in count():
        folder = tmp_path / str(stop_at)
        try:
            DiskStore.create(folder, LAYOUT, files=FakeDisk(stop_at)).close()
        except PowerCut:
            store = DiskStore.open_or_create(folder, LAYOUT)
            assert_same(read_rows(store, ALL_ROWS), expected_after(0))
            store.close()
        else:
            assert stop_at >= 5
            return


def test_power_cut_while_initialising(tmp_path: Path) -> None:
    for stop_at in count():
        folder = tmp_path / str(stop_at)
        disk = FakeDisk()
        store = DiskStore.create(folder, LAYOUT, files=disk)
        run_steps(store, NUM_STEPS, [])
        expected = read_rows(store, ALL_ROWS)
        disk.stop_at = len(disk.calls) + stop_at
        try:
            store.initialise_all()
        except PowerCut:
            lost = copy_of(folder, f"lost-{stop_at}")
            disk.lose_unsynced(lost, np.random.default_rng(stop_at))
            store.close()
            store = DiskStore.open(lost)
            assert_same(read_rows(store, ALL_ROWS), expected)
            store.close()
        else:
            store.close()
            assert stop_at >= 3
            return


def test_the_seal_comes_after_the_records_and_before_the_base(tmp_path: Path) -> None:
    disk = FakeDisk()
    store = DiskStore.create(tmp_path / "tables", LAYOUT, files=disk)
    store.write(*rows_of_step(1))
    store.commit(1)
    store.write(*rows_of_step(2))
    del disk.calls[:]
    store.commit(2)
    store.close()
    seal, begin, end = [k for k, name in enumerate(disk.calls) if name == "replace layout.json"]
    last_write = max(k for k, name in enumerate(disk.calls) if name == "write_pieces")
    assert last_write < disk.calls.index("sync log.bin") < disk.calls.index("replace chunks-2.bin") < seal
    assert "sync layout.json.draft" in disk.calls[:seal]
    assert disk.calls[seal + 1] == "sync tables"
    assert seal < disk.calls.index("sync undo.bin.draft") < disk.calls.index("replace undo.bin") < begin
    assert "write_rows" not in disk.calls[:begin]
    assert {"write_rows", "sync rows.npy", "sync checksums.npy", "sync written.npy"} <= set(disk.calls[begin:end])
    assert disk.calls[end + 1] == "sync tables"


def sealed_folder(tmp_path: Path) -> Path:
    """A folder whose commits are not folded."""
    folder, disk = tmp_path / "tables", FakeDisk()
    store = DiskStore.create(folder, LAYOUT, files=disk)
    for step in (1, 2):
        store.write(*rows_of_step(step))
        store.commit(step)
    disk.stop_at = len(disk.calls)
    store.close()
    return folder


def test_a_fold_at_the_end_that_fails_loses_nothing(tmp_path: Path) -> None:
    check_folder(sealed_folder(tmp_path), 2)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def last_chunk(folder: Path) -> int:
    """Where the chunk that was written last begins."""
    entries = np.frombuffer((folder / "chunks-2.bin").read_bytes(), np.int64).reshape(-1, 3)
    return int(entries[-1, 0]) * int(json.loads((folder / "layout.json").read_text())["chunk_bytes"])


@pytest.mark.parametrize("where", [0, 9, 17, 33, 64, 70])
def test_a_flipped_bit_in_the_list_of_a_chunk_is_a_sentence(tmp_path: Path, where: int) -> None:
    folder = sealed_folder(tmp_path)
    flip(folder / "log.bin", last_chunk(folder) + where)
    with pytest.raises(StoreError, match=r"log.bin is damaged: chunk \d+ is not the one that was written as number"):
        DiskStore.open(folder)


def test_a_flipped_bit_in_a_version_of_the_list_of_a_chunk_is_an_error_at_once(tmp_path: Path) -> None:
    """Before any row is read: the index takes the versions from there."""
    folder = sealed_folder(tmp_path)
    shape = Shape.of(LAYOUT, read_manifest(folder).chunk_bytes)
    flip(folder / "log.bin", last_chunk(folder) + 8 * (8 + shape.chunk_rows))
    for open_it in (DiskStore.open, DiskReader.open):
        with pytest.raises(StoreError, match=r"log.bin is damaged: chunk \d+ is not the one that was written"):
            open_it(folder)


@pytest.mark.parametrize("way", ["mapped", "threads", "io_uring"])
def test_an_older_record_of_a_row_is_not_taken_for_the_newer(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a disk that lost a write leaves it: id and checksum are right."""
    monkeypatch.setenv("FORESEE_DISK", way)
    folder = sealed_folder(tmp_path)
    shape = Shape.of(LAYOUT, read_manifest(folder).chunk_bytes)
    content = bytearray((folder / "log.bin").read_bytes())
    places: dict[int, list[tuple[int, int]]] = {}
    for chunk in range(len(content) // shape.chunk_bytes):
        begin = chunk * shape.chunk_bytes
        _, sequence, num_rows = np.frombuffer(content, np.int64, 3, begin).tolist()
        for k, row in enumerate(np.frombuffer(content, np.int64, num_rows, begin + 64).tolist()):
            places.setdefault(row, []).append((sequence, begin + shape.header_bytes + k * shape.record_bytes))
    row = int(np.intersect1d(rows_of_step(1)[0], rows_of_step(2)[0])[0])
    (_, older), *_, (_, newer) = sorted(places[row])
    content[newer : newer + shape.record_bytes] = content[older : older + shape.record_bytes]
    (folder / "log.bin").write_bytes(content)
    for open_it in (DiskStore.open, DiskReader.open):
        store = open_it(folder)
        with pytest.raises(
            StoreError, match=r"log.bin is damaged: row \d+ of table '.' has another checksum than when"
        ):
            read_rows(store, np.array([row]))
        store.close()


@pytest.mark.parametrize("where", [512, 520, 547])
@pytest.mark.parametrize("way", ["mapped", "threads", "io_uring"])
def test_a_flipped_bit_in_a_row_of_the_log_is_a_sentence(
    tmp_path: Path, where: int, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORESEE_DISK", way)
    folder = sealed_folder(tmp_path)
    begin = last_chunk(folder)
    row = int(np.frombuffer((folder / "log.bin").read_bytes()[begin + 64 : begin + 72], np.int64)[0])
    flip(folder / "log.bin", begin + where)
    name = f"row {row} of table 'a'" if row < 90 else f"row {row - 90} of table 'b'"
    for open_it in (DiskStore.open, DiskReader.open):
        store = open_it(folder)
        with pytest.raises(StoreError, match=rf"log.bin is damaged: {name} has another checksum than when"):
            read_rows(store, ALL_ROWS)
        assert_same(read_rows(store, ALL_ROWS[row != ALL_ROWS]), without(expected_after(2), row))
        store.close()


@pytest.mark.parametrize("way", ["mapped", "threads", "io_uring"])
def test_a_flipped_bit_in_the_base_is_a_sentence(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESEE_DISK", way)
    folder = tmp_path / "tables"
    store = DiskStore.create(folder, LAYOUT)
    store.write(*rows_of_step(1))
    store.commit(1)
    store.close()
    row = int(rows_of_step(1)[0][7])
    header = (folder / "rows.npy").stat().st_size - LAYOUT.num_rows * LAYOUT.row_bytes
    flip(folder / "rows.npy", header + row * LAYOUT.row_bytes + 5)
    store = DiskStore.open(folder)
    with pytest.raises(StoreError, match=r"rows.npy is damaged: row \d+ of table '.' has another checksum than when"):
        read_rows(store, ALL_ROWS)
    assert_same(read_rows(store, ALL_ROWS[row != ALL_ROWS]), without(expected_after(1), row))
    store.close()


def without(rows: Rows, row: int) -> Rows:
    values, state, versions = (np.delete(part, row, axis=0) for part in (rows.values, rows.state, rows.versions))
    return Rows(values.astype(np.float32), state.astype(np.float32), versions.astype(np.int32))


def test_a_torn_log_is_a_sentence(tmp_path: Path) -> None:
    folder = sealed_folder(tmp_path)
    for num_bytes in (1024, 30):
        os.truncate(folder / "log.bin", num_bytes)
        with pytest.raises(StoreError, match=r"log.bin is damaged"):
            DiskStore.open(folder)
    (folder / "chunks-2.bin").write_bytes(b"")
    with pytest.raises(StoreError, match=r"chunks-2.bin is damaged: it has 0 bytes"):
        DiskStore.open(folder)
    (folder / "chunks-2.bin").unlink()
    with pytest.raises(StoreError, match=r"chunks-2.bin is missing"):
        DiskStore.open(folder)


def test_rubbish_in_a_log_that_no_commit_lists_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    store = DiskStore.create(folder, LAYOUT)
    run_steps(store, 1, [])
    store.close()
    (folder / "log.bin").write_bytes(os.urandom(10_000))
    check_folder(folder, NUM_STEPS)


class FullDisk(Files):
    """A disk with little space, whoever asks."""

    def __init__(self) -> None:
        self.free = 1 << 40
        self.fail_writes = False

    def free_bytes(self, folder: Path) -> int:
        return self.free

    def reserve(self, descriptor: int, offset: int, num_bytes: int) -> None:
        if num_bytes > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().reserve(descriptor, offset, num_bytes)

    def write_rows(self, descriptor: int, data_offset: int, rows: Int64, words: Float32) -> None:
        if self.fail_writes:
            super().write_rows(descriptor, data_offset, rows[:3], words[:3])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_rows(descriptor, data_offset, rows, words)


def test_full_disk_at_create_leaves_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    disk.free = 100
    with pytest.raises(StoreError, match=r"new tables need [\d,]+ bytes, the disk has 100 left"):
        DiskStore.create(tmp_path / "tables", LAYOUT, files=disk)
    assert not (tmp_path / "tables").exists()


def test_full_disk_at_write_changes_nothing(tmp_path: Path) -> None:
    disk = FullDisk()
    store = DiskStore.create(tmp_path / "tables", LAYOUT, files=disk)
    disk.free = 0
    with pytest.raises(StoreError, match=r"the disk of .*tables is full: .* need [\d,]+ bytes more; free some space"):
        store.write(*rows_of_step(1))
    assert_same(read_rows(store, ALL_ROWS), expected_after(0))
    disk.free = 1 << 40
    run_steps(store, 1, [])
    assert_same(read_rows(store, ALL_ROWS), expected_after(NUM_STEPS))
    store.close()


def test_full_disk_at_commit_can_be_tried_again(tmp_path: Path) -> None:
    disk = FullDisk()
    folder = tmp_path / "tables"
    store = DiskStore.create(folder, LAYOUT, files=disk)
    store.write(*rows_of_step(1))
    disk.free = 0
    with pytest.raises(StoreError, match=r"need [\d,]+ bytes more; free some space and start anew: nothing was comm"):
        store.commit(1)
    assert store.committed_step == 0
    disk.free = 1 << 40
    store.commit(1)
    assert_same(read_rows(store, ALL_ROWS), expected_after(1))
    store.close()
    check_folder(folder, 1)


def test_full_disk_while_folding_leaves_the_rows_in_the_log(tmp_path: Path) -> None:
    disk = FullDisk()
    folder = tmp_path / "tables"
    store = DiskStore.create(folder, LAYOUT, files=disk)
    store.write(*rows_of_step(1))
    store.commit(1)
    disk.free = 10
    with pytest.raises(StoreError, match=r"the rows of the log in the tables need .* bytes more"):
        store.fold()
    disk.free, disk.fail_writes = 1 << 40, True
    with pytest.raises(StoreError, match=r"the fold of the last commit was interrupted .*No space left"):
        store.fold()
    with pytest.raises(StoreError, match="the fold of the last commit was interrupted"):
        store.write(*rows_of_step(2))
    store.close()
    store = DiskStore.open(folder, files=disk)
    assert_same(read_rows(store, ALL_ROWS), expected_after(1))
    store.close()
    check_folder(folder, 1)


def test_full_disk_while_initialising_is_a_sentence(tmp_path: Path) -> None:
    disk = FullDisk()
    store = DiskStore.create(tmp_path / "tables", LAYOUT, files=disk)
    disk.free = 10
    with pytest.raises(StoreError, match="all initial values need"):
        store.initialise_all()
    disk.free = 1 << 40
    disk.fail_writes = True
    with pytest.raises(StoreError, match="all initial values need"):
        store.initialise_all()
    assert_same(read_rows(store, ALL_ROWS), expected_after(0))
    store.close()


def test_a_write_that_comes_short_is_finished(tmp_path: Path) -> None:
    """The kernel's pwrite fails on a bad descriptor, and the sentence is the operating system's."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        Files().write_rows(-1, 0, ids(0, 1), np.zeros((2, 3), np.float32))


def test_kill_at_any_time(tmp_path: Path) -> None:
    """A real process, a real SIGKILL: the folder is at the last commit it told us of, or the one after."""
    folder = tmp_path / "tables"
    DiskStore.create(folder, LAYOUT).close()
    rng = np.random.default_rng(0)
    committed = 0
    for _ in range(12):
        told = _run_and_kill(folder, committed, wait_commits=int(rng.integers(1, 4)), wait_seconds=rng.random() * 0.02)
        store = DiskStore.open(folder, LAYOUT)
        assert store.committed_step in (told, told + 1)
        committed = store.committed_step
        assert_same(read_rows(store, ALL_ROWS), expected_after(committed))
        store.close()
    assert committed >= 12


def _run_and_kill(folder: Path, committed: int, wait_commits: int, wait_seconds: float) -> int:
    """Trains in a child until it is killed; returns the last step whose commit it reported."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        store = DiskStore.open(folder)
        for step in count(committed + 1):
            store.write(*rows_of_step(step))
            store.commit(step)
            os.write(send, struct.pack("<q", step))
    os.close(send)
    with open(receive, "rb") as reports:
        for _ in range(wait_commits):
            assert len(reports.read(8)) == 8
        signal.sigtimedwait([], wait_seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        rest = reports.read()
    return committed + wait_commits + len(rest) // 8
