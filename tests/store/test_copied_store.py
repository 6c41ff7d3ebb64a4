"""A store whose commits are copied keeps the contract, copies only what is new, and comes back from the copies."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foresee.errors import StoreError
from foresee.io.storage import Storage
from foresee.io.uploads import Uploads
from foresee.store.commits import GoBack, Load, OpenAt, Part, decide, step_to_open
from foresee.store.contract import Rows, Store
from foresee.store.disk import backup
from foresee.store.disk.backed_up import CopiedStore
from foresee.store.disk.backup import POINTER, FolderCopies
from foresee.store.layout import Layout
from foresee.store.server.shard import Share, disk_shard, forget_other_share
from foresee.testing import TwoPhaseStoreSuite
from foresee.testing.commit_suites import ALL_ROWS, rows_after, rows_of_step
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, read_rows


def opened(folder: Path, storage: Path, layout: Layout = SUITE_LAYOUT) -> CopiedStore:
    return CopiedStore(folder, layout, Storage.open(f"file://{storage}"))


class TestCopiedStore(TwoPhaseStoreSuite):
    """Nothing is copied here: with copies a store can be opened at more commits than the contract asks for."""

    durable = True

    def make_store(self, folder: Path, layout: Layout) -> Store:
        store = opened(folder, folder.with_name("storage"), layout)
        store._uploads.close()
        return store

    def reopen(self, store: Store, folder: Path, layout: Layout) -> Store:
        copy = folder.with_name("kill")
        shutil.copytree(folder, copy)
        store.close()
        shutil.rmtree(folder)
        copy.rename(folder)
        return self.make_store(folder, layout)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Folder and storage."""
    return tmp_path / "tables", tmp_path / "storage"


def train(store: CopiedStore, *steps: int) -> None:
    for step in steps:
        rows, source = rows_of_step(step)
        store.write(rows, source)
        store.commit(step)
        assert store._uploads.wait(20)


def assert_at(store: Store, step: int) -> None:
    assert store.committed_step == step
    assert_same(read_rows(store, ALL_ROWS), rows_after(step))


def bytes_there(storage: Path) -> int:
    return sum(path.stat().st_size for path in storage.glob("*"))


def test_a_lost_folder_is_loaded(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, 1, 2, 3)
    store.close()
    shutil.rmtree(places[0])
    store = opened(*places)
    assert store.committed_step == 0
    assert store.parts[0].stored == {2, 3}
    store.open_at(3)
    assert_at(store, 3)
    train(store, 4)
    store.open_at(3)
    assert_at(store, 3)
    store.close()


def test_the_commit_before_is_loaded_too_and_training_goes_on(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, 1, 2, 3)
    store.close()
    other = opened(places[0].with_name("elsewhere"), places[1])
    other.open_at(2)
    assert_at(other, 2)
    train(other, 3, 4)
    other.close()
    third = opened(places[0].with_name("third"), places[1])
    assert third.parts[0].stored == {3, 4}
    third.open_at(4)
    assert_at(third, 4)
    third.close()


def test_a_part_that_is_ahead_goes_back_to_what_only_the_storage_has(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, 1, 2)
    store._uploads.close()  # the storage is away from now on
    for step in (3, 4):
        rows, source = rows_of_step(step)
        store.write(rows, source)
        store.commit(step)
    store.close()
    store = opened(*places)
    assert store.parts[0].here == {3, 4}
    assert store.parts[0].stored == {1, 2}
    store.open_at(2)
    assert_at(store, 2)
    train(store, 3)
    store.close()


def test_a_commit_that_was_given_up_is_not_listed(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, 1, 2, 3)
    store.open_at(2)
    assert store.parts[0].stored == {2}, "3 is still in the storage, and of no use"
    train(store, 5)
    assert store.parts[0].stored == {2, 5}
    store.close()
    assert [it["step"] for it in json.loads((places[1] / POINTER).read_text())["commits"]] == [2, 5]


