"""Disks for tests: one that stops at a chosen call, one that is looked at after every operation.

In: a folder in which a program works through `Files`. Out: the folder as a power cut may leave it. `FakeDisk` stops at
a call and mixes what was synced with what was not (`lose_unsynced`); the other gives images (`Image`) at every
operation, so one run of a program is its crash at every point. The model is hostile: bytes that were not synced are
there or not, sector by sector, and the one being written may be torn; a name that was made, replaced or removed since
its folder was synced is as before or as after, each for itself. Syncs reach no real disk, so tests are quick.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

from foresee.arrays import Float32, Int64
from foresee.io.direct import Transfers
from foresee.io.files import Files
from foresee.store.disk import chunks, log

SECTOR_BYTES = 512


@contextmanager
def small_chunks() -> Iterator[None]:
    """Table folders made meanwhile have chunks of a few rows, so that a few writes fill, free and compact them."""
    with ExitStack() as undo:
        for module, name, value in (
            (chunks, "_BLOCK", SECTOR_BYTES),
            (chunks, "CHUNK_BYTES_MIN", 2 * SECTOR_BYTES),
            (log, "RECENT_BYTES", 0),
            (log, "RECENT_ROWS_MIN", 16),
            (log, "_COMPACT_CHUNKS_MIN", 4),
        ):
            undo.enter_context(mock.patch.object(module, name, value))
        yield


class PowerCut(BaseException):
    """The machine is gone. No part of a program may catch this and go on."""


class FakeDisk(Files):
    """File operations of one folder up to call `stop_at` (counted from 0); None never stops."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self._stop_name: str | None = None
        self._lock = threading.Lock()
        self._durable: dict[str, bytes] = {}
        self._renamed: dict[str, bytes | None] = {}
        self.calls: list[str] = []

    def stop_at_name(self, name: str) -> None:
        """The power goes at the next call of this name, such as "write_rows" or "sync rows.npy"."""
        self._stop_name = name

    def sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._count(f"sync {path.name}")
        if path.is_file():
            self._durable[path.name] = path.read_bytes()

    def sync_map(self, mapped: mmap.mmap, num_bytes: int) -> None:
        """Files are compared as a whole, at `sync`."""
        self._count("sync_map")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self._renamed.clear()

    def replace(self, source: Path, target: Path) -> None:
        self._count(f"replace {target.name}")
        self._renamed[target.name] = self._durable.get(target.name)
        self._durable[target.name] = self._durable.pop(source.name, b"")
        super().replace(source, target)

    def reserve(self, descriptor: int, offset: int, num_bytes: int) -> None:
        self._count("reserve")
        super().reserve(descriptor, offset, num_bytes)

    def write_rows(self, descriptor: int, data_offset: int, rows: Int64, words: Float32) -> None:
        half = len(rows) // 2
        super().write_rows(descriptor, data_offset, rows[:half], words[:half])
        self._count("write_rows")
        super().write_rows(descriptor, data_offset, rows[half:], words[half:])

    def write_pieces(
        self, transfers: Transfers, descriptor: int, offsets: Int64, lengths: Int64, addresses: Int64
    ) -> None:
        half = (len(offsets) + 1) // 2
        super().write_pieces(transfers, descriptor, offsets[:half], lengths[:half], addresses[:half])
        self._count("write_pieces")
        super().write_pieces(transfers, descriptor, offsets[half:], lengths[half:], addresses[half:])

    def lose_unsynced(self, folder: Path, rng: np.random.Generator) -> None:
        """Makes a folder (or a copy of it) what the disk may hold after the power cut."""
        for path in folder.iterdir():
            if path.name in self._renamed and rng.random() < 0.5:
                self._undo_rename(path)
            elif path.name != "lock":
                durable = self._durable.get(path.name, b"")
                path.write_bytes(_mix_sectors(path.read_bytes(), durable, rng))

    def _undo_rename(self, path: Path) -> None:
        before = self._renamed[path.name]
        if before is None:
            path.unlink()
        else:
            path.write_bytes(before)

    def _count(self, name: str) -> None:
        with self._lock:
            if name == self._stop_name:
                self.stop_at = len(self.calls)
            # Once gone, the power stays gone: other threads stop at their next call.
            stop = self.stop_at is not None and len(self.calls) >= self.stop_at
            self.calls.append(name)
        if stop:
            raise PowerCut(name)


def _mix_sectors(present: bytes, durable: bytes, rng: np.random.Generator) -> bytes:
    durable = durable[: len(present)].ljust(len(present), b"\0")
    pieces = []
    for begin in range(0, len(present), SECTOR_BYTES):
        source = present if rng.random() < 0.5 else durable
        pieces.append(source[begin : begin + SECTOR_BYTES])
    return b"".join(pieces)


SECTOR_BYTES = 512
_NOT_KEPT = {"lock"}
"""Locks end with their process."""

Entry = int | None
"""The inode of a file, or None for a folder."""


@dataclass
class Image:
    """A tree of files."""

    files: dict[str, bytes] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    def write_to(self, root: Path) -> None:
        for name in self.folders:
            (root / name).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (root / name).write_bytes(content)


