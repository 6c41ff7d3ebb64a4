"""Belady's rule at the granularity of steps: evict the rows whose next use is farthest away.

A yardstick, not a way to train: it holds the whole trace before it decides anything. No planner that obeys the same
capacity, and must have all rows of a step in slots at once, fetches fewer rows.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.ranked_eviction import RankedEviction
from foresee.plan.policy import Policy, Profile
from foresee.plan.record import Accesses, Header, Record

NEVER = np.iinfo(np.int64).max


class Belady:
    """Collects the trace, then finds next uses backwards and plans forwards."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self._trace: list[Accesses] = []

    def push(self, accesses: Accesses) -> list[Record]:
        self._trace.append(accesses)
        return []

    def finish(self) -> list[Record]:
        upcoming = iter(next_uses([in_order_of_first_access(accesses.rows) for accesses in self._trace]))

        def rank(step: int, slots: Int32, rows: Int64) -> Int64:
            return -next(upcoming)

        frame = RankedEviction(self.header, rank)
        records: list[Record] = []
        for accesses in self._trace:
            records += frame.push(accesses)
        return records + frame.finish()


def in_order_of_first_access(rows: Int64) -> Int64:
    """The distinct rows of a batch."""
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]


def next_uses(distinct: list[Int64]) -> list[Int64]:
    """For each step and each of its distinct rows, the next step that uses the row, or NEVER."""
    if not distinct:
        return []
    _, numbers = np.unique(np.concatenate(distinct), return_inverse=True)
    per_step = np.split(numbers, np.cumsum([len(rows) for rows in distinct])[:-1])
    upcoming = np.full(int(numbers.max(initial=-1)) + 1, NEVER, np.int64)
    result: list[Int64] = []
    for step in range(len(distinct) - 1, -1, -1):
        result.append(upcoming[per_step[step]])
        upcoming[per_step[step]] = step
    return result[::-1]


def alone(header: Header, profile: Profile) -> Belady:
    return Belady(header)


POLICY = Policy(
    name="belady",
    meaning="the bound, all future known: no policy fetches less",
    colour="#8a8f98",
    alone=alone,
    is_bound=True,
    foresight_steps=None,
)
