"""A plan a person can use: who runs in each round, when each job starts and ends, and what it is worth.

In: jobs, a cluster, the name of a policy. Out: a `Plan` with rounds, predicted times, fairness, the bound and the gap.
The prediction takes the jobs' own descriptions as the truth; `estimator` is what the policy may know of them.

Intervals that hold four times in five come from nine simulated futures: in each, every run time is drawn from what is
believed of it, the policy keeps working with its wrong estimates, and new jobs arrive as they have arrived. A tenth
future of the same kind is as likely as any of the ten to be the earliest or the latest, so it falls between the others
in eight cases of ten. With exact estimates and no history of arrivals an interval is a point.
Never: act on a cluster; exports.py writes the order down for the one who does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foresee.cluster.estimators import DEFAULT_ESTIMATOR, Estimator, Progress, assumed_error, estimator_named, normal_of
from foresee.cluster.job import Cluster, Job, Regime
from foresee.cluster.metrics import Metrics, measure, rho_static, rho_themis
from foresee.cluster.policies import DEFAULT_POLICY, policy_named
from foresee.cluster.simulation import Order, Run, simulate
from foresee.errors import PlanError

NUM_FUTURES = 9
COVERAGE = (NUM_FUTURES - 1) / (NUM_FUTURES + 1)
SPANS_TO_COME = 2.0
"""Arrivals are drawn for so many times as long as jobs have been seen to arrive."""
STRETCHES = 4.0
"""A stretch of the past that is drawn is on average this part of it."""
ARRIVAL_ID = "arrival to come "


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Seconds on the clock of the plan; 80 % of the time what happens lies within."""

    start_least: float
    start_most: float
    finish_least: float
    finish_most: float


def predict(
    jobs: Iterable[Job],
    cluster: Cluster,
    policy: Callable[[Cluster], Order],
    *,
    estimator: Estimator,
    errors: Mapping[str, float],
    start_seconds: float = 0.0,
    history: Sequence[Job] = (),
    closes_seconds: float = math.inf,
    seed: int = 0,
) -> dict[str, Interval]:
    """`errors` has for each job the spread of log(true / estimated run time left); `history` are jobs that arrived
    before, of which the like will come until `closes_seconds`, when nobody can submit any more."""
    jobs = tuple(jobs)
    found: dict[str, list[tuple[float, float]]] = {job.id: [] for job in jobs}
    assumed = max(errors.values(), default=0.0)
    for future in range(NUM_FUTURES):
        rng = np.random.default_rng([seed, future])
        coming = _arrivals(history, start_seconds, closes_seconds, rng=rng)
        off = {job.id: errors.get(job.id, 0.0) for job in jobs} | {job.id: assumed for job in coming}
        factors = {id: math.exp(spread * normal_of(f"{seed}:{future}:{id}")) for id, spread in off.items()}
        run = simulate(
            [*(_drawn(job, factors[job.id]) for job in jobs), *coming],
            cluster,
            policy(cluster),
            estimator=_spoilt(estimator, factors),
            start_seconds=start_seconds,
            assumed_error=assumed,
            errors=errors,
            until=frozenset(found),
        )
        for outcome in run.outcomes:
            if outcome.job.id in found:
                found[outcome.job.id].append((outcome.start_seconds, outcome.finish_seconds))
    return {id: _interval(times) for id, times in found.items()}


def _drawn(job: Job, factor: float) -> Job:
    """The job with the run time it might truly have left, of which its estimate then is `factor` times as much."""
    left = job.left_seconds
    stretch = (job.done_seconds + left / factor) / (job.done_seconds + left)
    regimes = tuple(replace(regime, seconds_per_unit=regime.seconds_per_unit * stretch) for regime in job.regimes)
    return replace(job, regimes=regimes, steps=None)


def _spoilt(estimator: Estimator, factors: dict[str, float]) -> Estimator:
    def estimate(job: Job, progress: Progress) -> float:
        return factors.get(job.id, 1.0) * estimator(job, progress)

    return estimate


def _arrivals(
    history: Sequence[Job], start_seconds: float, closes_seconds: float, *, rng: np.random.Generator
) -> list[Job]:
    """Stretches of the past one after the other, each from a random moment on: what came together comes together, and
    busy hours stay busy (the stationary bootstrap)."""
    span = start_seconds - min((job.arrival_seconds for job in history), default=start_seconds)
    if span <= 0:
        return []
    past = sorted(history, key=lambda job: job.arrival_seconds)
    moments = np.array([job.arrival_seconds for job in past])
    coming: list[Job] = []
    now = start_seconds
    while now < min(closes_seconds, start_seconds + SPANS_TO_COME * span):
        begin = start_seconds - rng.uniform(0.0, span)
        end = min(start_seconds, begin + rng.exponential(span / STRETCHES))
        first, last = np.searchsorted(moments, (begin, end)).tolist()
        for job in past[first:last]:
            coming.append(_fresh(job, f"{ARRIVAL_ID}{len(coming)}", now + job.arrival_seconds - begin))
        now += end - begin
    return [job for job in coming if job.arrival_seconds <= closes_seconds]


