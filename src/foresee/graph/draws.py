"""Random numbers by key: every draw is a hash of (seed, epoch, step, ..., position), so any can be made at any time.

In: whole numbers that name a draw. Out: a 64-bit key, numbers below a bound, and places of a shuffle: a permutation of
any size of which any part can be asked for without making the rest. There is no state, so a batch is the same whoever
draws it, in whichever order. Golden values pin it: a change here gives every seed other batches.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from foresee.arrays import Int64

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
ROUNDS = 6
"""Of the Feistel network; with four of them small shuffles favour some places."""
HALF_BITS_MIN = 4


@njit(nogil=True, cache=True, inline="always")
def mix(word: np.uint64) -> np.uint64:
    """splitmix64's finish: every bit of the result depends on every bit of the word."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def key_of(*numbers: int) -> np.uint64:
    """A key for these numbers, in this order."""
    key = 0
    for number in numbers:
        key = _mixed((key ^ _mixed(number + int(GOLDEN))) + int(GOLDEN))
    return np.uint64(key)


def _mixed(word: int) -> int:
    """`mix`, of Python's integers: keys are made once a batch, and need no kernel."""
    word %= 1 << 64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % (1 << 64)
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % (1 << 64)
    return word ^ (word >> 31)


def generator(*numbers: int) -> np.random.Generator:
    """numpy's generator for these numbers, where a whole state is made at once."""
    return np.random.Generator(np.random.PCG64(int(key_of(*numbers))))


@njit(nogil=True, cache=True)
def fill_below(key: np.uint64, bound: int, out: Int64) -> None:
    """Numbers from 0 to bound - 1, with replacement."""
    state = key
    for position in range(len(out)):
        state += GOLDEN
        out[position] = np.int64(mix(state) % np.uint64(bound))


def below(key: np.uint64, bound: int, num: int) -> Int64:
    """So many numbers from 0 to bound - 1, with replacement."""
    out = np.empty(num, np.int64)
    fill_below(key, bound, out)
    return out


@njit(nogil=True, cache=True)
def _fill_shuffled(key: np.uint64, size: int, begin: int, half_bits: int, out: Int64) -> None:
    half, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    for position in range(len(out)):
        word = np.uint64(begin + position)
        while True:  # a place outside is shuffled on until it is inside: still one place for each position
            left, right = word >> half, word & mask
            for turn in range(ROUNDS):
                left, right = right, left ^ (mix(right + key + np.uint64(turn) * GOLDEN) & mask)
            word = (left << half) | right
            if word < np.uint64(size):
                break
        out[position] = np.int64(word)


def shuffled(key: np.uint64, size: int, begin: int, end: int) -> Int64:
    """What a shuffle of 0 to size - 1 has at the positions from `begin` to `end`."""
    out = np.empty(end - begin, np.int64)
    _fill_shuffled(key, size, begin, max(HALF_BITS_MIN, (max(1, size - 1).bit_length() + 1) // 2), out)
    return out
