"""LRU: the row used longest ago leaves first; inside a batch, the one that stands first.

Several workers have a cache each, and write through: `additive`.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.additive import Additive, WriteThrough
from foresee.plan.baselines.ranked_eviction import RankedEviction
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import Header


def alone(header: Header, profile: Profile) -> RankedEviction:
    def rank(step: int, slots: Int32, rows: Int64) -> Int64:
        return (np.int64(step) << 32) + np.arange(len(slots), dtype=np.int64)

    return RankedEviction(header, rank)


def compared(header: Header, profile: Profile) -> Additive:
    return Additive(header, WriteThrough(header.num_workers))


POLICY = Policy(
    name="lru",
    meaning="the row used longest ago leaves",
    colour="#e07b39",
    alone=alone,
    compared=compared,
    additive=True,
    workers_max=USERS_MAX,
    leaves_first="the row used longest ago leaves first, whatever comes next",
)
