"""Rows larger than memory without Foresee: a mapped file in plain PyTorch, and a row a value of LMDB.

The peers of `benchmarks/larger_than_memory.py --written`. Each reads the distinct rows of a batch, trains, and writes
them back; the same model, batches, widths and row-wise Adagrad, all of it in the training loop, as people write it.
Neither syncs while it trains, and LMDB checks nothing (`sync=False`): faster than anybody would run them. `settle` lets
the system write what they changed, outside of their time and of everybody else's.

    MappedFile   a file of its own as one torch tensor over a memory map, with MADV_RANDOM; rows by indexing
    Lmdb         big-endian ids as keys, a row's values and state as one value; `getmulti` and `putmulti` in id order
"""

from __future__ import annotations

import importlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.io.direct import aligned
from foresee.store.disk.manifest import read_manifest
from foresee.store.kernels import initial_values
from foresee.store.layout import Layout

LMDB_BYTES_MAX = 1 << 40
LOADED_AT_ONCE = 1 << 14
MAPPED_AT_ONCE = 1 << 13
MAPPED_FILE = "mapped.bin"
Ids = NDArray[np.int64]


class PeerRows(Protocol):
    """Values and state of rows, [rows, width + state width]."""

    def read(self, ids: Ids) -> Tensor: ...

    def write(self, ids: Ids, rows: Tensor) -> None: ...

    def settle(self) -> None: ...

    def close(self) -> None: ...


class MappedFile:
    """As many rows as a table folder has, in a file of its own."""

    def __init__(self, folder: Path, num_rows: int, width: int) -> None:
        self._file = open(folder / MAPPED_FILE, "r+b")  # noqa: SIM115 - closed with the rows
        self._map = mmap.mmap(self._file.fileno(), 0)
        self._map.madvise(mmap.MADV_RANDOM)
        words = np.frombuffer(self._map, np.float32).reshape(num_rows, width + 1)  # as long as with a version
        self._rows = torch.from_numpy(words)[:, :width]

    @staticmethod
    def write_all(folder: Path, layout: Layout) -> None:
        """Past the page cache: the values that the first rows of a table folder begin with, over and over."""
        words = np.zeros((MAPPED_AT_ONCE, layout.row_bytes // 4), np.float32)
        words[:, : layout.width] = initial_values(layout, np.arange(MAPPED_AT_ONCE))
        content = aligned(words.nbytes)
        content[:] = words.reshape(-1).view(np.uint8)
        descriptor = os.open(folder / MAPPED_FILE, os.O_CREAT | os.O_WRONLY | os.O_DIRECT)
        try:
            for begin in range(0, layout.num_rows, MAPPED_AT_ONCE):
                os.pwrite(descriptor, content.data, begin * layout.row_bytes)
            os.ftruncate(descriptor, layout.num_rows * layout.row_bytes)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, ids: Ids) -> Tensor:
        return self._rows[torch.from_numpy(ids)]

    def write(self, ids: Ids, rows: Tensor) -> None:
        self._rows[torch.from_numpy(ids)] = rows

    def settle(self) -> None:
        os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Lmdb:
    """A database of rows."""

    def __init__(self, folder: Path, num_rows: int, width: int) -> None:
        self._environment, self._width = _open(folder), width

    @staticmethod
    def load(folder: Path, ids: Ids) -> None:
        """Writes these rows, ascending, with the values that all rows of a table folder begin with."""
        layout, environment = read_manifest(folder / "tables").layout, _open(folder)
        for begin in range(0, len(ids), LOADED_AT_ONCE):
            some = ids[begin : begin + LOADED_AT_ONCE]
            rows = np.zeros((len(some), layout.width + layout.state_width), np.float32)
            rows[:, : layout.width] = initial_values(layout, some)
            with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                cursor.putmulti(_items(some, rows), append=True)
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

    def settle(self) -> None:
        self._environment.sync(True)

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
    options = {"sync": False, "metasync": False, "readahead": False}
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


def adagrad(rows: Tensor, gradients: Tensor, learning_rate: float, epsilon: float) -> None:
    """Values and behind them as many columns of state, in place."""
    values, state = rows.chunk(2, dim=1)
    state += gradients.square()
    values -= learning_rate * gradients / (state.sqrt() + epsilon)


PEERS_LEARN: dict[str, Callable[[Tensor, Tensor, float, float], None]] = {
    "rowwise_adagrad": rowwise_adagrad,
    "adagrad": adagrad,
}
