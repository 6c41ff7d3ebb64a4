"""Shortest first, by what is believed and by how late a job is; two guards for those whom that would wrong.

In: live jobs. Out: an order, and for each job the reason of its place. What is believed of a run time is a median and a
spread (`Belief`): a job that has not run is as uncertain as finished jobs were; one that runs is watched, and the error
of its own pace taken out; one that outruns its estimate will go on for a part of the time it has had.

A job's rank is the least run time it likely has left, divided by its lateness (completion time if it ran from now on,
over its run time) to the power `fairness`: at 0 only length counts, the larger the more being late does. Before that
order go, first, jobs that are ten times late, the latest first, so nobody waits for ever; then those whose rank is
below two rounds, because waiting costs them most and serving them little; then jobs without laxity: those that,
by the most they likely have left, can only just still end by the attainable makespan. A running job keeps its place
unless others are clearly ahead of it, so restarts are bounded by what they win.
Never: hold back a job that fits, or look at a job's description.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from foresee.cluster.estimators import ASSUMED_ERROR, LEAST_SECONDS
from foresee.cluster.job import Cluster
from foresee.cluster.metrics import Work, clique_bound
from foresee.cluster.placement import speed_of
from foresee.cluster.simulation import Live

PACE_NOISE = 0.1
"""Spread of log(pace) of a job whose estimate is right: epochs are counted whole, speeds change."""
QUARTILE = 0.674


class Belief(NamedTuple):
    seconds: float
    """Median run time left."""
    spread: float
    """Standard deviation of its logarithm."""

    @property
    def likely_least(self) -> float:
        """One job in six has less."""
        return self.seconds * math.exp(-self.spread)

    @property
    def likely_most(self) -> float:
        """One job in six has more."""
        return self.seconds * math.exp(self.spread)


def believe(entry: Live) -> Belief:
    spread = entry.estimate_error
    seconds = entry.remaining_seconds
    run = entry.served_seconds - entry.job.done_seconds
    if run > 0 and seconds <= LEAST_SECONDS:
        # Of the jobs that last longer than their median, half last QUARTILE spreads longer.
        seconds = max(seconds, run * (math.exp(QUARTILE * spread) - 1.0))
    elif run > 0 and spread > 0 and seconds < entry.first_estimate_seconds:
        pace = (entry.first_estimate_seconds - seconds) / run
        trust = spread**2 / (spread**2 + PACE_NOISE**2)
        seconds = max(LEAST_SECONDS, seconds * pace**-trust)
        spread *= math.sqrt(1.0 - trust)
    return Belief(seconds, spread)


def never_certain(belief: Belief) -> Belief:
    """The belief with the spread that is taken for granted before any job has shown its own."""
    return belief if belief.spread >= ASSUMED_ERROR else Belief(belief.seconds, ASSUMED_ERROR)


DEFAULT_FAIRNESS = 1.0
HELD_BACK = 0.03
"""Part of the attainable makespan kept for restarts and for gangs that do not fit side by side."""
SHORT_ROUNDS = 2.0
STARVED_LATENESS = 10.0
"""From here on the latest goes first, whatever its length: gangs would else wait for a gap that never opens."""
RANK_TO_YIELD = 0.8
"""A running job gives way to one whose rank is less than this part of its own."""
RESTARTS_TO_YIELD = 10.0
"""... and, without laxity, to one that is this many restarts more urgent: two jobs that both cannot wait would
otherwise take turns every round, and a restart should cost a tenth of what it buys."""

ENDING = "it ends within the round"
STARVED = "it has waited ten times its run time"
SHORT = "it likely ends within two rounds, or is so late that it counts as one that does"
NO_LAXITY = "it could not wait and still end by the attainable makespan"
RANKED = "it is the shortest for how late it is"


@dataclass
class Guarded:
    cluster: Cluster
    fairness: float = DEFAULT_FAIRNESS
    """Between completion time (0) and fairness (the larger)."""
    guard_makespan: bool = True
    _reasons: dict[str, str] = field(default_factory=dict)

    def __call__(self, now: float, live: Sequence[Live]) -> list[str]:
        beliefs = [self._belief(entry) for entry in live]
        attainable = attainable_seconds(live, beliefs, self.cluster.gpus)
        goal = (1.0 - HELD_BACK) * attainable if self.guard_makespan else math.inf
        placed = [
            (*self._place(now, entry, belief, goal), entry.job.id) for entry, belief in zip(live, beliefs, strict=True)
        ]
        self._reasons = {id: reason for _, _, reason, id in placed}
        return [id for _, _, _, id in sorted(placed, key=lambda place: place[:2])]

    def reason(self, id: str) -> str:
        """Why the job had the place it had in the last order."""
        return self._reasons[id]

    def _belief(self, entry: Live) -> Belief:
        belief = never_certain(believe(entry))
        if not entry.seats:
            return belief
        return Belief(belief.seconds / speed_of(entry.seats, self.cluster), belief.spread)

    def _place(self, now: float, entry: Live, belief: Belief, goal: float) -> tuple[int, float, str]:
        """(class, rank within it, reason), the smallest first."""
        cluster = self.cluster
        if entry.running and cluster.restart_seconds and belief.seconds <= cluster.round_seconds:
            return 0, -math.inf, ENDING  # stopping it would win less than a round and cost a restart
        left = belief.likely_least
        lateness = entry.job.weight * (now - entry.job.arrival_seconds + left) / (entry.served_seconds + left)
        if lateness > STARVED_LATENESS:
            return 0, -lateness, STARVED
        keeps = RANK_TO_YIELD if entry.running and cluster.restart_seconds else 1.0
        rank: float = keeps * left / lateness**self.fairness
        if rank <= SHORT_ROUNDS * cluster.round_seconds:
            return 0, rank, SHORT
        laxity = goal - belief.likely_most - RESTARTS_TO_YIELD * cluster.restart_seconds * entry.running
        if laxity <= cluster.round_seconds:
            return 1, laxity, NO_LAXITY
        return 2, rank, RANKED


def attainable_seconds(live: Sequence[Live], beliefs: Sequence[Belief], gpus: int) -> float:
    """From now: no plan for these jobs ends sooner, by what is believed.

    The longest of many uncertain run times is most likely one that is believed too long, so a single job counts with
    the least it likely has; over all the work together such errors even out.
    """
    gangs = [entry.job.gpus for entry in live]
    least = [belief.likely_least for belief in beliefs]
    area = sum([gang * belief.seconds for gang, belief in zip(gangs, beliefs, strict=True)]) / gpus
    longest = max(least, default=0.0)
    if 2 * max(gangs, default=0) <= gpus:
        return max(longest, area)  # any two gangs fit side by side
    alone = [Work(0.0, gang, seconds) for gang, seconds in zip(gangs, least, strict=True)]
    return max(longest, area, clique_bound(alone, gpus))
