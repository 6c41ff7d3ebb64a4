"""Shockwave: plan the next rounds for the best Nash welfare over time, with makespan and fairness of what comes after.

In: live jobs round by round. Out: an order per round that carries out the plan of the current window.
A job's fair finish time is what an equal share of the cluster would give it, averaged over its life. Stage A asks that every
job keeps it; when that is impossible (nearly always) stage B instead weighs jobs by how late they are projected to be.
The plan is made anew when jobs arrive or finish and every eight rounds; GPUs it leaves idle go to the longest job that fits.
Never: know more of a job than its estimator; the published correction of profiles is off unless asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from foresee.cluster.job import Cluster
from foresee.cluster.simulation import Live
from foresee.cluster.window.greedy import solve_greedy
from foresee.cluster.window.program import Floats, Ints, Window

Solver = Callable[[Window], list[list[int]] | None]

WEIGHT_MAX = 1e6  # rho^100 reaches 1e15 and breaks solvers; beyond this a job is first anyway
LATE_POWER = 100.0  # for jobs that are late and need only one more round


@dataclass
class _FairFinish:
    """Finish times an equal share would have given, each with the rounds it was current."""

    weighted_sum: float = 0.0
    rounds: int = 0
    latest: float = 0.0
    since_round: int = 0

    def append(self, round_index: int, seconds: float) -> None:
        self._close(round_index)
        self.latest = seconds

    def target(self, round_index: int) -> float:
        self._close(round_index)
        mean = self.weighted_sum / self.rounds if self.rounds else self.latest
        return 0.9 * mean + 0.1 * self.latest

    def _close(self, round_index: int) -> None:
        self.weighted_sum += self.latest * (round_index - self.since_round)
        self.rounds += round_index - self.since_round
        self.since_round = round_index


@dataclass
class Shockwave:
    """An order that follows a plan over rounds."""

    cluster: Cluster
    makespan_weight: float = 1e-3
    lateness_power: float = 12.0
    window_rounds: int = 20
    replan_rounds: int = 8
    solver: Solver = solve_greedy
    calibrate: bool = False
    """Rescale profiles that measured speeds contradict, as the published code does, waiting time included."""
    _round: int = -1
    _planned_round: int = 0
    _plan: list[list[str]] = field(default_factory=list)
    _known: frozenset[str] = frozenset()
    _fair: dict[str, _FairFinish] = field(default_factory=dict)
    _measured: dict[str, _Measured] = field(default_factory=dict)

    def __call__(self, now: float, live: Sequence[Live]) -> list[str]:
        self._round += 1
        scale = self._scales(live) if self.calibrate else np.ones(len(live))
        remaining = scale * np.array([entry.remaining_seconds for entry in live])
        ids = frozenset(entry.id for entry in live)
        if ids != self._known:
            self._restate_fair_finish(live, remaining, scale)
        if ids != self._known or self._round - self._planned_round >= self.replan_rounds:
            self._known, self._planned_round = ids, self._round
            plan = self._solve(now, live, remaining, scale)
            self._plan = [[live[index].id for index in round] for round in plan]
        planned = self._plan[self._round - self._planned_round]
        longest_first = sorted(zip(-remaining, range(len(live)), strict=True))
        chosen = set(planned)
        return planned + [live[index].id for _, index in longest_first if live[index].id not in chosen]

    def _share(self, num_jobs: int) -> float:
        return min(1.0, self.cluster.gpus / num_jobs)

    def _restate_fair_finish(self, live: Sequence[Live], remaining: Floats, scale: Floats) -> None:
        self._fair = {entry.id: self._fair.get(entry.id) or _FairFinish(since_round=self._round) for entry in live}
        for entry, left, factor in zip(live, remaining.tolist(), scale.tolist(), strict=True):
            job = entry.job
            done = job.exclusive_seconds - job.seconds_after(math.floor(entry.units_done))
            finish = job.arrival_seconds + (factor * done + left) / self._share(len(live))
            self._fair[entry.id].append(self._round, finish)

    def _solve(self, now: float, live: Sequence[Live], remaining: Floats, scale: Floats) -> list[list[int]]:
        share = self._share(len(live))
        fair = np.array([self._fair[entry.id].target(self._round) for entry in live])
        budget = np.array([entry.job.weight for entry in live])
        horizon = now + self.window_rounds * self.cluster.round_seconds
        allowed = share * (fair - horizon)
        relaxed = self._window(live, remaining, scale, budget * self._lateness(now, remaining, share, fair))
        if (allowed >= relaxed.left_after(relaxed.most_rounds)).all():
            rounds = np.ceil(np.maximum(0.0, remaining - allowed) / self.cluster.round_seconds).astype(np.int64)
            plan = self.solver(self._window(live, remaining, scale, budget, rounds))
            if plan is not None:
                return plan
        return self.solver(relaxed) or solve_greedy(relaxed) or []

    def _lateness(self, now: float, remaining: Floats, share: float, fair: Floats) -> Floats:
        rho = (now + remaining / share) / fair
        power = np.where(remaining < self.cluster.round_seconds, LATE_POWER, self.lateness_power)
        return np.where(rho > 1, np.minimum(rho, 1e3) ** power, 1.0).clip(max=WEIGHT_MAX)

    def _window(
        self, live: Sequence[Live], remaining: Floats, scale: Floats, weights: Floats, least_rounds: Ints | None = None
    ) -> Window:
        total = np.array([entry.job.num_units for entry in live])
        done = np.minimum(np.floor([entry.units_done for entry in live]), total)
        return Window(
            num_rounds=self.window_rounds,
            round_seconds=self.cluster.round_seconds,
            capacity_gpus=self.cluster.gpus,
            makespan_weight=self.makespan_weight,
            gpus=np.array([entry.gpus for entry in live]),
            units_total=total,
            units_done=done,
            seconds_per_unit=scale * np.array([_mean_pace(entry) for entry in live]),
            remaining_seconds=remaining,
            weights=weights,
            least_rounds=np.zeros(len(live), np.int64) if least_rounds is None else least_rounds,
        )

    def _scales(self, live: Sequence[Live]) -> Floats:
        self._measured = {entry.id: self._measured.get(entry.id) or _Measured() for entry in live}
        for entry in live:
            if entry.running:
                self._measured[entry.id].add(self._round, entry.seconds_per_unit, self.cluster.round_seconds)
        return np.array([self._measured[entry.id].scale(entry, self.cluster.round_seconds) for entry in live])


@dataclass
class _Measured:
    """Units a job would have done had it always run at its measured speeds: the published calibration."""

    units: float = 0.0
    round_index: int = 0
    factor: float = 1.0

    def add(self, round_index: int, seconds_per_unit: float, round_seconds: float) -> None:
        self.units += round_seconds * (round_index - self.round_index) / seconds_per_unit
        self.round_index = round_index

    def scale(self, entry: Live, round_seconds: float) -> float:
        """Factor on the profile's times; one while measurement and profile agree to 40 %."""
        seconds = round_seconds * self.round_index
        if not seconds:
            return 1.0
        profiled = _units_within(entry, seconds)
        if abs(self.units - profiled) > 0.4 * profiled:
            self.factor = profiled / self.units
        return self.factor


def _units_within(entry: Live, seconds: float) -> float:
    """Units the profile says are done after so many seconds alone, the last regime going on for ever."""
    units = 0.0
    for regime in entry.job.regimes:
        used = min(seconds, regime.seconds)
        units += used / regime.seconds_per_unit
        seconds -= used
    return units + seconds / entry.job.regimes[-1].seconds_per_unit


def _mean_pace(entry: Live) -> float:
    """Mean seconds per unit over the units done and the one in progress, by the job's profile."""
    job = entry.job
    units = min(math.floor(entry.units_done) + 1.0, job.num_units)
    return (job.exclusive_seconds - job.seconds_after(units)) / units
