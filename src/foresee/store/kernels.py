"""The loops that copy rows, shared by all stores that hold them in arrays.

A stored row is `width + state_width + 1` float32 words: values, state, and the version in the bits of the last word.
So one row is one contiguous piece of memory or file. Reads are in two passes: first each row gets a place (its
position in the overlay, BASE, or INITIAL), then rows are copied from their places. The passes are apart because the
first needs a lock and the second may wait for a disk. Inner loops are written out: numba's slices are far slower.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from foresee.base.arrays import Float32, Int32, Int64
from foresee.base.prefetch import ROWS_AHEAD, prefetch
from foresee.store.initial import fill_initial_row

Bits = NDArray[np.uint8]

BASE = -1
"""Place of a row that is in the base array."""
INITIAL = -2
"""Place of a row that nobody has written."""
REFUSED = -3
"""Place of a written row whose version is lower than the stored one."""


@numba.njit(nogil=True, cache=True, inline="always")
def is_set(bits: Bits, row: int) -> bool:
    return bool((bits[row >> 3] >> np.uint8(row & 7)) & np.uint8(1))


@numba.njit(nogil=True, cache=True, inline="always")
def set_bit(bits: Bits, row: int) -> None:
    bits[row >> 3] |= np.uint8(1) << np.uint8(row & 7)


@numba.njit(nogil=True, cache=True)
def set_bits(bits: Bits, rows: Int64) -> None:
    for row in rows:
        set_bit(bits, row)


@numba.njit(nogil=True, cache=True)
def clear_bits(bits: Bits, rows: Int64) -> None:
    for row in rows:
        bits[row >> 3] &= ~(np.uint8(1) << np.uint8(row & 7))


@numba.njit(nogil=True, cache=True)
def locate_in_base(rows: Int64, written: Bits, places: Int64) -> None:
    """Places for a store without overlay."""
    for k in range(len(rows)):
        places[k] = BASE if is_set(written, rows[k]) else INITIAL


@numba.njit(nogil=True, cache=True)
def gather(
    rows: Int64,
    places: Int64,
    base: Float32,
    overlay: Float32,
    overlay_header: int,
    key: np.uint64,
    unit: np.float32,
    values: Float32,
    state: Float32,
    versions: Int32,
    begin: int,
    end: int,
) -> None:
    """Copies rows begin..end of a request from their places. `overlay_header` is the words before an overlay's row."""
    base_versions = base.view(np.int32)
    overlay_versions = overlay.view(np.int32)
    width, state_width = values.shape[1], state.shape[1]
    version_word = width + state_width
    row_bytes = 4 * (version_word + 1)
    base_address, base_stride = base.ctypes.data, 4 * base.shape[1]
    overlay_address, overlay_stride = overlay.ctypes.data, 4 * overlay.shape[1]
    for k in range(begin, end):
        if k + ROWS_AHEAD < end:
            place = places[k + ROWS_AHEAD]
            if place >= 0:
                prefetch(overlay_address + place * overlay_stride, row_bytes + 4 * overlay_header)
            elif place == BASE:
                prefetch(base_address + rows[k + ROWS_AHEAD] * base_stride, row_bytes)
        place = places[k]
        if place >= 0:
            for i in range(width):
                values[k, i] = overlay[place, overlay_header + i]
            for i in range(state_width):
                state[k, i] = overlay[place, overlay_header + width + i]
            versions[k] = overlay_versions[place, overlay_header + version_word]
        elif place == BASE:
            row = rows[k]
            for i in range(width):
                values[k, i] = base[row, i]
            for i in range(state_width):
                state[k, i] = base[row, width + i]
            versions[k] = base_versions[row, version_word]
        else:
            fill_initial_row(key, unit, rows[k], width, values, k)
            for i in range(state_width):
                state[k, i] = 0.0
            versions[k] = 0


@numba.njit(nogil=True, cache=True)
def assign_in_base(rows: Int64, values: Float32, state: Float32, versions: Int32, base: Float32, written: Bits) -> None:
    """Writes rows into a base array in memory; rows with a lower version than the stored one are left out."""
    base_versions = base.view(np.int32)
    width, state_width = values.shape[1], state.shape[1]
    version_word = width + state_width
    base_address, base_stride = base.ctypes.data, 4 * base.shape[1]
    for k in range(len(rows)):
        if k + ROWS_AHEAD < len(rows):
            prefetch(base_address + rows[k + ROWS_AHEAD] * base_stride, base_stride)
        row = rows[k]
        # The memory of a row that was never written is zero, and so is its version.
        if versions[k] < base_versions[row, version_word]:
            continue
        for i in range(width):
            base[row, i] = values[k, i]
        for i in range(state_width):
            base[row, width + i] = state[k, i]
        base_versions[row, version_word] = versions[k]
        set_bit(written, row)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that kernels cannot write through, so that every store uses the same compiled gather."""
    view = array.view()
    view.flags.writeable = False
    return view
