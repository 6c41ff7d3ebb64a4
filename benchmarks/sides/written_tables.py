"""What the sides of `benchmarks/larger_than_memory.py` train on: a log, and tables whose rows were all written before.

In: a folder and sizes. Out: `log/` with the rows that it touches (`touched.npy`), and for `--written` the tables, a
file of the same size to be mapped and LMDB's database (`lmdb/`), all written at the same time, the first two past the
page cache and from front to back. The file to be mapped repeats the initial values of some rows: to make them all would
take longer than to write them, and nothing is as fast or slow because of them. LMDB can be written through the page
cache only, which is slow: unless it is to have all rows, it has those of the log and every eighth of the others, so
that a row of the log still has a page of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np

from foresee import Adagrad, ClickLog, RowwiseAdagrad
from foresee.arrays import Int64
from foresee.data import synthetic
from foresee.data.stream import LogStream
from foresee.engine.optimizers import Optimizer
from foresee.engine.tables import layout_for
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout
from sides.peer_rows import MappedFile

LEARNING_RATE, EPSILON = 0.05, 1e-8
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"rowwise_adagrad": RowwiseAdagrad, "adagrad": Adagrad}
SHUFFLE_SAMPLES = 16_384
LMDB_EVERY = 8
INIT_SCALE = 0.05


def make_log(folder: Path, *, num_steps: int, batch_size: int, table_scale: float, dim: int,
             optimizer: Optimizer) -> tuple[Layout, Int64]:  # fmt: skip
    """Writes the log; returns the layout of its tables, and the rows that it touches."""
    log = synthetic(folder / "log", num_samples=num_steps * batch_size, table_scale=table_scale, valid_share=0.0)
    stream = stream_of(log, batch_size, epochs=1)
    touched = np.unique(np.concatenate([np.unique(batch.rows) for batch in stream.batches()]))
    np.save(folder / "touched.npy", touched)
    return layout_for(log, dim, optimizer, 0, INIT_SCALE), touched


def stream_of(log: ClickLog, batch_size: int, epochs: int) -> LogStream:
    """The batches of all sides."""
    return log.batches(batch_size=batch_size, shuffle_samples=SHUFFLE_SAMPLES, epochs=epochs)


def optimizer(name: str) -> Optimizer:
    """How rows learn."""
    return OPTIMIZERS[name](lr=LEARNING_RATE, eps=EPSILON)


def write_all(folder: Path, layout: Layout, load_lmdb: list[str] | None, *, mapped: bool, rows_of_lmdb: Int64) -> None:
    """All rows of the tables, and what peers need. `load_lmdb`: the command that loads the rows of `loaded.npy`."""
    with mock.patch.dict(os.environ, FORESEE_DISK="io_uring"):
        store = DiskStore.create(folder / "tables", layout)
    np.save(folder / "loaded.npy", rows_of_lmdb)
    loading = None if load_lmdb is None else subprocess.Popen(load_lmdb)
    with ThreadPoolExecutor(1) as pool:
        mapping = pool.submit(MappedFile.write_all, folder, layout) if mapped else None
        store.initialise_all()
    store.forget_pages()
    store.close()
    if mapping is not None:
        mapping.result()
    if loading is not None and loading.wait() != 0:
        sys.exit("the rows could not be loaded into LMDB")


def rows_for_lmdb(layout: Layout, touched: Int64, *, every_row: bool) -> Int64:
    return np.union1d(touched, np.arange(0, layout.num_rows, 1 if every_row else LMDB_EVERY))
