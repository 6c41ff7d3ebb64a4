"""Themis: an auction among the jobs that are treated worst, by partial allocation.

In: live jobs. Out: an order: winners that keep what they won, then everybody else, worst ρ first.
ρ is shared finish time over isolated finish time under the contention met so far. The worst fifth of the jobs bids
1/ρ with and without its gang; the winners maximise the product of valuations. Each winner pays by what the others
lose through it and keeps the fraction c of its prize. A gang cannot be cut, so it keeps its GPUs in a fraction c of
the rounds it wins.
Never: random leftovers; they go to the worst-treated job that fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foresee.cluster.job import Cluster
from foresee.cluster.simulation import Live

FAIRNESS_KNOB = 0.8
"""Share of the jobs, the best-treated ones, that must sit an auction out."""


@dataclass
class Themis:
    cluster: Cluster
    _credit: dict[str, float] = field(default_factory=dict)
    _life: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rounds lived and live jobs met in them, summed: the contention of a job's life."""

    def __call__(self, now: float, live: Sequence[Live]) -> list[str]:
        self._life = {entry.id: self._meet(entry.id, len(live)) for entry in live}
        self._credit = {entry.id: self._credit.get(entry.id, 0.0) for entry in live}
        worst_first = sorted(live, key=lambda entry: -self._rho(now, entry))
        bidders = worst_first[: max(1, round((1 - FAIRNESS_KNOB) * len(live)))]
        gains = [self._gain(now, entry) for entry in bidders]
        won = [bidders[index].id for index in self._kept(bidders, gains)]
        kept = set(won)
        return won + [entry.id for entry in worst_first if entry.id not in kept]

    def _meet(self, id: str, num_live: int) -> tuple[int, int]:
        rounds, met = self._life.get(id, (0, 0))
        return rounds + 1, met + num_live

    def _rho(self, now: float, entry: Live, delay_seconds: float = 0.0) -> float:
        rounds, met = self._life[entry.id]
        contention = max(1.0, met / rounds / self.cluster.gpus)
        shared = now - entry.job.arrival_seconds + delay_seconds + entry.remaining_seconds
        return shared / ((entry.served_seconds + entry.remaining_seconds) * contention)

    def _gain(self, now: float, entry: Live) -> float:
        """log of valuation with the gang over valuation without it, for one round."""
        return math.log(self._rho(now, entry, self.cluster.round_seconds) / self._rho(now, entry))

    def _kept(self, bidders: Sequence[Live], gains: Sequence[float]) -> list[int]:
        """Winners whose kept fraction adds up to a round in which they run."""
        gangs = [entry.gpus for entry in bidders]
        winners = best_subset(gains, gangs, self.cluster.gpus)
        keeps = []
        for index, kept in zip(winners, kept_fractions(gains, gangs, self.cluster.gpus, winners), strict=True):
            id = bidders[index].id
            self._credit[id] += kept
            if self._credit[id] >= 1.0 - 1e-9:
                self._credit[id] -= 1.0
                keeps.append(index)
        return keeps


def kept_fractions(gains: Sequence[float], gangs: Sequence[int], gpus: int, winners: Sequence[int]) -> list[float]:
    """c of each winner: product of the others' valuations with it over the product had it stayed away."""
    total = sum(gains[index] for index in winners)
    kept = []
    for index in winners:
        others = [j for j in range(len(gains)) if j != index]
        without = best_subset([gains[j] for j in others], [gangs[j] for j in others], gpus)
        alone = sum(gains[others[j]] for j in without)
        kept.append(math.exp(min(0.0, (total - gains[index]) - alone)))
    return kept


def best_subset(gains: Sequence[float], gangs: Sequence[int], gpus: int) -> list[int]:
    """Indices of the gangs that fit and have the largest sum of gains: a knapsack over GPUs."""
    best: NDArray[np.float64] = np.zeros(gpus + 1)
    taken = np.zeros((len(gains), gpus + 1), bool)
    for index, (gain, gang) in enumerate(zip(gains, gangs, strict=True)):
        with_it = np.full(gpus + 1, -np.inf)
        with_it[gang:] = best[: gpus + 1 - gang] + gain
        taken[index] = with_it > best
        best = np.maximum(best, with_it)
    chosen, free = [], gpus
    for index in range(len(gains) - 1, -1, -1):
        if taken[index, free]:
            chosen.append(index)
            free -= gangs[index]
    return chosen[::-1]
