"""Zipf-distributed ids by inverting the distribution: a number in [0, 1) in, an id out, in constant time.

The first ranks are looked up in their exact cumulative weights; beyond them the sum is replaced by its integral, which
is off by a relative 2e-6 at most and inverts in closed form. So a table of 10^9 rows costs what one of 10^3 costs. The
map is monotone: id 0, the hottest, is at 0, and equal numbers give equal ids, which is how columns become correlated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

from foresee.base.arrays import Float64
from foresee.errors import DataError

HEAD_RANKS = 256
"""Ranks with exact weights."""


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


@njit(nogil=True, cache=True)
def zipf_id(share: float, weights: Float64, num_rows: int, exponent: float) -> Any:
    """The id below which `share` of the accesses of a table lie; `weights` is one row of `zipf_weights`."""
    target = share * weights[HEAD_RANKS]
    head = min(num_rows, HEAD_RANKS)
    if target < weights[head - 1] or num_rows <= HEAD_RANKS:
        low, high = 0, head - 1
        while low < high:
            middle = (low + high) // 2
            if weights[middle] > target:
                high = middle
            else:
                low = middle + 1
        return low
    start = HEAD_RANKS + 0.5
    area = target - weights[head - 1]
    if exponent == 1.0:
        rank = start * math.exp(area)
    else:
        rank = (start ** (1.0 - exponent) + area * (1.0 - exponent)) ** (1.0 / (1.0 - exponent))
    return min(max(math.floor(rank + 0.5), HEAD_RANKS + 1), num_rows) - 1


def zipf_weights(table_sizes: tuple[int, ...], exponent: float) -> Float64:  # [tables, HEAD_RANKS + 1]
    """Per table: cumulative weights of the first ranks, then the weight of all ranks."""
    if not exponent >= 0:
        raise DataError(f"zipf={exponent} cannot be used; give 0 (all rows alike) or more, such as 1.1.")
    out = np.empty((len(table_sizes), HEAD_RANKS + 1))
    for row, size in zip(out, table_sizes, strict=True):
        ranks = np.arange(1.0, HEAD_RANKS + 1)
        row[:HEAD_RANKS] = np.cumsum(np.where(ranks <= size, ranks**-exponent, 0.0))
        row[HEAD_RANKS] = row[HEAD_RANKS - 1] + _tail_weight(size, exponent)
    return out


def _tail_weight(size: int, exponent: float) -> float:
    if size <= HEAD_RANKS:
        return 0.0
    start, stop = HEAD_RANKS + 0.5, size + 0.5
    if exponent == 1.0:
        return math.log(stop / start)
    return float((stop ** (1.0 - exponent) - start ** (1.0 - exponent)) / (1.0 - exponent))
