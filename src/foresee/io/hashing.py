"""Numbers that look random and follow from what they are for: splitmix64 and keys made with it.

In: a seed and whatever a draw belongs to (an epoch, a step, a row), as integers. Out: 64 bits that depend on all of
them, the same on every machine and in any order of asking. `mix` is for kernels, `mixed` the same for whole arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
_FOLD = 0xD1342543DE82EF95


def mixed(value: Any) -> Any:
    """splitmix64's finaliser of uint64, one or an array: every input bit reaches every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


mix = njit(nogil=True, cache=True, inline="always")(mixed)


@njit(nogil=True, cache=True, inline="always")
def combine(key: np.uint64, part: np.uint64) -> Any:
    """A key that depends on both, as `key_of` folds its parts."""
    return mix((key ^ part) * np.uint64(_FOLD) + np.uint64(GOLDEN))


@njit(nogil=True, cache=True, inline="always")
def uniform(bits: np.uint64) -> float:
    """[0, 1) with 53 bits."""
    return float(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0)


def key_of(*parts: int) -> int:
    """A 64-bit key that depends on every part and on their order."""
    key = GOLDEN
    for part in parts:
        key = int(key_and(key, part))
    return key


def key_and(key: int | np.uint64, part: int) -> np.uint64:
    """`combine` outside of kernels."""
    folded = ((int(key) ^ (part & MASK)) * _FOLD + GOLDEN) & MASK
    return np.uint64(mixed(np.array([folded], np.uint64))[0])


def hash_counters(key: int, start: int, stop: int) -> NDArray[np.uint64]:
    """splitmix64 of the counters start..stop-1 under `key`: independent uniform 64-bit numbers."""
    value = np.arange(start, stop, dtype=np.uint64)
    value *= np.uint64(GOLDEN)
    value += np.uint64(key)
    numbers: NDArray[np.uint64] = mixed(value)
    return numbers