def _fresh(job: Job, id: str, arrival_seconds: float) -> Job:
    work: tuple[Regime, ...] = job.regimes
    return Job(id=id, gpus=job.gpus, regimes=work, arrival_seconds=arrival_seconds, weight=job.weight)


def _interval(times: Sequence[tuple[float, float]]) -> Interval:
    """Earliest to latest."""
    starts, finishes = zip(*times, strict=True)
    return Interval(
        start_least=min(starts), start_most=max(starts), finish_least=min(finishes), finish_most=max(finishes)
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """What the plan holds for one job."""

    job: Job
    start_seconds: float
    finish_seconds: float
    num_starts: int
    rho: float
    """Finish-time fairness under the contention of the whole plan; above 1 is later than an equal share would give."""
    rho_themis: float
    """The same under the contention the job meets while it lives."""
    interval: Interval | None = None
    """Between what it starts and ends four times in five, if that was asked for."""

    @property
    def num_pieces(self) -> int:
        """Stretches in which it runs; one that ran as the plan began pays no first start."""
        return self.num_starts + self.job.runs_at_begin

    @property
    def is_running(self) -> bool:
        """It runs as the plan begins and keeps its GPUs."""
        return self.job.started_seconds is not None

    @property
    def wait_seconds(self) -> float:
        return self.start_seconds - self.job.arrival_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    policy: str
    estimator: str
    run: Run
    metrics: Metrics
    fates: dict[str, Fate]
    """By job id, in order of arrival."""

    @property
    def cluster(self) -> Cluster:
        return self.run.cluster

    @property
    def jobs(self) -> tuple[Job, ...]:
        return tuple(fate.job for fate in self.fates.values())

    @property
    def rounds(self) -> tuple[tuple[str, ...], ...]:
        """Who runs in each round."""
        return tuple(round.ids for round in self.run.rounds)

    def in_order(self) -> list[Fate]:
        """Jobs in the order in which they start, those of the same round by when they end."""
        return sorted(self.fates.values(), key=lambda fate: (fate.start_seconds, fate.finish_seconds))

    def fate(self, id: str) -> Fate:
        if id not in self.fates:
            raise PlanError(f"job {id!r} is not in this plan: choose one of {', '.join(list(self.fates)[:5])}, ...")
        return self.fates[id]


def make_plan(
    jobs: Iterable[Job],
    cluster: Cluster,
    *,
    policy: str = DEFAULT_POLICY,
    estimator: str = DEFAULT_ESTIMATOR,
    start_seconds: float = 0.0,
    intervals: bool = False,
    error: float | None = None,
    history: Sequence[Job] = (),
    on_round: Callable[[float, int], None] | None = None,
) -> Plan:
    """Plan all jobs to their end; nothing runs before `start_seconds`.

    With `intervals` also between what each job starts and ends: `error` is the spread of log(true / described run
    time), `history` jobs that arrived before and of which the like will come.
    """
    jobs = tuple(jobs)
    run = simulate(
        jobs,
        cluster,
        policy_named(policy)(cluster),
        estimator=estimator_named(estimator),
        start_seconds=start_seconds,
        assumed_error=assumed_error(estimator),
        on_round=on_round,
    )
    if not run.outcomes:
        raise PlanError("there is nothing to plan: give at least one job")
    found: dict[str, Interval] = {}
    if intervals:
        spread = assumed_error(estimator) if error is None else error
        found = predict(
            jobs,
            cluster,
            policy_named(policy),
            estimator=estimator_named(estimator),
            errors={job.id: spread for job in jobs},
            start_seconds=start_seconds,
            history=history,
        )
    return Plan(policy=policy, estimator=estimator, run=run, metrics=measure(run), fates=_fates(run, found))


def _fates(run: Run, intervals: Mapping[str, Interval]) -> dict[str, Fate]:
    return {
        outcome.job.id: Fate(
            job=outcome.job,
            start_seconds=outcome.start_seconds,
            finish_seconds=outcome.finish_seconds,
            num_starts=outcome.num_starts,
            rho=contended,
            rho_themis=themis,
            interval=intervals.get(outcome.job.id),
        )
        for outcome, contended, themis in zip(run.outcomes, rho_static(run), rho_themis(run), strict=True)
    }
