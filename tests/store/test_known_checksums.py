"""Checksums of the base are read once for many rows, and never believed after the base has changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foresee.arrays import Int64
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.disk.checksums import BLOCK_CRCS
from foresee.store.layout import Layout, Table

LAYOUT = Layout(tables=(Table("a", 5 * BLOCK_CRCS + 7),), width=6, state_width=1, optimizer="rowwise_adagrad")


@pytest.fixture(params=["io_uring", "threads"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All rows are written and in the base."""
    monkeypatch.setenv("FORESEE_DISK", request.param)
    with_rows = DiskStore.create(tmp_path / "tables", LAYOUT)
    way = with_rows.way
    with_rows.initialise_all()
    with_rows.close()
    if way.name != request.param:
        pytest.skip(f"this machine has {way}")
    return tmp_path / "tables"


def read(store: DiskStore, rows: Int64) -> Rows:
    out = Rows.empty(len(rows), LAYOUT)
    store.read(rows, out)
    return out


def test_a_block_is_read_once(folder: Path) -> None:
    store = DiskStore.open(folder)
    offsets = []
    move = store._reads.move
    checksums = store._base._direct[1]

    def noted(writing: bool, descriptor: int, offsets_: Int64, *more: Int64) -> None:
        if descriptor == checksums:
            offsets.extend(offsets_.tolist())
        move(writing, descriptor, offsets_, *more)

    store._reads.move = noted  # type: ignore[method-assign,assignment]
    last = LAYOUT.num_rows - 1
    read(store, np.array([3, 2 * BLOCK_CRCS + 1, last]))
    first = len(offsets)
    assert first >= 2
    read(store, np.array([4, 900, 2 * BLOCK_CRCS, last - 1]))
    assert len(offsets) == first, "rows of blocks that are known"
    read(store, np.array([3 * BLOCK_CRCS]))
    assert len(offsets) > first
    store.close()


def test_after_a_fold_the_new_checksums_count(folder: Path) -> None:
    store = DiskStore.open(folder)
    rows = np.array([1, 7, BLOCK_CRCS + 5, LAYOUT.num_rows - 1])
    read(store, rows)  # from now on their blocks are known
    new = Rows.empty(len(rows), LAYOUT)
    new.values[:], new.state[:], new.versions[:] = 2.5, 3.5, 9
    store.write(rows, new)
    store.commit(9)
    store.fold()
    found = read(store, rows)
    assert (found.values == 2.5).all()
    assert found.versions.tolist() == [9] * 4
    read(store, np.arange(LAYOUT.num_rows))
    store.close()


def test_a_reading_that_a_write_overtook_is_not_kept(folder: Path) -> None:
    store = DiskStore.open(folder)
    known, row = store._base._known_crcs, np.array([5])
    move = store._reads.move

    def overtaken(*arguments: object) -> None:
        move(*arguments)  # type: ignore[arg-type]
        known.forget()

    store._reads.move = overtaken  # type: ignore[assignment]
    read(store, row)
    assert not known._known.any()
    store._reads.move = move  # type: ignore[method-assign]
    read(store, row)
    assert known._known.tolist() == [2, 0, 0, 0, 0, 0]
    store.close()
