"""A static hot set: the rows most frequent in a profile stay, all others come and go. Frequencies never change.

Several workers have a cache each, and write through: `additive`.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.additive import Additive, WriteThrough
from foresee.plan.baselines.ranked_eviction import RankedEviction, row_frequencies
from foresee.plan.policy import PROFILE_STEPS, USERS_MAX, Policy, Profile
from foresee.plan.record import Header


def alone(header: Header, profile: Profile) -> RankedEviction:
    rows, counts = row_frequencies(profile(PROFILE_STEPS))

    def rank(step: int, slots: Int32, accessed: Int64) -> Int64:
        place = np.minimum(np.searchsorted(rows, accessed), len(rows) - 1)
        return np.where(rows[place] == accessed, counts[place], 0)

    return RankedEviction(header, rank)


def compared(header: Header, profile: Profile) -> Additive:
    """Rows of the profile get the first numbers, so that a row's number says whether, and where, its count is known."""
    rows, counts = row_frequencies(profile(PROFILE_STEPS))
    known = counts[1:]

    def rank(step: int, worker: int, accessed: Int64, missing: Int64) -> Int64:
        if not len(known):
            return np.zeros(len(accessed), np.int64)
        return np.where(accessed < len(known), known[np.minimum(accessed, len(known) - 1)], 0)

    return Additive(header, WriteThrough(header.num_workers), rank=rank, first_rows=rows[1:])


POLICY = Policy(
    name="static",
    meaning="the hottest rows of a profile stay",
    colour="#a45fb8",
    alone=alone,
    compared=compared,
    additive=True,
    workers_max=USERS_MAX,
    leaves_first="rows that are rare in the profile leave first, whatever comes next",
)
