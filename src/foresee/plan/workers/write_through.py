"""Ordinary caches for several workers: each has its own, pushes what it trained after every step, and pulls what others
changed.

In: the touches of each step. Out: one record for each worker and step. Samples go in equal slices. A replica is used
only if it contains every update, so reads are exact (for plain SGD, as for all that add at the store). What differs is
which row leaves a full cache: the one touched longest ago (LRU), the one touched in the fewest steps since it came
(LFU), or the one that was rarest in a profile (a static hot set).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from foresee.base.arrays import Int32, Int64
from foresee.plan.ranked_eviction import row_frequencies
from foresee.plan.record import Accesses, Header
from foresee.plan.workers.additive import Additive, Replicas
from foresee.plan.workers.het import BoundedStaleness
from foresee.plan.workers.recency import Rank, widened


class WriteThrough:
    """Push everything at once, pull whatever changed: bounded staleness with a bound of 0, samples in equal slices."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        bounded = BoundedStaleness(num_workers, 0)
        self.grow, self.to_push, self.pushed = bounded.grow, bounded.to_push, bounded.pushed
        self.outdated, self.pulled, self.trained = bounded.outdated, bounded.pulled, bounded.trained

    def place(self, step: int, accesses: Accesses, numbers: Int64, replicas: Replicas) -> Int32:
        return (np.arange(accesses.num_samples) * self._num_workers // max(1, accesses.num_samples)).astype(np.int32)


def lru_each(header: Header) -> Additive:
    """Every worker its own LRU cache."""
    return Additive(header, WriteThrough(header.num_workers))


def lfu_each(header: Header) -> Additive:
    """Every worker its own LFU cache; among equals the row touched longest ago leaves."""
    return Additive(header, WriteThrough(header.num_workers), rank=_by_uses(header.num_workers))


def static_each(header: Header, profile: Iterable[Accesses]) -> Additive:
    """Every worker keeps the rows that are most frequent in a profile; all others come and go."""
    rows, counts = row_frequencies(profile)
    known = counts[1:]

    def rank(step: int, worker: int, touched: Int64, missing: Int64) -> Int64:
        if not len(known):
            return np.zeros(len(touched), np.int64)
        return np.where(touched < len(known), known[np.minimum(touched, len(known) - 1)], 0)

    return Additive(header, WriteThrough(header.num_workers), rank=rank, first_rows=rows[1:])


def _by_uses(num_workers: int) -> Rank:
    uses = np.zeros((num_workers, 0), np.int64)

    def rank(step: int, worker: int, touched: Int64, missing: Int64) -> Int64:
        nonlocal uses
        uses = widened(uses, int(touched.max(initial=0)) + 1, 0)
        uses[worker, missing] = 0
        uses[worker, touched] += 1
        ranks: Int64 = (uses[worker, touched] << 32) + step
        return ranks

    return rank
