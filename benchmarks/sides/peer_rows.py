"""Rows larger than memory without Foresee: a mapped file in plain PyTorch, and a row a value of LMDB.

The peers of `benchmarks/larger_than_memory.py --written`. Each reads the distinct rows of a batch, trains, and writes
them back; the same model, batches, widths and row-wise Adagrad, all of it in the training loop, as people write it.
LMDB has neither checks nor syncs here (`sync=False`), which is faster than anybody would run it.

    MappedFile   a copy of `rows.npy` as one torch tensor over numpy's memory map; rows by indexing
    Lmdb         big-endian ids as keys, a row's values and state as one value; `getmulti` and `putmulti` in id order
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.base.direct import aligned, probe
from foresee.base.files import Files
from foresee.base.sequence import Sequence

LMDB_BYTES_MAX = 1 << 40
LOADED_AT_ONCE = 1 << 16
COPIED_AT_ONCE = 1 << 23
Ids = NDArray[np.int64]


class PeerRows(Protocol):
    """Values and state of rows, [rows, width + state width]."""

    def read(self, ids: Ids) -> Tensor: ...

    def write(self, ids: Ids, rows: Tensor) -> None: ...

    def close(self) -> None: ...


class MappedFile:
    """All rows of a table folder, in a file of its own."""

    def __init__(self, folder: Path, num_rows: int, width: int) -> None:
        path = folder / "mapped.npy"
        offset = path.stat().st_size - 4 * num_rows * (width + 1)  # behind each row is its version
        words = np.memmap(path, np.float32, "r+", offset, (num_rows, width + 1))
        self._rows = torch.from_numpy(words)[:, :width]

    @staticmethod
    def load(folder: Path, tables: Path) -> None:
        """Copied past the page cache: nothing of it is in memory when the first turn begins."""
        source, target = tables / "rows.npy", folder / "mapped.npy"
        num_bytes = source.stat().st_size
        with open(target, "wb") as created:
            os.posix_fallocate(created.fileno(), 0, num_bytes)
        copy = Sequence(target, 0, probe(source, num_bytes, None, "io_uring"), Files())
        reading = os.open(source, os.O_RDONLY | os.O_DIRECT)
        buffer = aligned(COPIED_AT_ONCE)
        try:
            for begin in range(0, num_bytes, COPIED_AT_ONCE):
                copy.write(buffer[: os.preadv(reading, [buffer.data], begin)].view(np.float32))
            copy.finish()
        finally:
            copy.close()
            os.close(reading)

    def read(self, ids: Ids) -> Tensor:
        return self._rows[torch.from_numpy(ids)]

    def write(self, ids: Ids, rows: Tensor) -> None:
        self._rows[torch.from_numpy(ids)] = rows

    def close(self) -> None:
        pass


class Lmdb:
    """A database of rows."""

    def __init__(self, folder: Path, num_rows: int, width: int) -> None:
        self._environment, self._width = _open(folder), width

    @staticmethod
    def load(folder: Path, tables: Path, ids: Ids) -> None:
        """Writes these rows, ascending, with the values that they have in a table folder."""
        source = np.load(tables / "rows.npy", mmap_mode="r")
        environment = _open(folder)
        for begin in range(0, len(ids), LOADED_AT_ONCE):
            some = source[ids[begin : begin + LOADED_AT_ONCE]]
            rows = np.concatenate([some["value"], some["state"]], axis=1)
            with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(_items(ids[begin : begin + LOADED_AT_ONCE], rows), append=True)
        environment.sync(True)
        environment.close()
        forget(folder / "lmdb" / "data.mdb")

    def read(self, ids: Ids) -> Tensor:
        with self._environment.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            found = b"".join(value for _, value in cursor.getmulti(_keys(ids)))
        return torch.frombuffer(bytearray(found), dtype=torch.float32).view(-1, self._width)

    def write(self, ids: Ids, rows: Tensor) -> None:
        with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(_items(ids, rows.numpy()))

    def close(self) -> None:
        self._environment.close()


def forget(path: Path) -> None:
    """The system keeps nothing of a file in memory: pages that a loader brought would not count against the limit."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def _open(folder: Path) -> Any:
    lmdb = importlib.import_module("lmdb")  # only .venv-bench has it
    options = {"sync": False, "metasync": False, "writemap": True, "map_async": True, "readahead": False}
    return lmdb.open(str(folder / "lmdb"), map_size=LMDB_BYTES_MAX, **options)


def _keys(ids: Ids) -> list[bytes]:
    content = ids.astype(">u8").tobytes()
    return [content[at : at + 8] for at in range(0, len(content), 8)]


def _items(ids: Ids, rows: NDArray[np.float32]) -> list[tuple[bytes, bytes]]:
    content, size = np.ascontiguousarray(rows).tobytes(), rows.shape[1] * 4
    values = [content[at : at + size] for at in range(0, len(content), size)]
    return list(zip(_keys(ids), values, strict=True))


PEERS: dict[str, Callable[[Path, int, int], PeerRows]] = {"mapped": MappedFile, "lmdb": Lmdb}


def rowwise_adagrad(rows: Tensor, gradients: Tensor, learning_rate: float, epsilon: float) -> None:
    """Values and, in the last column, the state, in place."""
    state = rows[:, -1]
    state += gradients.square().mean(dim=1)
    rows[:, :-1] -= learning_rate * gradients / (state.sqrt() + epsilon).unsqueeze(1)
