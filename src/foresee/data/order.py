"""The order in which an epoch visits samples, and which split each belongs to: pure functions of (sizes, seed, epoch).

The row groups are permuted, neighbours in that permutation form shuffle groups of a bounded number of samples, and
the samples of each shuffle group are permuted again. So a batch lies in one or two shuffle groups, and finding them
needs no replay. Permutations sort keys of a counter-based hash instead of calling a library's shuffle: the order may
not change when numpy does, because plans and resumed runs depend on it.

A split code (0 train, 1 valid, 2 test) follows from a sample's number, its place in the log, or its time. Equal times
stay together; `TimeHistogram` finds the boundaries in bounded memory, whatever the length of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int64
from foresee.io.hashing import hash_counters, key_of


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


SPLIT_NAMES = ("train", "valid", "test")

Codes = NDArray[np.int8]
Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """How much of the log is held out."""

    valid: float
    test: float

    @property
    def train_end(self) -> float:
        return 1.0 - self.valid - self.test

    @property
    def valid_end(self) -> float:
        return 1.0 - self.test


def split_at_random(first_sample: int, num_samples: int, shares: Shares, seed: int) -> Codes:
    """Each sample on its own: the code of sample i follows from (seed, i)."""
    draws = hash_counters(key_of(seed, 5), first_sample, first_sample + num_samples) >> np.uint64(11)
    return _codes(draws.astype(np.float64) / (1 << 53), shares.train_end, shares.valid_end)


def split_by_order(first_sample: int, num_samples: int, total: int, shares: Shares) -> Codes:
    """The last samples of the log are held out, test after valid."""
    position = np.arange(first_sample, first_sample + num_samples, dtype=np.float64)
    valid_end = total - round(total * shares.test)
    return _codes(position, valid_end - round(total * shares.valid), valid_end)


def split_by_time(times: Times, bounds: tuple[float, float]) -> Codes:
    """Before the first bound: train. Before the second: valid. After it: test."""
    return _codes(times, *bounds)


def _codes(values: Times, train_end: float, valid_end: float) -> Codes:
    return (values >= train_end).astype(np.int8) + (values >= valid_end)


class TimeHistogram:
    """Counts of samples per time, in buckets that widen when there are too many of them."""

    def __init__(self, buckets_max: int = 1 << 20) -> None:
        self._buckets_max = buckets_max
        self._width = 0.0  # 0: every time is a bucket of its own
        self._starts: Times = np.empty(0)
        self._counts = np.empty(0, np.int64)

    def add(self, times: Times) -> None:
        self._merge(
            np.concatenate([self._starts, times]), np.concatenate([self._counts, np.ones(len(times), np.int64)])
        )
        while len(self._starts) > self._buckets_max:
            span = float(self._starts[-1] - self._starts[0])
            self._width = self._width * 2 if self._width else span / self._buckets_max
            self._merge(self._starts, self._counts)

    def _merge(self, times: Times, counts: NDArray[np.int64]) -> None:
        if self._width:
            times = np.floor(times / self._width) * self._width
        self._starts, inverse = np.unique(times, return_inverse=True)
        self._counts = np.bincount(inverse, counts, minlength=len(self._starts)).astype(np.int64)

    def bounds(self, shares: Shares) -> tuple[float, float]:
        """The times at which train ends and valid ends: the bucket edges that come closest to the shares."""
        before = np.concatenate([[0], np.cumsum(self._counts)])  # samples before each edge
        edges = np.append(self._starts, np.inf)
        total = before[-1]
        ends = [edges[int(np.argmin(np.abs(before - total * end)))] for end in (shares.train_end, shares.valid_end)]
        return float(ends[0]), float(ends[1])
