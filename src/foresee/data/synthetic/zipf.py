"""Zipf-distributed ids from a 64-bit key: exact, constant time, no table of probabilities.

Rejection-inversion (Hörmann and Derflinger 1996): draw from the continuous hat x^-s by inverting its integral, round,
and reject the little that the hat stands above the histogram. About 1.1 draws per id whatever the table's size, so a
table of 10^9 rows costs what one of 10 rows costs. Id 0 is the hottest. Kernels; arrays and scalars only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.errors import DataError

Float64 = NDArray[np.float64]


@njit(nogil=True, cache=True, inline="always")
def mix(value: np.uint64) -> np.uint64:
    """splitmix64's finaliser: every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(nogil=True, cache=True, inline="always")
def combine(key: np.uint64, part: np.uint64) -> Any:
    """A key that depends on both."""
    return mix((key ^ part) * np.uint64(0xD1342543DE82EF95) + np.uint64(0x9E3779B97F4A7C15))


@njit(nogil=True, cache=True, inline="always")
def uniform(bits: np.uint64) -> float:
    """[0, 1) with 53 bits."""
    return float(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(nogil=True, cache=True, inline="always")
def _integral(x: float, exponent: float) -> Any:
    return (x ** (1.0 - exponent) - 1.0) / (1.0 - exponent)


@njit(nogil=True, cache=True, inline="always")
def _inverse(y: float, exponent: float) -> Any:
    return (1.0 + y * (1.0 - exponent)) ** (1.0 / (1.0 - exponent))


@njit(nogil=True, cache=True)
def zipf_id(key: np.uint64, constants: Float64, exponent: float) -> np.int64:
    """The id that `key` stands for; `constants` is one row of `zipf_constants`."""
    low, high, accept, num_rows = constants[0], constants[1], constants[2], constants[3]
    while True:
        y = high + uniform(mix(key)) * (low - high)
        x = _inverse(y, exponent)
        rank = math.floor(x + 0.5)
        rank = min(max(rank, 1.0), num_rows)
        if rank - x <= accept or y >= _integral(rank + 0.5, exponent) - rank**-exponent:
            return np.int64(rank) - 1
        key += np.uint64(0x9E3779B97F4A7C15)


def zipf_constants(table_sizes: tuple[int, ...], exponent: float) -> Float64:  # [tables, 4]
    """What `zipf_id` needs to know about each table. An exponent of exactly 1 has another integral and is refused."""
    if exponent <= 0 or exponent == 1.0:
        raise DataError(f"zipf={exponent} cannot be used; give a number above 0 other than exactly 1, such as 1.1.")

    def integral(x: float) -> float:
        return float((x ** (1.0 - exponent) - 1.0) / (1.0 - exponent))

    def inverse(y: float) -> float:
        return float((1.0 + y * (1.0 - exponent)) ** (1.0 / (1.0 - exponent)))

    accept = 2.0 - inverse(integral(2.5) - 2.0**-exponent)
    rows = [[integral(1.5) - 1.0, integral(size + 0.5), accept, float(size)] for size in table_sizes]
    return np.array(rows, np.float64)
