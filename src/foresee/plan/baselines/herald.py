"""Herald: samples go where their rows were trained last, and updates are pushed only when another worker needs them.

The published scheduler, list for list: every worker's cache is simulated as LRU, a row counts for a worker if its
replica there holds updates that were not pushed ("valid"), and each sample in file order goes to the worker with room
where most of its lookups count; ties go round with the step.

The protocol is the one the paper claims, in its exact form. After a step a worker pushes a row if it has updates of it
that were not pushed and another worker trains it next; so does every other such worker. Before a step a worker pulls a
row unless its replica contains every update: only the one who trained it last, alone, has that. The published run time
pushes only rows of the batch just trained and counts versions without a push, and so reads stale rows; tests bring both
into a plan, and the checker finds them.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.additive import Additive, Replicas
from foresee.plan.baselines.recency import widened
from foresee.plan.placement import greedy
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import Accesses, Header

NOBODY = -1


class OnDemand:
    """Herald's rules."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._complete_at = np.empty(0, np.int32)
        """The worker whose replica contains every update, or NOBODY."""

    def grow(self, num_rows: int) -> None:
        self._complete_at = widened(self._complete_at, num_rows, NOBODY)

    def place(self, step: int, accesses: Accesses, numbers: Int64, replicas: Replicas) -> Int32:
        distinct, inverse = np.unique(numbers, return_inverse=True)
        valid = replicas.pending[:, distinct] > 0  # [workers, distinct]
        holders = (valid << np.arange(self._num_workers)[:, None]).sum(axis=0)
        return greedy(accesses.sample_offsets, inverse.astype(np.int32), holders, self._num_workers, step)

    def to_push(self, worker: int, trained: Int64, distinct: Int64, users: Int64, replicas: Replicas) -> Int64:
        needed_elsewhere = (users & ~np.int64(1 << worker)) != 0
        chosen: Int64 = distinct[needed_elsewhere & (replicas.pending[worker, distinct] > 0)]
        return chosen

    def pushed(self, worker: int, rows: Int64, updates: Int64) -> None:
        pass

    def outdated(self, worker: int, rows: Int64) -> Int64:
        chosen: Int64 = rows[self._complete_at[rows] != worker]
        return chosen

    def pulled(self, worker: int, rows: Int64) -> None:
        pass

    def trained(self, distinct: Int64, users: Int64) -> None:
        alone = np.bitwise_count(users) == 1
        only_user = np.bitwise_count(np.maximum(users, 1) - 1)  # position of the only bit
        self._complete_at[distinct] = np.where(alone, only_user, NOBODY)


def herald(header: Header) -> Additive:
    """Herald's planner, exact."""
    return Additive(header, OnDemand(header.num_workers))


def compared(header: Header, profile: Profile) -> Additive:
    return herald(header)


POLICY = Policy(
    name="herald",
    meaning="samples go where their rows were trained last",
    colour="#6b6f78",
    compared=compared,
    additive=True,
    workers_min=2,
    workers_max=USERS_MAX,
)
