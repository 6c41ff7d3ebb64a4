"""A disk that stops at a chosen call, and forgets what was not synced.

In: the number of the call at which the power goes. Out: a folder as the disk would hold it afterwards. Real files hold
the present content; beside it the fake remembers what each file held at its last sync. `lose_unsynced` then mixes the
two sector by sector, at random, as a disk may have written any of them; a rename whose folder was not synced happens or
does not. What survives all of that survives a power cut. Syncs reach no real disk, so tests are quick.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import numpy as np

from foresee.store.contract import Float32, Int64
from foresee.store.disk.files import Files

SECTOR_BYTES = 512


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