class CrashDisk(Files):
    """File operations below `root`; `look(name)` is called at every point at which the power may go."""

    def __init__(self, root: Path, look: Callable[[str], None] | None = None) -> None:
        self.root = root
        self._look = look
        self._names: dict[str, dict[str, Entry]] = {"": {}}
        """For each folder the names that are on the disk."""
        self._bytes: dict[int, bytes] = {}
        """For each inode the bytes that are on the disk."""
        self._kept_open: dict[int, int] = {}
        """A descriptor of each inode on the disk, so that its number is not given to another file."""
        self.points: list[str] = []

    def close(self) -> None:
        for descriptor in self._kept_open.values():
            os.close(descriptor)
        self._kept_open.clear()

    def settle_everything(self) -> None:
        """What is there now is on the disk: a run begins with it."""
        for folder, _, names in os.walk(self.root):
            for name in names:
                self._keep_bytes(Path(folder, name))
            self._keep_names(Path(folder))

    def image(self, rng: np.random.Generator | None) -> Image:
        """What is left after a power cut now; None: after a kill, which loses nothing that was written."""
        image = Image()
        self._add(Path(), image, rng)
        return image

    def sync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._point(f"sync {path.name}")
        if path.is_dir():
            self._keep_names(path)
        else:
            self._keep_bytes(path)

    def sync_map(self, mapped: mmap.mmap, num_bytes: int) -> None:
        """The file is kept as a whole when its descriptor is synced."""
        self._point("sync a mapping")

    def replace(self, source: Path, target: Path) -> None:
        self._point(f"replace {target.name}")
        super().replace(source, target)

    def reserve(self, descriptor: int, offset: int, num_bytes: int) -> None:
        self._point("reserve")
        super().reserve(descriptor, offset, num_bytes)

    def write(self, descriptor: int, words: Float32, offset: int) -> None:
        self._point("write")
        flat = words.reshape(-1)
        half = len(flat) // 2
        super().write(descriptor, flat[:half], offset)
        self._point("half written")
        super().write(descriptor, flat[half:], offset + 4 * half)

    def write_rows(self, descriptor: int, data_offset: int, rows: Int64, words: Float32) -> None:
        self._point("write rows")
        half = len(rows) // 2
        super().write_rows(descriptor, data_offset, rows[:half], words[:half])
        self._point("rows half written")
        super().write_rows(descriptor, data_offset, rows[half:], words[half:])

    def write_pieces(
        self, transfers: Transfers, descriptor: int, offsets: Int64, lengths: Int64, addresses: Int64
    ) -> None:
        self._point("write pieces")
        half = (len(offsets) + 1) // 2
        super().write_pieces(transfers, descriptor, offsets[:half], lengths[:half], addresses[:half])
        self._point("pieces half written")
        super().write_pieces(transfers, descriptor, offsets[half:], lengths[half:], addresses[half:])

    def _point(self, name: str) -> None:
        self.points.append(name)
        if self._look is not None:
            self._look(name)

    def _keep_bytes(self, path: Path) -> None:
        inode = path.stat().st_ino
        if inode not in self._kept_open:
            self._kept_open[inode] = os.open(path, os.O_RDONLY)
        self._bytes[inode] = path.read_bytes()

    def _keep_names(self, folder: Path) -> None:
        if folder.is_relative_to(self.root):
            self._names[self._key(folder)] = self._present(folder)

    def _key(self, folder: Path) -> str:
        key = folder.relative_to(self.root).as_posix()
        return "" if key == "." else key

    @staticmethod
    def _present(folder: Path) -> dict[str, Entry]:
        if not folder.is_dir():
            return {}
        with os.scandir(folder) as entries:
            return {entry.name: None if entry.is_dir() else entry.inode() for entry in entries}

    def _add(self, folder: Path, image: Image, rng: np.random.Generator | None) -> None:
        present = self._present(self.root / folder)
        kept = present if rng is None else self._names.get(self._key(self.root / folder), {})
        for name in sorted(set(present) | set(kept)):
            now, before = present.get(name, -1), kept.get(name, -1)
            chosen = now if now == before or (rng is not None and rng.random() < 0.5) else before
            path = folder / name
            if chosen == -1 or name in _NOT_KEPT:
                continue
            if chosen is None:
                image.folders.append(path.as_posix())
                self._add(path, image, rng)
            else:
                image.files[path.as_posix()] = self._content(path, chosen, now, rng)

    def _content(self, path: Path, inode: int, now: Entry, rng: np.random.Generator | None) -> bytes:
        """A file that is not under its name any more has only what was synced."""
        durable = self._bytes.get(inode, b"")
        present = (self.root / path).read_bytes() if inode == now else durable
        return present if rng is None or present == durable else mix_sectors(present, durable, rng)


def mix_sectors(present: bytes, durable: bytes, rng: np.random.Generator) -> bytes:
    """Each sector as it is now or as it was; one of those that differ is torn."""
    num_sectors = -(-len(present) // SECTOR_BYTES)
    now = np.zeros(num_sectors * SECTOR_BYTES, np.uint8)
    before = now.copy()
    now[: len(present)] = np.frombuffer(present, np.uint8)
    kept = np.frombuffer(durable, np.uint8)[: len(present)]
    before[: len(kept)] = kept
    arrived = np.repeat(rng.random(num_sectors) < rng.choice((0.1, 0.5, 0.9)), SECTOR_BYTES)
    differing = np.flatnonzero(now != before)
    if len(differing):
        torn = int(rng.choice(differing))
        arrived[torn : (torn // SECTOR_BYTES + 1) * SECTOR_BYTES] ^= True
    mixed: bytes = np.where(arrived, now, before)[: len(present)].tobytes()
    # A file that grew and was not synced may also still have its old length.
    return mixed[: len(durable)] if len(durable) < len(present) and rng.random() < 0.3 else mixed
