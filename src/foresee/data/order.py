"""The order in which an epoch visits the samples of a split: pure functions of (sizes, seed, epoch).

The row groups are permuted, neighbours in that permutation form shuffle groups of a bounded number of samples, and
the samples of each shuffle group are permuted again. So a batch lies in one or two shuffle groups, and finding them
needs no replay. Permutations sort keys of a counter-based hash instead of calling a library's shuffle: the order may
not change when numpy does, because plans and resumed runs depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.data.batch import Int64

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def key_of(*parts: int) -> int:
    """A 64-bit key that depends on every part and on their order."""
    key = _GOLDEN
    for part in parts:
        key = _mix((key ^ (part & _MASK)) * 0xD1342543DE82EF95 + _GOLDEN & _MASK)
    return key


def _mix(value: int) -> int:  # splitmix64's finaliser
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def hash_counters(key: int, start: int, stop: int) -> NDArray[np.uint64]:
    """splitmix64 of the counters start..stop-1 under `key`: independent uniform 64-bit numbers."""
    value = np.arange(start, stop, dtype=np.uint64)
    value *= np.uint64(_GOLDEN)
    value += np.uint64(key)
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


def permutation(num: int, key: int) -> Int64:
    """A permutation of 0..num-1 that depends on `num` and `key` only."""
    return np.argsort(hash_counters(key, 0, num), kind="stable")


@dataclass(frozen=True, slots=True)
class Piece:
    """Samples start..stop-1 of one shuffle group."""

    group: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """One epoch: which row groups form which shuffle group, and where each shuffle group starts."""

    epoch: int
    seed: int
    shuffle: bool
    row_groups: tuple[Int64, ...]  # per shuffle group: its row groups, ascending
    starts: Int64  # [shuffle groups + 1]: position of the first sample in the epoch

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """Where the samples at positions start..stop-1 of the epoch lie."""
        first = int(np.searchsorted(self.starts, start, side="right")) - 1
        found = []
        for group in range(first, len(self.row_groups)):
            low, high = int(self.starts[group]), int(self.starts[group + 1])
            if low >= stop:
                break
            found.append(Piece(group, max(start, low) - low, min(stop, high) - low))
        return found

    def within(self, group: int) -> Int64 | None:
        """The order of a shuffle group's samples; None: as they are stored."""
        if not self.shuffle:
            return None
        num = int(self.starts[group + 1] - self.starts[group])
        return permutation(num, key_of(self.seed, self.epoch, 1, group))


def epoch_order(sizes: Int64, *, shuffle_samples: int, seed: int, epoch: int, shuffle: bool) -> EpochOrder:
    """The order of one epoch over row groups of the given sizes.

    A shuffle group takes row groups until it holds `shuffle_samples`, so it exceeds that by less than one row group.
    """
    order = permutation(len(sizes), key_of(seed, epoch, 0)) if shuffle else np.arange(len(sizes))
    ends = np.cumsum(sizes[order])
    groups, starts, first = [], [0], 0
    while first < len(order):
        reached = int(np.searchsorted(ends, starts[-1] + shuffle_samples, side="left"))
        last = min(reached, len(order) - 1)
        groups.append(np.sort(order[first : last + 1]))
        starts.append(int(ends[last]))
        first = last + 1
    return EpochOrder(epoch, seed, shuffle, tuple(groups), np.array(starts, np.int64))
