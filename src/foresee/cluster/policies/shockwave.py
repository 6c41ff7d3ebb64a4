"""Shockwave: plan the next rounds for the best Nash welfare over time, with makespan and fairness of what comes
after.

In: live jobs round by round. Out: an order per round that carries out the plan of the current window.
A job's fair finish time is what an equal share of the cluster would give it, averaged over its life. Stage A asks
that every job keeps it; when that is impossible (nearly always) stage B instead weighs jobs by how late they are
projected to be. The plan is made anew when jobs arrive or finish and every eight rounds; GPUs it leaves idle go to
the longest job that fits.
Never: know more of a job than its estimator; the published correction of profiles is off unless asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from foresee.cluster.job import Cluster
from foresee.cluster.simulation import Live
from foresee.cluster.window.greedy import solve_greedy
from foresee.cluster.window.highs import Floats, Window

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
    restate: Callable[[Sequence[Live]], Sequence[Live]] = list
    """Another view of the live jobs to plan with, once a round; `PublishedProfiles` is the published one."""
    _round: int = -1
    _planned_round: int = 0
    _plan: list[list[str]] = field(default_factory=list)
    _known: frozenset[str] = frozenset()
    _fair: dict[str, _FairFinish] = field(default_factory=dict)

    def __call__(self, now: float, live: Sequence[Live]) -> list[str]:
        self._round += 1
        live = self.restate(live)
        ids = frozenset(entry.id for entry in live)
        if ids != self._known:
            self._restate_fair_finish(live)
        if ids != self._known or self._round - self._planned_round >= self.replan_rounds:
            self._known, self._planned_round = ids, self._round
            self._plan = [[live[index].id for index in jobs] for jobs in self._solve(now, live)]
        planned = self._plan[self._round - self._planned_round]
        chosen = set(planned)
        longest_first = sorted(live, key=lambda entry: -entry.remaining_seconds)
        return planned + [entry.id for entry in longest_first if entry.id not in chosen]

    def _share(self, num_jobs: int) -> float:
        return min(1.0, self.cluster.gpus / num_jobs)

    def _restate_fair_finish(self, live: Sequence[Live]) -> None:
        self._fair = {entry.id: self._fair.get(entry.id) or _FairFinish(since_round=self._round) for entry in live}
        for entry in live:
            job = entry.job
            done = job.exclusive_seconds - job.seconds_after(math.floor(entry.units_done))
            finish = job.arrival_seconds + (done + entry.remaining_seconds) / self._share(len(live))
            self._fair[entry.id].append(self._round, finish)

    def _solve(self, now: float, live: Sequence[Live]) -> list[list[int]]:
        fair = np.array([self._fair[entry.id].target(self._round) for entry in live])
        window = self._window(live)
        strict = self._keep_fair_finish(now, window, fair)
        plan = None if strict is None else self.solver(strict)
        if plan is None:
            relaxed = replace(window, weights=window.weights * self._lateness(now, window.remaining_seconds, fair))
            plan = self.solver(relaxed) or solve_greedy(relaxed)
        return plan or []

    def _keep_fair_finish(self, now: float, window: Window, fair: Floats) -> Window | None:
        """Stage A: enough rounds for everybody to keep its fair finish time; None if some job cannot."""
        horizon = now + self.window_rounds * self.cluster.round_seconds
        allowed = self._share(window.num_jobs) * (fair - horizon)
        if (allowed < window.left_after(window.most_rounds)).any():
            return None
        rounds = np.ceil(np.maximum(0.0, window.remaining_seconds - allowed) / self.cluster.round_seconds)
        return replace(window, least_rounds=rounds.astype(np.int64))

    def _lateness(self, now: float, remaining: Floats, fair: Floats) -> Floats:
        """Stage B: weights that grow with how late a job is projected to be."""
        rho = (now + remaining / self._share(len(fair))) / fair
        power = np.where(remaining < self.cluster.round_seconds, LATE_POWER, self.lateness_power)
        return np.where(rho > 1, np.minimum(rho, 1e3) ** power, 1.0).clip(max=WEIGHT_MAX)

    def _window(self, live: Sequence[Live]) -> Window:
        total = np.array([entry.job.num_units for entry in live])
        # Who is still here has something left to do, whatever its profile says; else it would never be planned again.
        done = np.minimum(np.floor([entry.units_done for entry in live]), np.maximum(total - 1.0, 0.0))
        return Window(
            num_rounds=self.window_rounds,
            round_seconds=self.cluster.round_seconds,
            capacity_gpus=self.cluster.gpus,
            makespan_weight=self.makespan_weight,
            gpus=np.array([entry.gpus for entry in live]),
            units_total=total,
            units_done=done,
            seconds_per_unit=np.array([_mean_pace(entry) for entry in live]),
            remaining_seconds=np.array([entry.remaining_seconds for entry in live]),
            weights=np.array([entry.job.weight for entry in live]),
            least_rounds=np.zeros(len(live), np.int64),
        )


def _mean_pace(entry: Live) -> float:
    """Mean seconds per unit over the units done and the one in progress, by the job's profile."""
    job = entry.job
    units = min(math.floor(entry.units_done) + 1.0, job.num_units)
    return (job.exclusive_seconds - job.seconds_after(units)) / units
