"""A store in memory: one array of rows, nothing durable.

In: a layout. Rows nobody has written take no memory on systems that hand out zeroed pages lazily, and their initial
values are made when they are read. `commit` only remembers the step: a process that ends takes its rows with it.
"""

from __future__ import annotations

import threading

import numpy as np

from foresee.errors import StoreError, UsageError
from foresee.store.check import check_request
from foresee.store.contract import Int64, Layout, Rows
from foresee.store.initial import initial_key, initial_unit
from foresee.store.kernels import assign_in_base, gather, locate_in_base, read_only


class MemoryStore:
    """Rows in RAM."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._key, self._unit = initial_key(layout), initial_unit(layout)
        row_words = layout.row_bytes // 4
        try:
            self._base = np.zeros((layout.num_rows, row_words), np.float32)
            self._written = np.zeros((layout.num_rows + 7) // 8, np.uint8)
        except (MemoryError, ValueError) as error:
            raise StoreError(
                f"tables of {layout.num_rows:,} rows need {layout.num_rows * layout.row_bytes:,} bytes, more than this "
                "machine's memory; keep them on disk"
            ) from error
        self._no_overlay = read_only(np.zeros((0, row_words), np.float32))
        self._writer = threading.Lock()
        self._committed_step = 0
        self._closed = False

    @property
    def layout(self) -> Layout:
        return self._layout

    @property
    def committed_step(self) -> int:
        return self._committed_step

    def read(self, rows: Int64, out: Rows) -> None:
        self._check_open()
        check_request(self._layout, rows, out)
        places = np.empty(len(rows), np.int64)
        locate_in_base(rows, self._written, places)
        gather(
            rows, places, read_only(self._base), self._no_overlay, 0, self._key, self._unit,
            out.values, out.state, out.versions, 0, len(rows),
        )  # fmt: skip

    def write(self, rows: Int64, source: Rows) -> None:
        self._check_open()
        check_request(self._layout, rows, source)
        with self._writer:
            assign_in_base(rows, source.values, source.state, source.versions, self._base, self._written)

    def commit(self, step: int) -> None:
        self._check_open()
        if step < self._committed_step:
            raise UsageError(f"step {step} cannot be committed: step {self._committed_step} already is")
        self._committed_step = step

    def close(self) -> None:
        self._closed = True
        self._base = np.zeros((0, self._base.shape[1]), np.float32)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this store is closed; open it again to use it")
