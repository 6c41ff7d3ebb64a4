"""A study of a trace in the manner of the Philly paper: who asks for what, who waits, and how the GPUs are used.

In: records of jobs. Out: tables. Queueing, locality and utilisation only where the file has them.
Never: fill in what the file does not say; an empty table means it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from foresee.cluster.formats.record import JobRecord


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """The jobs that have something in common."""

    name: str
    num_jobs: int
    gpu_seconds: float
    run_median_seconds: float
    run_p90_seconds: float
    wait_median_seconds: float | None
    wait_p90_seconds: float | None
    utilisation_mean: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Skew:
    """How unevenly GPU time is spread over users (or classes, or jobs)."""

    over: str
    num_owners: int
    top_1_percent: float
    top_10_percent: float
    gini: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    num_jobs: int
    span_seconds: float
    """First to last arrival."""
    gpu_seconds: float
    mean_demand_gpus: float
    """GPU time asked for per second of the span: the cluster that would be busy all the time."""
    by_gang: list[Slice]
    by_spread: list[Slice]
    """Gangs of more than one GPU by number of servers."""
    by_status: list[Slice]
    by_kind: list[Slice]
    skews: list[Skew]


def analyse(records: Sequence[JobRecord]) -> Analysis:
    arrivals = [record.job.arrival_seconds for record in records]
    span = max(arrivals) - min(arrivals)
    gpu_seconds = sum(map(_gpu_seconds, records))
    spread = [record for record in records if record.num_servers is not None and record.job.gpus > 1]
    return Analysis(
        num_jobs=len(records),
        span_seconds=span,
        gpu_seconds=gpu_seconds,
        mean_demand_gpus=gpu_seconds / span if span else 0.0,
        by_gang=_slices(records, lambda record: record.job.gpus, "GPU"),
        by_spread=_slices(spread, lambda record: record.num_servers, "server"),
        by_status=_slices([r for r in records if r.status], lambda record: record.status),
        by_kind=_slices([r for r in records if r.job.kind], lambda record: record.job.kind, by_use=True),
        skews=[
            _skew("jobs", [_gpu_seconds(record) for record in records]),
            *_owner_skew("users", [r for r in records if r.job.user], lambda record: record.job.user),
            *_owner_skew("classes", [r for r in records if r.job.kind], lambda record: record.job.kind),
        ],
    )


def _gpu_seconds(record: JobRecord) -> float:
    return record.job.gpus * record.job.exclusive_seconds


def _slices(
    records: Sequence[JobRecord], key: Callable[[JobRecord], Hashable], unit: str = "", *, by_use: bool = False
) -> list[Slice]:
    groups: dict[Hashable, list[JobRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    named = [(name, _slice(_label(name, unit), members)) for name, members in groups.items()]
    if by_use:
        return [slice for _, slice in sorted(named, key=lambda pair: -pair[1].gpu_seconds)]
    return [slice for _, slice in sorted(named, key=lambda pair: str(pair[0]).zfill(12))]


def _label(name: Hashable, unit: str) -> str:
    return f"{name} {unit}{'s' * (name != 1)}" if unit else str(name)


def _slice(name: str, members: Sequence[JobRecord]) -> Slice:
    runs = [record.job.exclusive_seconds for record in members]
    waits = [record.wait_seconds for record in members if record.wait_seconds is not None]
    uses = [record.utilisation for record in members if record.utilisation is not None]
    return Slice(
        name=name,
        num_jobs=len(members),
        gpu_seconds=sum(map(_gpu_seconds, members)),
        run_median_seconds=float(np.median(runs)),
        run_p90_seconds=float(np.percentile(runs, 90)),
        wait_median_seconds=float(np.median(waits)) if waits else None,
        wait_p90_seconds=float(np.percentile(waits, 90)) if waits else None,
        utilisation_mean=float(np.mean(uses)) if uses else None,
    )


def _owner_skew(over: str, records: Sequence[JobRecord], owner: Callable[[JobRecord], str]) -> list[Skew]:
    totals: dict[str, float] = {}
    for record in records:
        totals[owner(record)] = totals.get(owner(record), 0.0) + _gpu_seconds(record)
    return [_skew(over, list(totals.values()))] if totals else []


def _skew(over: str, amounts: Sequence[float]) -> Skew:
    falling = np.sort(np.array(amounts))[::-1]
    share = np.cumsum(falling) / falling.sum()
    count = len(falling)
    # Gini: twice the area between the even line and the Lorenz curve of the rising amounts.
    gini = (count + 1 - 2 * float(np.sum(np.cumsum(falling[::-1]) / falling.sum()))) / count
    return Skew(
        over=over,
        num_owners=count,
        top_1_percent=float(share[max(1, round(0.01 * count)) - 1]),
        top_10_percent=float(share[max(1, round(0.1 * count)) - 1]),
        gini=gini,
    )
