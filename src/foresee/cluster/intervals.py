"""When a job starts and ends, as intervals that hold four times in five.

In: the jobs of a plan, the cluster, a policy, how wrong estimates have been, and jobs that came before. Out: for each
job the earliest and latest start and end over nine simulated futures. In each, every run time is drawn from what is
believed of it, the policy keeps working with its wrong estimates, and new jobs keep arriving as they have arrived. If
what comes is a tenth future of the same kind, it is as likely as any of the ten to be the earliest or the latest: it
falls between the others in eight cases of ten, whatever the distribution.
Never: narrower than what is known; with exact estimates and no history of arrivals an interval is a point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from foresee.cluster.estimators import Estimator, Progress, normal_of
from foresee.cluster.job import Cluster, Job, Regime
from foresee.cluster.simulation import Order, simulate

NUM_FUTURES = 9
COVERAGE = (NUM_FUTURES - 1) / (NUM_FUTURES + 1)
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
    seed: int = 0,
) -> dict[str, Interval]:
    """`errors` has for each job the spread of log(true / estimated run time left); `history` are jobs that arrived
    before, of which the like will come."""
    jobs = tuple(jobs)
    found: dict[str, list[tuple[float, float]]] = {job.id: [] for job in jobs}
    for future in range(NUM_FUTURES):
        rng = np.random.default_rng([seed, future])
        drawn = [_drawn(job, errors.get(job.id, 0.0) * normal_of(f"{seed}:{future}:{job.id}")) for job in jobs]
        factors = {job.id: factor for job, factor in drawn}
        coming = _arrivals(history, start_seconds, rng=rng)
        run = simulate(
            [*(job for job, _ in drawn), *coming],
            cluster,
            policy(cluster),
            estimator=_spoilt(estimator, factors),
            start_seconds=start_seconds,
            assumed_error=max(errors.values(), default=0.0),
            until=frozenset(factors),
        )
        for outcome in run.outcomes:
            if outcome.job.id in found:
                found[outcome.job.id].append((outcome.start_seconds, outcome.finish_seconds))
    return {id: _interval(times, start_seconds, cluster.round_seconds) for id, times in found.items()}


def _drawn(job: Job, log_error: float) -> tuple[Job, float]:
    """The job with the run time it might truly have left, and how many times too long its estimate then is."""
    factor = math.exp(log_error)
    left = job.left_seconds
    stretch = (job.done_seconds + left / factor) / (job.done_seconds + left)
    regimes = tuple(replace(regime, seconds_per_unit=regime.seconds_per_unit * stretch) for regime in job.regimes)
    return replace(job, regimes=regimes, steps=None), factor


def _spoilt(estimator: Estimator, factors: dict[str, float]) -> Estimator:
    def estimate(job: Job, progress: Progress) -> float:
        return factors.get(job.id, 1.0) * estimator(job, progress)

    return estimate


def _arrivals(history: Sequence[Job], start_seconds: float, *, rng: np.random.Generator) -> list[Job]:
    """Submissions of the past, drawn anew for the time to come; jobs that came together come together."""
    if not history:
        return []
    bursts: dict[float, list[Job]] = {}
    for job in history:
        bursts.setdefault(job.arrival_seconds, []).append(job)
    span = start_seconds - min(bursts)
    if span <= 0:
        return []
    past = list(bursts.values())
    moments = np.sort(rng.uniform(start_seconds, start_seconds + 2 * span, rng.poisson(2 * len(past))))
    coming = []
    for number, moment in enumerate(moments.tolist()):
        for index, job in enumerate(past[int(rng.integers(len(past)))]):
            coming.append(_fresh(job, f"{ARRIVAL_ID}{number}.{index}", moment))
    return coming


def _fresh(job: Job, id: str, arrival_seconds: float) -> Job:
    work: tuple[Regime, ...] = job.regimes
    return Job(id=id, gpus=job.gpus, regimes=work, arrival_seconds=arrival_seconds, weight=job.weight)


def _interval(times: Sequence[tuple[float, float]], now: float, round_seconds: float) -> Interval:
    """Earliest to latest; where they differ a round either way, for a job that misses one is served in the next."""
    (start_least, start_most), (finish_least, finish_most) = (
        _widened(values, now, round_seconds) for values in zip(*times, strict=True)
    )
    return Interval(start_least=start_least, start_most=start_most, finish_least=finish_least, finish_most=finish_most)


def _widened(values: Sequence[float], now: float, round_seconds: float) -> tuple[float, float]:
    least, most = min(values), max(values)
    return (least, most) if least == most else (max(now, least - round_seconds), most + round_seconds)
