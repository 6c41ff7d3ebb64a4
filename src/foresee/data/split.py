"""Which split a sample belongs to: at random, by its place in the log, by its time. Pure functions.

In: sample numbers or times and shares. Out: one code per sample, 0 train, 1 valid, 2 test. Times that are equal stay
together. `TimeHistogram` finds the boundaries in bounded memory, whatever the length of the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.data.order import hash_counters, key_of

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
