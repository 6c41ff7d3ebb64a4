"""The initial value of a row: a pure function of (seed, row, column), the same in every store.

In: a seed, a scale and row ids. Out: float32 values, uniform in [-scale, scale). Each value is 24 bits of a splitmix64
hash, so no generator has a state to carry and any row can be made at any time, in any order, on any machine. The golden
values of tests/store/test_initial.py pin it: a change here would silently give old table folders other rows.
"""

from __future__ import annotations

import numba
import numpy as np

from foresee.base.arrays import Float32, Int64
from foresee.store.contract import Layout

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_27 = np.uint64(27)
_SHIFT_30 = np.uint64(30)
_SHIFT_31 = np.uint64(31)
_SHIFT_40 = np.uint64(40)
_SHIFT_8 = np.uint64(8)
_LOW_32 = np.uint64(0xFFFFFFFF)
_HALF = np.int64(1 << 23)


@numba.njit(nogil=True, cache=True, inline="always")
def _mix(word: np.uint64) -> np.uint64:
    word = (word ^ (word >> _SHIFT_30)) * _MIX_1
    word = (word ^ (word >> _SHIFT_27)) * _MIX_2
    return word ^ (word >> _SHIFT_31)


@numba.njit(nogil=True, cache=True)
def fill_initial_row(key: np.uint64, unit: np.float32, row: int, width: int, out: Float32, position: int) -> None:
    """Writes the initial values of `row` into out[position, :width].

    A 24-bit number k - 2^23 is exact in float32, and so is `unit` (scale / 2^23): one rounding in all, and no value
    ever rounds up to `scale`. Two columns share one hash.
    """
    state = _mix(key ^ _mix(np.uint64(row) * _GOLDEN + _GOLDEN))
    for column in range(0, width, 2):
        state += _GOLDEN
        word = _mix(state)
        out[position, column] = np.float32(np.int64(word >> _SHIFT_40) - _HALF) * unit
        if column + 1 < width:
            out[position, column + 1] = np.float32(np.int64((word & _LOW_32) >> _SHIFT_8) - _HALF) * unit


@numba.njit(nogil=True, cache=True)
def _fill_rows(key: np.uint64, unit: np.float32, rows: Int64, out: Float32) -> None:
    for position in range(len(rows)):
        fill_initial_row(key, unit, rows[position], out.shape[1], out, position)


def initial_key(layout: Layout) -> np.uint64:
    """What the kernels take for a seed: any Python integer, folded to 64 bits."""
    return np.uint64(layout.seed % (1 << 64))


def initial_unit(layout: Layout) -> np.float32:
    """The distance between two neighbouring initial values."""
    return np.float32(layout.init_scale) * np.float32(2.0**-23)


def initial_values(layout: Layout, rows: Int64) -> Float32:
    """The initial values of some rows, as a new array [rows, width]."""
    out = np.empty((len(rows), layout.width), np.float32)
    _fill_rows(initial_key(layout), initial_unit(layout), rows, out)
    return out
