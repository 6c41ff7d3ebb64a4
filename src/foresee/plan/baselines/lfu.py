"""LFU: the row used in the fewest steps since it came leaves first; among equals, the one used longest ago.

Several workers have a cache each, and write through: `additive`.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.additive import Additive, WriteThrough
from foresee.plan.baselines.ranked_eviction import RankedEviction
from foresee.plan.baselines.recency import Rank, widened
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import Header


def alone(header: Header, profile: Profile) -> RankedEviction:
    uses = np.zeros(header.capacity_rows, np.int64)
    holds = np.full(header.capacity_rows, -1, np.int64)

    def rank(step: int, slots: Int32, rows: Int64) -> Int64:
        uses[slots] = np.where(holds[slots] == rows, uses[slots], 0) + 1
        holds[slots] = rows
        return (uses[slots] << 32) + step

    return RankedEviction(header, rank)


def compared(header: Header, profile: Profile) -> Additive:
    return Additive(header, WriteThrough(header.num_workers), rank=_by_uses(header.num_workers))


def _by_uses(num_workers: int) -> Rank:
    uses = np.zeros((num_workers, 0), np.int64)

    def rank(step: int, worker: int, accessed: Int64, missing: Int64) -> Int64:
        nonlocal uses
        uses = widened(uses, int(accessed.max(initial=0)) + 1, 0)
        uses[worker, missing] = 0
        uses[worker, accessed] += 1
        ranks: Int64 = (uses[worker, accessed] << 32) + step
        return ranks

    return rank


POLICY = Policy(
    name="lfu",
    meaning="the row used in the fewest steps leaves",
    colour="#3fa66b",
    alone=alone,
    compared=compared,
    additive=True,
    workers_max=USERS_MAX,
    leaves_first="the row used in the fewest steps since it came leaves first, whatever comes next",
)
