"""Mutants of what is damaged, stale or given up: checksums that are gone, older records, copies in a storage."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
from mutants import Mutant

from foresee.errors import StoreError
from foresee.io.storage import Stored
from foresee.io.uploads import Uploads
from foresee.run import checkpoint
from foresee.run.backup import RunStorage, StoredCheckpoint
from foresee.run.folder import RunFolder
from foresee.store import halves
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore, chunks
from foresee.store.disk.chunks import Shape
from foresee.store.disk.log import RowLog
from foresee.store.disk.manifest import Manifest
from foresee.store.kernels import crc_of_words
from foresee.store.layout import Layout, Table
from foresee.testing.fake_disk import small_chunks
from foresee.testing.store_suite import random_rows, read_rows

LAYOUT = Layout(tables=(Table("a", 60),), width=4, state_width=1, optimizer="x")
ROWS = np.arange(30)
WAIT_SECONDS = 20.0


def _damaged(damage: Callable[[Path, Shape], None], *, fold: bool) -> str | None:
    """Two commits of the same rows, and what `damage` does to the folder: an error, when it is opened or read."""
    with TemporaryDirectory() as place, small_chunks():
        folder = Path(place) / "tables"
        store = DiskStore.create(folder, LAYOUT)
        store.fold_at_end = "always" if fold else "never"
        for step in (1, 2):
            store.write(ROWS, random_rows(np.random.default_rng(step), 30, LAYOUT, step))
            store.commit(step)
        store.close()
        damage(folder, Shape.of(LAYOUT, store.manifest.chunk_bytes))
        try:
            opened = DiskStore.open(folder)
        except StoreError:
            return None
        try:
            read_rows(opened, ROWS)
        except StoreError:
            return None
        finally:
            opened.close()
        return "it was opened and read"


def _lose_checksums(folder: Path, shape: Shape) -> None:
    content = (folder / "checksums.npy").read_bytes()
    (folder / "checksums.npy").write_bytes(content[:128].ljust(len(content), b"\0"))


def _put_back_records(folder: Path, shape: Shape) -> None:
    """As a disk that lost writes leaves the last commit: ids and checksums are right."""
    content = bytearray((folder / "log.bin").read_bytes())
    places: dict[int, list[tuple[int, int]]] = {}
    for begin in range(0, len(content), shape.chunk_bytes):
        _, sequence, num_rows = np.frombuffer(content, np.int64, 3, begin).tolist()
        for k, row in enumerate(np.frombuffer(content, np.int64, num_rows, begin + 64).tolist()):
            places.setdefault(row, []).append((sequence, begin + shape.header_bytes + k * shape.record_bytes))
    for found in places.values():
        (_, older), *_, (_, newer) = sorted(found)
        content[newer : newer + shape.record_bytes] = content[older : older + shape.record_bytes]
    (folder / "log.bin").write_bytes(content)


def _flip_a_version(folder: Path, shape: Shape) -> None:
    content = bytearray((folder / "log.bin").read_bytes())
    for begin in range(0, len(content), shape.chunk_bytes):
        content[begin + 8 * (8 + shape.chunk_rows)] ^= 8
    (folder / "log.bin").write_bytes(content)


def header_versions() -> str | None:
    """Another version in the list of a chunk is noticed when the folder is opened."""
    with TemporaryDirectory() as place, small_chunks():
        folder = Path(place) / "tables"
        store = DiskStore.create(folder, LAYOUT)
        store.fold_at_end = "never"
        store.write(ROWS, random_rows(np.random.default_rng(1), 30, LAYOUT, 1))
        store.commit(1)
        store.close()
        _flip_a_version(folder, Shape.of(LAYOUT, store.manifest.chunk_bytes))
        try:
            DiskStore.open(folder).close()
        except StoreError:
            return None
        return "it was opened"


def lost_checksums() -> str | None:
    """A block of zeros in the place of checksums is noticed."""
    return _damaged(_lose_checksums, fold=True)


def older_records() -> str | None:
    """An older record of a row is noticed, though its checksum is right."""
    return _damaged(_put_back_records, fold=False)


def numbers() -> str | None:
    """What is no number stays none in two bytes."""
    values = np.array([[0x7F800001, 0xFF800001]], np.uint32).view(np.float32)
    found = halves.unpacked(halves.packed(values, "bfloat16"), 2, "bfloat16")
    return None if np.isnan(found).all() else f"it became {found.tolist()}"


def uploads() -> str | None:
    """Of two waiting copies of the same kind only the newer one is made."""
    made, done, begun, may_end = Uploads("s3://x"), list[int](), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        may_end.wait(WAIT_SECONDS)

    made.submit("first", "first", first)
    begun.wait(WAIT_SECONDS)
    made.submit("commit", "1", lambda: done.append(1))
    made.submit("commit", "2", lambda: done.append(2))
    may_end.set()
    made.wait(WAIT_SECONDS)
    made.close()
    return None if done == [2] else f"copied were {done}"


def kept_copies() -> str | None:
    """A storage lists no commit that was given up, and has the shards of every commit that it lists."""
    with TemporaryDirectory() as place:
        folder, url = Path(place) / "run", f"file://{place}/storage"
        files = {name: Stored("x", 1, 1) for name in (*checkpoint.FILES, checkpoint.MANIFEST_FILE)}
        shard = Path(place) / "storage/tables/shard-0-of-1/commits.json"
        shard.parent.mkdir(parents=True)
        shard.write_text("{}")
        stored = RunStorage(url, RunFolder(folder), num_shards=2)
        stored._publish([StoredCheckpoint(4, 1, files), StoredCheckpoint(8, 2, files)])
        stored._remove_other_shards()
        stored.forget_after(4)
        stored._uploads.wait(WAIT_SECONDS)
        stored.close()
        again = RunStorage(url, RunFolder(folder))
        again.close()
        shutil.rmtree(folder, ignore_errors=True)
        if not shard.exists():
            return "the shards of step 4 are gone"
        return None if again.steps == {4} else f"it lists {sorted(again.steps)}"


def _crc_without_versions(ints: Any, num_rows: int) -> int:
    return int(crc_of_words(int(crc_of_words(0, ints, 0, 8)), ints, 16, 16 + 2 * num_rows))


def _encode_without_versions(order: Any, *rest: Any) -> None:
    """The checksum of a chunk's header without the versions in it."""
    *_, chunk_bytes, out = rest
    _encode_all(order, *rest)
    for begin in range(0, len(out), chunk_bytes // 8):
        header = out[begin : begin + chunk_bytes // 8]
        if header[0] == chunks._MAGIC:
            header[4] = _crc_without_versions(header.view(np.int32), int(header[2]))


def _is_header_without_versions(header: Any, sequence: int, num_rows: int, row_words: int, chunk_rows: int) -> bool:
    fields = header[1:4].tolist() == [sequence, num_rows, row_words]
    return fields and int(header[4]) == _crc_without_versions(header.view(np.int32), num_rows)


_encode_all = chunks._encode_all


def _read_any_version(self: RowLog, rows: Any, written: Any, out: Rows) -> Any:
    found = self.index.look_up(rows, written, out)
    if len(found.logged):
        self.file.read(found.positions, found.logged, rows, out, self.reads)
    return found.in_base, found.initial


def _queue_all(self: Uploads, key: str, what: str, act: Callable[[], None]) -> None:
    _submit(self, f"{key} {what}", what, act)


_submit = Uploads.submit


def _truncate(values: Any, kind: int, stochastic: bool, version_key: Any, rows: Any, out: Any) -> None:
    out[:, : values.shape[1]] = values >> 16


def _remove_at_once(self: RunStorage) -> None:
    with mock.patch.object(self, "_kept", []):
        _remove_other_shards(self)


_remove_other_shards = RunStorage._remove_other_shards

STORAGE_MUTANTS = [
    Mutant(
        name="lost checksums are none", rule="Every written row of a new folder has a checksum.",
        judge=lost_checksums,
        patch=lambda: [mock.patch.object(Manifest, "all_checked", property(lambda manifest: False))],
    ),
    Mutant(
        name="headers without versions", rule="The checksum of a chunk's header covers the versions of its rows.",
        judge=header_versions,
        patch=lambda: [
            mock.patch.object(chunks, "_encode_all", _encode_without_versions),
            mock.patch.object(chunks, "_is_header", _is_header_without_versions),
        ],
    ),
    Mutant(
        name="any version of a row", rule="A row of the log is read in the version that was written last.",
        judge=older_records, patch=lambda: [mock.patch.object(RowLog, "read", _read_any_version)],
    ),
    Mutant(
        name="infinity of what is no number", rule="What is no number stays none in two bytes.",
        judge=numbers, patch=lambda: [mock.patch.object(halves, "_pack", _truncate)],
    ),
    Mutant(
        name="older copies first", rule="A newer copy takes the place of a waiting one.",
        judge=uploads, patch=lambda: [mock.patch.object(Uploads, "submit", _queue_all)],
    ),
    Mutant(
        name="given-up commits stay listed", rule="A storage forgets the commits that a run has given up.",
        judge=kept_copies, patch=lambda: [mock.patch.object(RunStorage, "forget_after")],
    ),
    Mutant(
        name="shards go at once", rule="Shards stay while a commit that is kept needs them.",
        judge=kept_copies, patch=lambda: [mock.patch.object(RunStorage, "_remove_other_shards", _remove_at_once)],
    ),
]  # fmt: skip
