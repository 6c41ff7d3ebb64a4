"""Ids and dense values of synthetic sample i, as a pure function of (seed, i): users with tastes, and Zipf's law.

A sample comes from a user in one of a few moods, and a mood is about a topic that many users share. User and topic are
each a number in [0, 1); a column turns one of them, or a fresh number, into an id by a scramble of its own and the
inverse of its Zipf distribution. The scramble keeps a uniform number uniform, so each column alone is exactly Zipf,
while columns that follow the same user or topic are strongly correlated, as those of real logs are.

The inverse is exact for the first ranks; beyond them the sum becomes an integral, off by a relative 2e-6 at most, that
inverts in closed form: a table of 10^9 rows costs what one of 10^3 costs. Id 0 is the hottest. No state is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.arrays import Float32, Float64, Int64
from foresee.errors import DataError
from foresee.io.hashing import combine, key_of, mix, uniform

HEAD_RANKS = 256
"""Ranks with exact weights."""


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


MOODS = 4
"""Each user has this many, and each is about one topic."""
CELLS = 128
"""A column's scramble permutes this many equal pieces of [0, 1)."""

# Columns take turns: mostly the user, mostly the topic, both, a little of both. (user's share, topic's share of draws)
_TASTES = ((0.85, 0.1), (0.05, 0.85), (0.45, 0.45), (0.2, 0.4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Who produces the samples and what they draw from."""

    seed: int
    table_sizes: tuple[int, ...]
    zipf: float = 1.1
    correlated: bool = True
    num_users: int = 10_000
    num_topics: int = 1_000

    def keys(self) -> NDArray[np.uint64]:
        """Keys of samples, users and scrambles: three streams that never meet."""
        return np.array([key_of(self.seed, 2, stream) for stream in range(3)], np.uint64)

    def tastes(self) -> Float64:  # [columns, 2]: where the user's share ends, where the topic's ends
        shares = [_TASTES[i % len(_TASTES)] if self.correlated else (0.0, 0.0) for i in range(len(self.table_sizes))]
        return np.cumsum(np.array(shares, np.float64).reshape(-1, 2), axis=1)

    def draw_ids(self, first_sample: int, out: NDArray[Any]) -> None:
        """Fill out[sample, column] with local ids of the samples from `first_sample` on."""
        weights = zipf_weights(self.table_sizes, self.zipf)
        sizes = np.array(self.table_sizes, np.int64)
        _draw_ids(
            out, first_sample, self.keys(), weights, sizes, self.tastes(), self.zipf, self.num_users, self.num_topics
        )

    def draw_dense(self, first_sample: int, out: Float32) -> None:
        """Fill out[sample, column] with dense values: standard normal, shared in part by a user's samples."""
        _draw_dense(out, first_sample, self.keys(), self.num_users)


@njit(nogil=True, cache=True, inline="always")
def normal(bits: np.uint64) -> float:
    """Nearly normal with mean 0 and variance 1: the sum of four 16-bit uniform numbers."""
    mask = np.uint64(0xFFFF)
    total = (
        float(bits & mask)
        + float((bits >> np.uint64(16)) & mask)
        + float((bits >> np.uint64(32)) & mask)
        + float(bits >> np.uint64(48))
    )
    return (total - 131070.0) * (1.0 / 37837.5)


@njit(nogil=True, cache=True, inline="always")
def _user_of(sample_key: np.uint64, num_users: int) -> Any:
    # The square makes some users busier, mildly: a few very busy ones would bend every column towards their ids.
    share = uniform(combine(sample_key, np.uint64(1 << 32)))
    return np.uint64(share * share * num_users)


@njit(nogil=True, cache=True, inline="always")
def _scramble(share: float, key: np.uint64) -> Any:
    """Permute the cells of [0, 1): multiplying by an odd number permutes the residues of a power of two."""
    cell = np.uint64(share * CELLS)
    moved = (cell * (key | np.uint64(1)) + (key >> np.uint64(32))) % np.uint64(CELLS)
    return (float(moved) + (share * CELLS - float(cell))) / CELLS


@njit(nogil=True, cache=True)
def _draw_ids(
    out: Any,
    first_sample: int,
    keys: NDArray[np.uint64],
    weights: Float64,
    sizes: Int64,
    tastes: Float64,
    exponent: float,
    num_users: int,
    num_topics: int,
) -> None:
    for index in range(out.shape[0]):
        sample_key = combine(keys[0], np.uint64(first_sample + index))
        user_key = combine(keys[1], _user_of(sample_key, num_users))
        mood_bits = combine(sample_key, np.uint64(1 << 33))
        topic = combine(user_key, mood_bits % np.uint64(MOODS)) % np.uint64(num_topics)
        # A topic is a narrow range, not a point: its samples share hot ids and spread over cold ones.
        about = (float(topic) + uniform(mix(mood_bits))) / num_topics
        who = uniform(combine(user_key, np.uint64(1 << 32)))
        for column in range(out.shape[1]):
            bits = combine(sample_key, np.uint64(column))
            turn = uniform(bits)
            if turn < tastes[column, 0]:
                share = _scramble(who, combine(keys[2], np.uint64(column)))
            elif turn < tastes[column, 1]:
                share = _scramble(about, combine(keys[2], np.uint64(column)))
            else:
                share = uniform(mix(bits))
            out[index, column] = zipf_id(share, weights[column], sizes[column], exponent)


@njit(nogil=True, cache=True)
def _draw_dense(out: Float32, first_sample: int, keys: NDArray[np.uint64], num_users: int) -> None:
    for index in range(out.shape[0]):
        sample_key = combine(keys[0], np.uint64(first_sample + index))
        user_key = combine(keys[1], _user_of(sample_key, num_users))
        for column in range(out.shape[1]):
            part = np.uint64((1 << 34) + column)
            out[index, column] = 0.6 * normal(combine(user_key, part)) + 0.8 * normal(combine(sample_key, part))
