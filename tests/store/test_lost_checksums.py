"""Zeros in place of checksums are damage in a new folder, and rows that are not compared in one of an older format."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from foresee.errors import StoreError
from foresee.store.contract import Rows
from foresee.store.disk import DiskReader, DiskStore
from foresee.store.disk.chunks import Shape
from foresee.store.layout import Layout, Table
from foresee.testing.store_suite import assert_same, random_rows, read_rows
from foresee.tools.fsck import check

LAYOUT = Layout(tables=(Table("a", 40), Table("b", 20)), width=6, state_width=1, optimizer="rowwise_adagrad", seed=3)
ROWS = np.arange(10, 50)
HEADER_BYTES = 128
LOST = r"checksums.npy is damaged: row 10 of table 'a' was written and its checksum is 0"


def written(folder: Path, step: int = 1) -> Rows:
    """Create a folder with one commit, folded."""
    source = random_rows(np.random.default_rng(step), len(ROWS), LAYOUT, step)
    with closing(DiskStore.create(folder, LAYOUT)) as store:
        store.write(ROWS, source)
        store.commit(step)
    return source


def lose_checksums(folder: Path) -> None:
    content = (folder / "checksums.npy").read_bytes()
    (folder / "checksums.npy").write_bytes(content[:HEADER_BYTES].ljust(len(content), b"\0"))


def make_older(folder: Path) -> None:
    """Turn a folder into one of format 3."""
    content = json.loads((folder / "layout.json").read_text())
    del content["crc32"]
    (folder / "layout.json").write_text(json.dumps({**content, "format_version": 3}))


@pytest.mark.parametrize("way", ["mapped", "threads", "io_uring"])
def test_zeroed_checksums_of_a_new_folder_are_damage(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESEE_DISK", way)
    folder = tmp_path / "tables"
    written(folder)
    assert check(folder).is_whole
    lose_checksums(folder)
    found = check(folder)
    assert not found.is_whole
    assert any("was written and its checksum is 0" in it.text for it in found.findings)
    for open_it in (DiskStore.open, DiskReader.open):
        with closing(open_it(folder)) as store, pytest.raises(StoreError, match=LOST):
            read_rows(store, ROWS)


@pytest.mark.parametrize("open_it", [DiskStore.open, DiskReader.open])
def test_a_missing_file_of_checksums_is_damage(tmp_path: Path, open_it: Callable[[Path], object]) -> None:
    folder = tmp_path / "tables"
    written(folder)
    (folder / "checksums.npy").unlink()
    assert not check(folder).is_whole
    with pytest.raises(StoreError, match=r"checksums.npy is missing"):
        open_it(folder)
    assert not (folder / "checksums.npy").exists(), "an empty one would hide the damage"


def test_a_zeroed_checksum_in_the_log_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    store = DiskStore.create(folder, LAYOUT)
    store.fold_at_end = "never"
    store.write(ROWS, random_rows(np.random.default_rng(1), len(ROWS), LAYOUT, 1))
    store.commit(1)
    store.close()
    shape = Shape.of(LAYOUT, store.manifest.chunk_bytes)
    content = bytearray((folder / "log.bin").read_bytes())
    at = shape.header_bytes + 4 * shape.row_words
    content[at : at + 4] = bytes(4)
    (folder / "log.bin").write_bytes(content)
    assert not check(folder).is_whole
    for open_it in (DiskStore.open, DiskReader.open):
        with closing(open_it(folder)) as opened, pytest.raises(StoreError, match="has another checksum"):
            read_rows(opened, ROWS)


@pytest.mark.parametrize("lost", ["zeroed", "missing"])
def test_an_older_folder_without_checksums_is_read(tmp_path: Path, lost: str) -> None:
    """It stays of its format: rows that are folded from now on have a checksum, the others still have none."""
    folder = tmp_path / "tables"
    source = written(folder)
    make_older(folder)
    if lost == "zeroed":
        lose_checksums(folder)
    else:
        (folder / "checksums.npy").unlink()
    with closing(DiskReader.open(folder)) as reader:
        assert_same(read_rows(reader, ROWS), source)
    again = random_rows(np.random.default_rng(2), 5, LAYOUT, 2)
    with closing(DiskStore.open(folder)) as store:
        assert_same(read_rows(store, ROWS), source)
        store.write(ROWS[:5], again)
        store.commit(2)
    assert json.loads((folder / "layout.json").read_text())["format_version"] == 3
    found = check(folder)
    assert found.is_whole
    assert any("35 rows of an older format without a checksum" in it.text for it in found.findings)
    with closing(DiskStore.open(folder)) as store:
        assert_same(read_rows(store, ROWS[:5]), again)


def test_layout_json_of_a_new_folder_has_a_checksum(tmp_path: Path) -> None:
    """Without one, nothing would tell a new folder from one whose format version was damaged."""
    folder = tmp_path / "tables"
    written(folder)
    content = json.loads((folder / "layout.json").read_text())
    del content["crc32"]
    (folder / "layout.json").write_text(json.dumps(content))
    with pytest.raises(StoreError, match=r"layout.json is damaged: it has checksum None"):
        DiskStore.open(folder)
