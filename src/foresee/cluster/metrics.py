"""What a run was worth: time, fairness and use, in all, per user and per class; and how soon any run could have ended.

In: a finished run. Out: plain numbers. Finish-time fairness ρ compares a job's completion time with what an equal share
would have given it, by both definitions in use: `rho_static` divides by the contention of the whole trace (jobs /
GPUs), as Shockwave's code does; `rho_themis` by the mean number of jobs during this job's life / GPUs. The lower bound
on the end of the last job has three reasons: a job needs its run time; the GPUs must hold all work; gangs of which no
two fit side by side run one after the other. Each also holds from any moment on, for the jobs that arrive after it.
Never: round, drop jobs, prefer a definition silently, or give a bound that could be beaten.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foresee.cluster.job import Cluster, Job
from foresee.cluster.simulation import Outcome, Run


class Work(NamedTuple):
    ready_seconds: float
    gpus: int
    seconds: float


def end_bound(work: Sequence[Work], gpus: int) -> float:
    """No schedule of this work on so many GPUs ends sooner."""
    alone = max((job.ready_seconds + job.seconds for job in work), default=0.0)
    area = _one_after_another((job.ready_seconds, job.seconds * job.gpus / gpus) for job in work)
    return max(alone, area, clique_bound(work, gpus))


def clique_bound(work: Sequence[Work], gpus: int) -> float:
    """No schedule ends sooner, because gangs that do not fit side by side run one after the other."""
    return max((_one_after_another(clique) for clique in _cliques(work, gpus)), default=0.0)


def _one_after_another(tasks: Iterable[tuple[float, float]]) -> float:
    """End of (ready, seconds) tasks that cannot overlap: from each moment on, all that becomes ready from then on."""
    bound = later = 0.0
    for ready, seconds in sorted(tasks, reverse=True):
        later += seconds
        bound = max(bound, ready + later)
    return bound


def _cliques(work: Sequence[Work], gpus: int) -> Iterable[list[tuple[float, float]]]:
    """Jobs of which no two fit side by side: gangs above half the cluster, with or without one smaller job."""
    large = [job for job in work if 2 * job.gpus > gpus]
    if not large:
        return
    yield [(job.ready_seconds, job.seconds) for job in large]
    longest: dict[tuple[float, int], Work] = {}
    for job in work:
        if 2 * job.gpus <= gpus:
            key = (job.ready_seconds, job.gpus)
            longest[key] = max(longest.get(key, job), job, key=lambda job: job.seconds)
    for job in longest.values():
        beside = [other for other in large if other.gpus + job.gpus > gpus]
        if beside:
            yield [(other.ready_seconds, other.seconds) for other in [*beside, job]]


UNFAIR_ABOVE = 1.05
"""The published count of unfair jobs allows five per cent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    makespan_seconds: float
    bound_seconds: float
    """No schedule of these jobs on this cluster ends sooner."""
    jct_mean_seconds: float
    jct_p99_seconds: float
    worst_rho: float
    unfair_share: float
    worst_rho_themis: float
    unfair_share_themis: float
    utilisation: float
    num_starts: int
    num_jobs: int

    @property
    def gap(self) -> float:
        """How far the makespan is above its bound, as a share of the bound."""
        return self.makespan_seconds / self.bound_seconds - 1


def measure(run: Run) -> Metrics:
    outcomes = run.outcomes
    contended, themis = rho_static(run), rho_themis(run)
    return Metrics(
        makespan_seconds=run.makespan_seconds,
        bound_seconds=makespan_bound([outcome.job for outcome in outcomes], run.cluster, run.start_seconds),
        jct_mean_seconds=math.fsum(outcome.jct_seconds for outcome in outcomes) / len(outcomes),
        jct_p99_seconds=float(np.percentile([outcome.jct_seconds for outcome in outcomes], 99)),
        worst_rho=max(contended),
        unfair_share=unfair_share(contended),
        worst_rho_themis=max(themis),
        unfair_share_themis=unfair_share(themis),
        utilisation=run.busy_gpu_seconds / (run.cluster.gpus * (run.makespan_seconds - run.start_seconds)),
        num_starts=sum(outcome.num_starts for outcome in outcomes),
        num_jobs=len(outcomes),
    )


def rho_static(run: Run) -> list[float]:
    """Contention as the whole trace has it: jobs / GPUs."""
    contention = max(1.0, len(run.outcomes) / run.cluster.gpus)
    return [outcome.jct_seconds / (outcome.job.exclusive_seconds * contention) for outcome in run.outcomes]


def rho_themis(run: Run) -> list[float]:
    """Contention as the job met it: mean live jobs over the rounds of its life / GPUs."""
    reached = np.concatenate([[0], np.cumsum([round.num_live for round in run.rounds])])
    return [_rho_in_life(outcome, reached, run.cluster.gpus) for outcome in run.outcomes]


def _rho_in_life(outcome: Outcome, reached: np.ndarray, gpus: int) -> float:
    first, end = outcome.first_round, outcome.end_round
    contention = max(1.0, float(reached[end] - reached[first]) / (end - first) / gpus)
    return outcome.jct_seconds / (outcome.job.exclusive_seconds * contention)


def unfair_share(rhos: Sequence[float], above: float = UNFAIR_ABOVE) -> float:
    return sum(rho > above for rho in rhos) / len(rhos)


def makespan_bound(jobs: Iterable[Job], cluster: Cluster, start_seconds: float = 0.0) -> float:
    """A time before which no schedule of these jobs that begins at `start_seconds` can end."""
    work = [Work(max(start_seconds, job.arrival_seconds), job.gpus, job.left_seconds) for job in jobs]
    return end_bound(work, cluster.gpus)


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMetrics:
    """One user's or one class's part of a run."""

    name: str
    num_jobs: int
    gpu_seconds: float
    jct_mean_seconds: float
    wait_mean_seconds: float
    """Arrival to first start."""
    worst_rho: float
    worst_rho_themis: float


def measure_by(run: Run, name_of: Callable[[Job], str]) -> list[GroupMetrics]:
    """The run split by a name of each job (`lambda job: job.user`), largest consumers first."""
    groups: dict[str, list[tuple[Outcome, float, float]]] = {}
    for outcome, contended, themis in zip(run.outcomes, rho_static(run), rho_themis(run), strict=True):
        groups.setdefault(name_of(outcome.job), []).append((outcome, contended, themis))
    measured = [_group(name, members) for name, members in groups.items()]
    return sorted(measured, key=lambda group: -group.gpu_seconds)


def _group(name: str, members: Sequence[tuple[Outcome, float, float]]) -> GroupMetrics:
    outcomes = [outcome for outcome, _, _ in members]
    return GroupMetrics(
        name=name,
        num_jobs=len(outcomes),
        gpu_seconds=sum(outcome.served_seconds * outcome.job.gpus for outcome in outcomes),
        jct_mean_seconds=sum(outcome.jct_seconds for outcome in outcomes) / len(outcomes),
        wait_mean_seconds=sum(o.start_seconds - o.job.arrival_seconds for o in outcomes) / len(outcomes),
        worst_rho=max(contended for _, contended, _ in members),
        worst_rho_themis=max(themis for _, _, themis in members),
    )