def test_only_what_is_new_is_copied(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table of many chunks in which a commit changes few."""
    layout = replace(SUITE_LAYOUT, tables=(replace(SUITE_LAYOUT.tables[0], num_rows=200_000),))
    store = opened(*places, layout)

    def write(rows: np.ndarray, step: int) -> None:
        store.write(rows, Rows(*_content(rows, layout, step)))
        store.commit(step)
        assert store._uploads.wait(20)

    write(np.arange(200_000), 1)
    whole = bytes_there(places[1])
    write(np.arange(500), 2)
    assert bytes_there(places[1]) - whole < whole // 8
    store.close()
    store = opened(*places, layout)  # another process knows what was copied
    store.open_at(2)
    before = bytes_there(places[1])
    write(np.arange(500), 3)
    assert bytes_there(places[1]) - before < whole // 8
    store.close()


def _content(rows: np.ndarray, layout: Layout, step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(step)
    values = rng.random((len(rows), layout.value_words)).astype(np.float32)
    return values, np.zeros((len(rows), layout.state_width), np.float32), np.full(len(rows), step, np.int32)


def test_packs_that_are_hardly_needed_are_given_up(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, *range(1, 30))
    once = bytes_there(places[1])
    train(store, *range(30, 60))
    assert bytes_there(places[1]) < 2 * once
    store.close()
    fresh = opened(places[0].with_name("elsewhere"), places[1])
    fresh.open_at(59)
    assert_at(fresh, 59)
    fresh.close()


def test_a_folded_folder_is_copied_whole(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, 1, 2)
    store.fold()
    train(store, 3)
    store.close()
    fresh = opened(places[0].with_name("elsewhere"), places[1])
    fresh.open_at(3)
    assert_at(fresh, 3)
    fresh.close()


def test_nothing_is_seen_before_the_pointer(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends between the last pack and the pointer leaves the commit before, and its rest is removed."""
    store = opened(*places)
    train(store, 1, 2)
    shown = (places[1] / POINTER).read_bytes()
    monkeypatch.setattr(FolderCopies, "_publish", lambda *_: None)
    train(store, 3)
    store.close()
    monkeypatch.undo()
    assert (places[1] / POINTER).read_bytes() == shown
    left = {path.name for path in places[1].glob("step-000000003-*")}
    assert left
    fresh = opened(places[0].with_name("elsewhere"), places[1])
    fresh.open_at(2)
    assert_at(fresh, 2)
    assert fresh._uploads.wait(20)
    assert not left & {path.name for path in places[1].iterdir()}
    fresh.close()


def test_a_load_that_was_interrupted_begins_again(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(*places)
    train(store, 1, 2)
    store.close()
    elsewhere = places[0].with_name("elsewhere")
    fresh = opened(elsewhere, places[1])

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(backup, "write_directory", stop)
    with pytest.raises(KeyboardInterrupt):
        fresh.open_at(2)
    monkeypatch.undo()
    assert fresh.committed_step == 0
    fresh.open_at(2)
    assert_at(fresh, 2)
    fresh.close()


def test_damage_is_a_sentence(places: tuple[Path, Path]) -> None:
    store = opened(*places)
    train(store, 1)
    store.close()
    pack = next(iter(places[1].glob("*.pack")))
    content = bytearray(pack.read_bytes())
    content[100] ^= 1
    pack.write_bytes(content)
    fresh = opened(places[0].with_name("elsewhere"), places[1])
    with pytest.raises(StoreError, match=r"\.pack is damaged: it has another checksum"):
        fresh.open_at(1)
    fresh.close()
    (places[1] / POINTER).write_text(json.dumps({"format_version": 9}))
    with pytest.raises(StoreError, match=r"commits\.json is damaged, or of another release"):
        opened(places[0].with_name("third"), places[1])


def test_where_a_run_goes_on_is_one_decision() -> None:
    """Two servers have gone on to 30 and 40, a third lost its disk and has what was copied."""
    lost = Part(stored=frozenset({20, 30}))
    ahead = Part(committed=40, previous=30, stored=frozenset({20, 30}), incarnation="a")
    far = Part(committed=50, previous=40, stored=frozenset({20, 30}), incarnation="a")
    assert step_to_open([30, 40], [lost.openable, ahead.openable]) == 30
    message = OpenAt(run="r", incarnation="a", epoch=0, step=30)
    assert GoBack(30) in decide(ahead, message).instructions
    assert Load(30) in decide(far, message).instructions
    assert decide(far, message).part.stored == {20, 30}
    assert decide(far, replace(message, step=20)).part.stored == {20}


def test_uploads_go_on_when_the_storage_is_back() -> None:
    uploads, tries = Uploads("s3://x"), list[int]()

    def act() -> None:
        tries.append(1)
        if len(tries) < 2:
            raise StoreError("it is away")

    uploads.submit("commit", "the commit of step 1", act)
    assert "the commit of step 1 is on its way to s3://x" in (uploads.behind() or "")
    assert uploads.wait(20)
    assert uploads.behind() is None
    assert len(tries) == 2
    uploads.close()


def test_what_a_node_has_of_another_run_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    folder, share = tmp_path / "shard-0", Share(0, 2)

    def start(run_id: str) -> int:
        """As `foresee serve` does on a node that may have had a part of some run before."""
        forget_other_share(folder, share, run_id)
        shard = disk_shard(folder, SUITE_LAYOUT, share)
        step = shard.committed_step
        shard.commit(step + 1)
        shard.close()
        return step

    assert [start("first"), start("first"), start("second"), start("second")] == [0, 1, 0, 1]
