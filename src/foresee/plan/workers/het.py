"""HET: replicas may be stale, by at most `staleness` updates each way.

A row at the store counts the updates it got, one for each lookup. A worker remembers the count it knows, and its own
updates since its last push. Before a step it pulls a row it does not hold, or whose count at the store is more than
`staleness` ahead of what it knows; after a step it pushes what it trained and has more than `staleness` own updates of.
So a read misses at most staleness updates at the store and staleness at each other worker: workers x staleness. With
staleness 0 it is exact. Workers wait for each other after every step (BSP); sample i goes to worker i mod workers.

A dirty victim is pushed before its slot is used again, which is one step earlier than in the published code.
"""

from __future__ import annotations

import numpy as np

from foresee.base.arrays import Int32, Int64
from foresee.plan.record import Accesses, Header
from foresee.plan.workers.additive import Additive, Replicas
from foresee.plan.workers.recency import widened


class BoundedStaleness:
    """HET's rules."""

    def __init__(self, num_workers: int, staleness: int) -> None:
        self._num_workers = num_workers
        self._staleness = staleness
        self._known = np.empty((num_workers, 0), np.int64)
        self._stored = np.empty(0, np.int64)

    def grow(self, num_rows: int) -> None:
        self._known = widened(self._known, num_rows, 0)
        self._stored = widened(self._stored, num_rows, 0)

    def place(self, step: int, accesses: Accesses, numbers: Int64, replicas: Replicas) -> Int32:
        return (np.arange(accesses.num_samples) % self._num_workers).astype(np.int32)

    def to_push(self, worker: int, trained: Int64, distinct: Int64, users: Int64, replicas: Replicas) -> Int64:
        chosen: Int64 = trained[replicas.pending[worker, trained] > self._staleness]
        return chosen

    def pushed(self, worker: int, rows: Int64, updates: Int64) -> None:
        self._stored[rows] += updates
        self._known[worker, rows] += updates

    def outdated(self, worker: int, rows: Int64) -> Int64:
        chosen: Int64 = rows[self._stored[rows] - self._known[worker, rows] > self._staleness]
        return chosen

    def pulled(self, worker: int, rows: Int64) -> None:
        self._known[worker, rows] = self._stored[rows]

    def trained(self, distinct: Int64, users: Int64) -> None:
        pass


def het(header: Header, staleness: int) -> Additive:
    """HET's planner. Only with staleness 0 is it exact."""
    return Additive(header, BoundedStaleness(header.num_workers, staleness))
