"""Requests are checked before anything is touched: ids in range, buffers of the right shape.

In: a layout, row ids, and the buffers of a read or a write. Out: nothing, or an error with a sentence. A refused
request leaves the store as it was.
"""

from __future__ import annotations

import numpy as np

from foresee.errors import StoreError, UsageError
from foresee.store.contract import Int64, Layout, Rows


def check_request(layout: Layout, rows: Int64, buffers: Rows) -> None:
    """Raises StoreError for a row id outside the tables, UsageError for buffers that do not fit."""
    _check_buffers(layout, rows, buffers)
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= layout.num_rows):
        outside = rows[(rows < 0) | (rows >= layout.num_rows)]
        raise StoreError(outside_sentence(layout, int(outside[0])))


def outside_sentence(layout: Layout, row: int) -> str:
    """Says where the tables end, for a row id that is in none of them."""
    first, last = layout.tables[0], layout.tables[-1]
    if row < 0:
        place = f"rows start at 0 with table '{first.name}'"
    else:
        begin = layout.num_rows - last.num_rows
        place = f"the last table '{last.name}' holds rows {begin} to {layout.num_rows - 1}"
    return f"row {row} is in no table: {place}; check that the log and the tables belong together"


def _check_buffers(layout: Layout, rows: Int64, buffers: Rows) -> None:
    if rows.dtype != np.int64 or rows.ndim != 1:
        raise UsageError(f"row ids must be one int64 array, got {rows.dtype} with {rows.ndim} dimensions")
    expected = (
        ("values", buffers.values, (len(rows), layout.width), np.float32),
        ("state", buffers.state, (len(rows), layout.state_width), np.float32),
        ("versions", buffers.versions, (len(rows),), np.int32),
    )
    for name, array, shape, dtype in expected:
        if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
            raise UsageError(
                f"{name} must be a contiguous {np.dtype(dtype)} array of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}; use Rows.empty(len(rows), store.layout)"
            )
