"""The disk is full from some call on, whichever it is: a sentence, and after there is room again nothing is lost."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest
from test_disk_two_phases import ALL_ROWS, LAYOUT, expected_after, rows_of_step

from foresee.arrays import Float32, Int64
from foresee.errors import StoreError
from foresee.io.direct import Transfers
from foresee.io.files import Files
from foresee.store.disk import DiskStore
from foresee.testing.fake_disk import small_chunks
from foresee.testing.store_suite import assert_same, read_rows
from foresee.tools.fsck import check


class FullFrom(Files):
    """No call that may need space succeeds from call `full_from` on; names says which it was."""

    def __init__(self, full_from: int) -> None:
        self._left, self.refused = full_from, ""

    def _count(self, name: str) -> None:
        self._left -= 1
        if self._left < 0:
            self.refused = self.refused or name
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            self._count(f"sync {path.name}")

    def sync_map(self, mapped: mmap.mmap, num_bytes: int) -> None:
        self._count("sync bits")

    def reserve(self, descriptor: int, offset: int, num_bytes: int) -> None:
        self._count("reserve")
        super().reserve(descriptor, offset, num_bytes)

    def write(self, descriptor: int, words: Float32, offset: int) -> None:
        super().write(descriptor, words.reshape(-1)[: words.size // 2], offset)
        self._count("write undo")
        super().write(descriptor, words, offset)

    def write_rows(self, descriptor: int, data_offset: int, rows: Int64, words: Float32) -> None:
        super().write_rows(descriptor, data_offset, rows[: len(rows) // 2], words[: len(rows) // 2])
        self._count("write rows")
        super().write_rows(descriptor, data_offset, rows, words)

    def write_pieces(
        self, transfers: Transfers, descriptor: int, offsets: Int64, lengths: Int64, addresses: Int64
    ) -> None:
        super().write_pieces(transfers, descriptor, offsets[:1], lengths[:1], addresses[:1])
        self._count("write chunks")
        super().write_pieces(transfers, descriptor, offsets, lengths, addresses)

    def publish(self, path: Path, content: bytes) -> None:
        self._count(f"publish {'chunks' if path.name.startswith('chunks') else path.name}")
        super().publish(path, content)


@pytest.fixture(autouse=True)
def chunks_of_a_few_rows() -> Iterator[None]:
    with small_chunks():
        yield


def life(store: DiskStore, committed: list[int]) -> None:
    """Three commits, a fold, a commit, a fold, and the way back."""
    for step in (1, 2, 3):
        store.write(*rows_of_step(step))
        store.prepare(step)
        committed.append(step)
        store.settle(step)
    store.fold()
    store.write(*rows_of_step(4))
    committed.append(4)
    store.commit(4)
    store.fold()
    committed.append(3)
    store.open_at(3)


def test_full_from_every_call_on(tmp_path: Path) -> None:
    refused: Counter[str] = Counter()
    for full_from in count():
        folder = tmp_path / str(full_from)
        DiskStore.create(folder, LAYOUT).close()
        disk, committed, error = FullFrom(full_from), [0], None
        try:
            store = DiskStore.open(folder, files=disk)
            with closing(store):
                life(store, committed)
        except StoreError as found:
            error = found
        if not disk.refused:
            break
        refused[disk.refused.removesuffix(".draft")] += 1
        if error is not None:  # else it was the fold of `close`, which may be left to the next one
            sentence = str(error)
            assert "\n" not in sentence
            assert ("is full" in sentence and "free some space" in sentence) or "has space" in sentence
        assert_nothing_is_lost(folder, committed)
        shutil.rmtree(folder)
    assert error is None
    for name in ("reserve", "write chunks", "sync log.bin", "publish chunks", "publish layout.json", "write undo",
                 "sync undo.bin", "write rows", "sync rows.npy", "sync bits", "sync written.npy"):  # fmt: skip
        assert refused[name], f"the disk was never full at: {name}"


def assert_nothing_is_lost(folder: Path, begun: list[int]) -> None:
    """There is room again: the folder is at the step that was committed last, or at the one that was under way."""
    assert check(folder).is_whole
    with closing(DiskStore.open(folder)) as store:
        allowed = set(begun[-2:])
        assert store.parts[0].openable & allowed
        assert store.committed_step in allowed
        assert_same(read_rows(store, ALL_ROWS), expected_after(store.committed_step))
        with suppress(StoreError):  # a prepared commit is decided by its run
            store.open_at(max(store.parts[0].openable & allowed))
        step = store.committed_step + 1
        store.write(*rows_of_step(step))
        store.commit(step)
        assert_same(read_rows(store, ALL_ROWS), expected_after(step))
