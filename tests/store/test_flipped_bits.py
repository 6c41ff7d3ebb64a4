"""One bit of a table folder is another: a sentence, or the right rows, in every state that a folder can be in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from test_disk_recovery import flip
from test_disk_two_phases import ALL_ROWS, LAYOUT, commit_in_two_phases, expected_after, rows_of_step, store_at

from foresee.errors import StoreError
from foresee.store.disk import DiskReader, DiskStore
from foresee.testing.fake_disk import FakeDisk, PowerCut, small_chunks
from foresee.testing.store_suite import assert_same, read_rows
from foresee.tools.fsck import check

FLIPS_PER_FILE = 8


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows() -> Iterator[None]:
    with small_chunks():
        yield


def in_the_log(folder: Path) -> DiskStore:
    """Two commits and a prepared one over a base."""
    store_at(folder, 1).close()
    store = DiskStore.open(folder)
    commit_in_two_phases(store, 2)
    commit_in_two_phases(store, 3)
    store.write(*rows_of_step(4))
    store.prepare(4)
    return store


def folded(folder: Path) -> DiskStore:
    store = store_at(folder, 3)
    store.fold()
    return store


def half_folded(folder: Path) -> DiskStore:
    disk = FakeDisk()
    store = store_at(folder, 3, files=disk)
    disk.stop_at_name("write_rows")
    with pytest.raises(PowerCut):
        store.fold()
    return store


def half_gone_back(folder: Path) -> DiskStore:
    disk = FakeDisk()
    store = store_at(folder, 3, files=disk)
    store.fold()
    disk.stop_at_name("write_rows")
    with pytest.raises(PowerCut):
        store.open_at(2)
    return store


STATES = {"in the log": in_the_log, "folded": folded, "half folded": half_folded, "half gone back": half_gone_back}


@pytest.mark.parametrize("state", STATES)
def test_a_flipped_bit_anywhere_is_a_sentence_or_nothing(tmp_path: Path, state: str) -> None:
    store, origin, rng = STATES[state](tmp_path / "tables"), tmp_path / "origin", np.random.default_rng(0)
    shutil.copytree(tmp_path / "tables", origin)  # what a kill leaves
    store.close()
    refused: dict[str, int] = {}
    for name in sorted(path.name for path in origin.iterdir() if path.name != "lock"):
        size = (origin / name).stat().st_size
        for place in rng.permutation(size)[:FLIPS_PER_FILE].tolist():
            damaged = tmp_path / "damaged"
            shutil.copytree(origin, damaged)
            flip(damaged / name, place)
            called_whole = check(damaged).is_whole
            read_by_all = _reads_right_rows(damaged)
            refused[name] = refused.get(name, 0) + (not read_by_all)
            assert read_by_all or not called_whole, f"check finds nothing wrong: {name}, byte {place}"
            shutil.rmtree(damaged)
    assert refused["layout.json"] >= FLIPS_PER_FILE - 3, "all but what is between the words"
    assert refused["written.npy"] >= FLIPS_PER_FILE // 2, "all but those that a fold sets anyway"


def _reads_right_rows(folder: Path) -> bool:
    """Whether everybody who opens it reads rows; whoever does reads the right ones."""
    errors = []
    for open_it in (DiskReader.open, DiskStore.open):
        try:
            with closing(open_it(folder)) as store:
                for step in sorted(store.parts[0].openable, reverse=True)[:2]:
                    store.open_at(step)
                    assert_same(read_rows(store, ALL_ROWS), expected_after(step))
        except StoreError as error:
            errors.append(str(error))
    assert all("damaged" in error or "restore" in error for error in errors), errors
    return not errors


@pytest.mark.parametrize("was_written", [True, False])
def test_a_flipped_bit_of_the_bits_names_its_row(tmp_path: Path, was_written: bool) -> None:
    """Such a row would have its initial value again, or zeros."""
    folder = tmp_path / "tables"
    store_at(folder, 1).close()
    rows = rows_of_step(1)[0] if was_written else np.setdiff1d(ALL_ROWS, rows_of_step(1)[0])
    row = int(rows[rows < 90][3])
    content = bytearray((folder / "written.npy").read_bytes())
    content[len(content) - (LAYOUT.num_rows + 7) // 8 + row // 8] ^= 1 << row % 8
    (folder / "written.npy").write_bytes(content)
    sentence = rf"written.npy is damaged: .* whether row {row} of table 'a' was ever written cannot be told"
    for open_it in (DiskStore.open, DiskReader.open):
        with pytest.raises(StoreError, match=sentence):
            open_it(folder)
    assert "written.npy is damaged" in next(it.text for it in check(folder).findings if it.state == "damaged")


def test_the_bits_of_initialised_tables_are_known(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    with closing(store_at(folder, 1)) as store:
        store.initialise_all()
        assert_same(read_rows(store, ALL_ROWS), expected_after(1))
    with closing(DiskStore.open(folder)) as store:
        assert_same(read_rows(store, ALL_ROWS), expected_after(1))
    flip(folder / "written.npy", (folder / "written.npy").stat().st_size - 3)
    with pytest.raises(StoreError, match=r"written.npy is damaged"):
        DiskStore.open(folder)
