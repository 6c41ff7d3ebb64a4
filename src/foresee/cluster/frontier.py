"""The trade between completion time, makespan and fairness, before anyone chooses.

In: jobs and a cluster. Out: one point per fairness of the guarded policy, from completion time alone to lateness above
all, and one per policy.
Never: recommend; `undominated` only says which points nobody beats in every respect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foresee.cluster.estimators import DEFAULT_ESTIMATOR, assumed_error, estimator_named
from foresee.cluster.job import Cluster, Job
from foresee.cluster.metrics import Metrics, measure
from foresee.cluster.policies import policy_named
from foresee.cluster.policies.guarded import DEFAULT_FAIRNESS, Guarded
from foresee.cluster.simulation import Order, simulate

FAIRNESS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    name: str
    metrics: Metrics
    undominated: bool = False
    """No other point is at least as good in JCT, makespan and worst ρ and better in one."""


def frontier(
    jobs: Iterable[Job],
    cluster: Cluster,
    *,
    policies: Sequence[str] = (),
    fairness: Sequence[float] = FAIRNESS,
    estimator: str = DEFAULT_ESTIMATOR,
    start_seconds: float = 0.0,
    on_point: Callable[[str], None] | None = None,
) -> list[Point]:
    jobs = tuple(jobs)
    orders: dict[str, Order] = {_name(value): Guarded(cluster, fairness=value) for value in fairness}
    orders |= {name: policy_named(name)(cluster) for name in policies}
    points = []
    for name, order in orders.items():
        if on_point:
            on_point(name)
        run = simulate(
            jobs,
            cluster,
            order,
            estimator=estimator_named(estimator),
            start_seconds=start_seconds,
            assumed_error=assumed_error(estimator),
        )
        points.append(Point(name=name, metrics=measure(run)))
    return [Point(name=p.name, metrics=p.metrics, undominated=not _beaten(p, points)) for p in points]


def _name(fairness: float) -> str:
    return f"guarded, fairness {fairness:g}{' (default)' * (fairness == DEFAULT_FAIRNESS)}"


def _beaten(point: Point, points: Sequence[Point]) -> bool:
    mine = _figures(point)
    return any(
        all(other <= own for other, own in zip(_figures(rival), mine, strict=True)) and _figures(rival) != mine
        for rival in points
    )


def _figures(point: Point) -> tuple[float, float, float]:
    return point.metrics.jct_mean_seconds, point.metrics.makespan_seconds, point.metrics.worst_rho
