"""Policies that decide what share of the time each job should run, and the mechanism that turns shares into rounds.

In: live jobs. Out: shares between 0 and 1 (the functions), and an order per round (`Shares`).
The mechanism is Gavel's: a job's priority is the share it should have over the share it has had since shares were
last computed; what it missed earlier breaks ties. Shares are computed anew whenever jobs arrive or leave. The
published baselines waited up to 1,000 s for that, and a job without a share did not run at all: `hold_seconds=1000`
does the same.
Never: placement or gangs; the simulator fills rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foresee.cluster.job import Cluster
from foresee.cluster.simulation import Live

Floats = NDArray[np.float64]
ShareRule = Callable[[float, Sequence[Live], int], Floats]
"""`rule(now, live, gpus)`: the share of time each live job should run."""


def max_min(now: float, live: Sequence[Live], gpus: int) -> Floats:
    """Equal GPU time for all by weight, what some cannot use going to the others (Gavel's max-min fairness)."""
    gangs, weights = _gangs(live), np.array([entry.job.weight for entry in live])
    full = float((gangs / weights).max())
    level = _bisect(lambda level: float(np.minimum(gangs, level * weights).sum()) <= gpus, high=full)
    return np.asarray(np.minimum(1.0, level * weights / gangs))


def gandiva_fair(now: float, live: Sequence[Live], gpus: int) -> Floats:
    """Equal time for all by weight, whatever the size of the gang (stride scheduling with equal tickets)."""
    weights = np.array([entry.job.weight for entry in live])
    return np.asarray(np.minimum(1.0, gpus * weights / weights.sum()))


def ossp(now: float, live: Sequence[Live], gpus: int) -> Floats:
    """Everybody finishes together at the earliest moment possible: least makespan."""
    remaining = np.array([entry.remaining_seconds for entry in live])
    return np.asarray(remaining / max(remaining.max(), (_gangs(live) @ remaining) / gpus))


def ossp_as_published(now: float, live: Sequence[Live], gpus: int) -> Floats:
    """The same by bisection from 100 s to 1,000,000 s that stops at 5 %, and with what is then to spare shared out."""
    remaining = np.array([entry.remaining_seconds for entry in live])
    least = max(remaining.max(), (_gangs(live) @ remaining) / gpus)
    low, high = 100.0, 1_000_000.0
    while 1.05 * low < high:
        middle = (low + high) / 2
        low, high = (low, middle) if least <= middle else (middle, high)
    return _centre(remaining / high, _gangs(live), gpus)


def _centre(least: Floats, gangs: Floats, gpus: int) -> Floats:
    """Shares of at least `least` in the middle of all that fit: what an interior-point solver gives where it is free.

    The analytic centre: the product of all that is to spare (above the least, above zero, below one, GPUs left idle)
    is largest. Both the shares for a price of GPU time and the price itself are found by bisection.
    """

    def shares(price: float) -> Floats:
        low, high = least, np.ones_like(least)
        for _ in range(40):
            x = (low + high) / 2
            grows = (2 * x - least) * (1 - x) > x * (x - least) * (1 + price * gangs * (1 - x))
            low, high = np.where(grows, x, low), np.where(grows, high, x)
        return np.asarray((low + high) / 2)

    def cheap(price: float) -> bool:
        idle = gpus - gangs @ shares(price)
        return bool(idle <= 0 or price * idle < 1)

    return shares(_bisect(cheap, high=1e9))


def finish_time_fairness(now: float, live: Sequence[Live], gpus: int) -> Floats:
    """The least worst ρ: finish with this share against finish with an isolated equal share (Themis's objective)."""
    gangs = _gangs(live)
    remaining = np.array([entry.remaining_seconds for entry in live])
    age = np.array([now - entry.job.arrival_seconds for entry in live])
    isolated = np.minimum(1.0, gpus / len(live) / gangs)
    fair = (np.array([entry.served_seconds for entry in live]) + remaining) / isolated
    return _least_rho(remaining, age, fair, gangs, gpus)


def _least_rho(remaining: Floats, age: Floats, fair: Floats, gangs: Floats, gpus: int) -> Floats:
    """The shares everybody needs for the least worst (age + time left) / fair time."""

    def shares(rho: float) -> Floats:
        budget = rho * fair - age
        return np.where(budget > 0, remaining / np.maximum(budget, 1e-9), np.inf)

    def too_strict(rho: float) -> bool:
        wanted = shares(rho)
        return bool((wanted > 1).any() or gangs @ wanted > gpus)

    loosest = float(((age + remaining * max(1.0, gangs.sum() / gpus)) / fair).max())
    return np.minimum(1.0, shares(_bisect(too_strict, high=loosest) * (1 + 1e-9) + 1e-12))


class FinishTimeFairnessAsPublished:
    """The same, where an isolated share is the one the job would have had at each time shares were computed."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float, float]] = {}
        """Steps left, steps per second alone, and the time alone that steps so far took, at the last computation."""

    def __call__(self, now: float, live: Sequence[Live], gpus: int) -> Floats:
        gangs = _gangs(live)
        isolated = np.minimum(1.0, gpus / len(live) / gangs)
        spent = np.array([self._spent(entry) for entry in live])
        self._before = {
            entry.id: (_steps_left(entry), entry.steps_per_second * share, seconds)
            for entry, share, seconds in zip(live, isolated.tolist(), spent.tolist(), strict=True)
        }
        remaining = np.array([entry.remaining_seconds for entry in live])
        age = np.array([now - entry.job.arrival_seconds for entry in live])
        return _centre(_least_rho(remaining, age, spent + remaining / isolated, gangs, gpus), gangs, gpus)

    def _spent(self, entry: Live) -> float:
        if entry.id not in self._before:
            return 0.0
        steps, per_second, seconds = self._before[entry.id]
        return seconds + (steps - _steps_left(entry)) / per_second


def _steps_left(entry: Live) -> float:
    """By the present batch size; when it changes the published count jumps, and so does this one."""
    return entry.remaining_seconds * entry.steps_per_second


def mst(now: float, live: Sequence[Live], gpus: int) -> Floats:
    """The most steps per second in all: fastest per GPU first."""
    shares, free = np.zeros(len(live)), float(gpus)
    for index in sorted(range(len(live)), key=lambda index: -live[index].steps_per_second / live[index].gpus):
        shares[index] = min(1.0, free / live[index].gpus)
        free -= shares[index] * live[index].gpus
    return shares


def _gangs(live: Sequence[Live]) -> Floats:
    return np.array([float(entry.gpus) for entry in live])


def _bisect(below: Callable[[float], bool], *, high: float) -> float:
    """The largest value, up to `high`, for which `below` still holds (it holds from zero up to some value)."""
    low = 0.0
    if below(high):
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


@dataclass
class Shares:
    """Gavel's round mechanism around a rule for shares."""

    cluster: Cluster
    rule: ShareRule
    hold_seconds: float = 0.0
    _reset_at: float = float("-inf")
    _share: dict[str, float] = field(default_factory=dict)
    _since_reset: dict[str, float] = field(default_factory=dict)
    """Run time of each job since shares were computed, plus half a round."""
    _missed: dict[str, float] = field(default_factory=dict)
    """Run time a job should have had before that and did not get."""
    _served: dict[str, float] = field(default_factory=dict)

    def __call__(self, now: float, live: Sequence[Live]) -> list[str]:
        head_start = self.cluster.round_seconds / 2
        for entry in live:
            run = entry.served_seconds - self._served.get(entry.id, 0.0)
            self._since_reset[entry.id] = self._since_reset.get(entry.id, head_start) + run
        self._served = {entry.id: entry.served_seconds for entry in live}
        changed = self._served.keys() != self._share.keys()
        if changed and now - self._reset_at >= self.hold_seconds:
            self._reset(now, live, head_start)
        shared = [entry.id for entry in live if entry.id in self._share]
        total = sum(self._since_reset[id] for id in shared)
        return sorted(shared, key=lambda id: self._priority(id, total), reverse=True)

    def _priority(self, id: str, total: float) -> tuple[float, float, float]:
        share = self._share[id]
        return share / (self._since_reset[id] / total), self._missed.get(id, 0.0), share

    def _reset(self, now: float, live: Sequence[Live], head_start: float) -> None:
        elapsed = now - self._reset_at
        self._missed = {
            entry.id: self._missed.get(entry.id, 0.0)
            + self._share.get(entry.id, 0.0) * (elapsed if entry.id in self._share else 0.0)
            - (self._since_reset[entry.id] - head_start)
            for entry in live
        }
        self._reset_at = now
        self._share = dict(zip(self._served, self.rule(now, live, self.cluster.gpus).tolist(), strict=True))
        self._since_reset = dict.fromkeys(self._served, head_start)
