"""Users with tastes: the ids and dense values of sample i, as a pure function of (seed, i).

A sample comes from a user, and a user has a few interests. In most columns the id is one of the user's few habitual
ids, or one of those an interest shares among its users, or a fresh draw; all three are Zipf draws from the column's
table, so each column alone looks like Zipf while columns together are correlated, as in real logs. Any chunk can be
made without the ones before it. Kernels fill arrays they are given and keep no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.data.batch import Float32
from foresee.data.order import key_of
from foresee.data.synthetic.zipf import Float64, combine, uniform, zipf_constants, zipf_id

HABITS = 4
"""Habitual ids of a user in one column."""
INTERESTS_PER_USER = 3
INTEREST_IDS = 16
"""Ids an interest has in one column."""

# Columns take turns: mostly the user, mostly the interest, both, neither. (user's share, interest's share of draws)
_TASTES = ((0.6, 0.2), (0.2, 0.5), (0.35, 0.35), (0.0, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """Who produces the samples and what they draw from."""

    seed: int
    table_sizes: tuple[int, ...]
    zipf: float = 1.1
    correlated: bool = True
    num_users: int = 10_000
    num_interests: int = 1_000

    def keys(self) -> NDArray[np.uint64]:
        """Keys of samples, users and interests: three streams that never meet."""
        return np.array([key_of(self.seed, 2, stream) for stream in range(3)], np.uint64)

    def tastes(self) -> Float64:  # [columns, 2]: where the user's share ends, where the interest's ends
        shares = [_TASTES[i % len(_TASTES)] if self.correlated else (0.0, 0.0) for i in range(len(self.table_sizes))]
        return np.cumsum(np.array(shares, np.float64).reshape(-1, 2), axis=1)

    def draw_ids(self, first_sample: int, out: NDArray[Any]) -> None:
        """Fill out[sample, column] with local ids of the samples from `first_sample` on."""
        constants = zipf_constants(self.table_sizes, self.zipf)
        _draw_ids(
            out, first_sample, self.keys(), constants, self.tastes(), self.zipf, self.num_users, self.num_interests
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
    # The square makes some users busier, mildly: a heavy head would bend every column's marginal towards its habits.
    share = uniform(combine(sample_key, np.uint64(1 << 32)))
    return np.uint64(share * share * num_users)


@njit(nogil=True, cache=True)
def _draw_ids(
    out: Any,
    first_sample: int,
    keys: NDArray[np.uint64],
    constants: Float64,
    tastes: Float64,
    exponent: float,
    num_users: int,
    num_interests: int,
) -> None:
    for index in range(out.shape[0]):
        sample_key = combine(keys[0], np.uint64(first_sample + index))
        user_key = combine(keys[1], _user_of(sample_key, num_users))
        turn = combine(sample_key, np.uint64(1 << 33)) % np.uint64(INTERESTS_PER_USER)
        interest = combine(user_key, turn + np.uint64(1 << 32)) % np.uint64(num_interests)
        interest_key = combine(keys[2], interest)
        for column in range(out.shape[1]):
            bits = combine(sample_key, np.uint64(column))
            share = uniform(bits)
            if share < tastes[column, 0]:
                owner = combine(user_key, np.uint64(column * HABITS) + bits % np.uint64(HABITS))
            elif share < tastes[column, 1]:
                owner = combine(interest_key, np.uint64(column * INTEREST_IDS) + bits % np.uint64(INTEREST_IDS))
            else:
                owner = combine(bits, np.uint64(column))
            out[index, column] = zipf_id(owner, constants[column], exponent)


@njit(nogil=True, cache=True)
def _draw_dense(out: Float32, first_sample: int, keys: NDArray[np.uint64], num_users: int) -> None:
    for index in range(out.shape[0]):
        sample_key = combine(keys[0], np.uint64(first_sample + index))
        user_key = combine(keys[1], _user_of(sample_key, num_users))
        for column in range(out.shape[1]):
            part = np.uint64((1 << 34) + column)
            out[index, column] = 0.6 * normal(combine(user_key, part)) + 0.8 * normal(combine(sample_key, part))
