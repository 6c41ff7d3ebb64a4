"""A plan a person can use: who runs in each round, when each job starts and ends, and what it is worth.

In: jobs, a cluster, the name of a policy. Out: a `Plan` with rounds, predicted times, fairness, the bound and the
gap. The prediction takes the jobs' own descriptions as the truth; `estimator` is what the policy is allowed to know
of them.
Never: act on a cluster; exports.py writes the order down for the one who does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from foresee.cluster.estimators import DEFAULT_ESTIMATOR, assumed_error, estimator_named
from foresee.cluster.intervals import Interval, predict
from foresee.cluster.job import Cluster, Job
from foresee.cluster.metrics import Metrics, measure, rho_static, rho_themis
from foresee.cluster.policies import DEFAULT_POLICY, policy_named
from foresee.cluster.simulation import Run, simulate
from foresee.errors import PlanError


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
        """Stretches in which it runs; a job with progress was running when the plan began and pays no first start."""
        return self.num_starts + bool(self.job.done_seconds or self.is_running)

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
