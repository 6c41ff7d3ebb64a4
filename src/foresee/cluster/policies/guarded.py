"""Shortest remaining time first, except for jobs that could no longer finish in time for the attainable makespan.

In: live jobs with estimated run times. Out: an order.
D = (1 − slack) · max(longest run time left, all GPU work left / GPUs) is the makespan to be reached from now; a job
whose run time left reaches D within a round has no laxity and goes first, least laxity first. Everybody else goes
shortest first. The slack is not chosen: one job in twenty outruns its estimate by more than exp(1.645 σ), σ the
spread of the estimator's log errors over the jobs finished so far, so slack = 1 − exp(−1.645 σ). A slack of −∞ is
plain SRTF, of 1 longest first.
Never: hold back a job that fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from foresee.cluster.bounds import Work, end_bound
from foresee.cluster.job import Cluster
from foresee.cluster.simulation import Live, Order

QUANTILE_95 = 1.645
RESTARTS_TO_YIELD = 10.0
"""A running job keeps its place against others without laxity until they are this many restarts more urgent: two jobs
that both cannot wait would otherwise take turns every round, and a restart should cost a tenth of what it buys."""


def slack_from_error(sigma: float) -> float:
    """Share of the attainable makespan kept in hand so that 95 % of jobs finish in it despite their estimates."""
    return 1.0 - math.exp(-QUANTILE_95 * sigma)


def guarded(cluster: Cluster, slack: float | None = None) -> Order:
    """`slack` None follows the estimator's error; a number fixes it."""

    def order(now: float, live: Sequence[Live]) -> list[str]:
        used = slack_from_error(live[0].estimate_error) if slack is None else slack
        goal = attainable_seconds(live, cluster.gpus) * (1.0 - used) if used > -math.inf else math.inf
        return [entry.id for entry in sorted(live, key=lambda entry: _urgency(entry, goal, cluster))]

    return order


def attainable_seconds(live: Sequence[Live], gpus: int) -> float:
    """From now: no plan for these jobs ends sooner, by the estimates."""
    return end_bound([Work(0.0, entry.gpus, entry.remaining_seconds) for entry in live], gpus)


def laxity_seconds(entry: Live, goal_seconds: float) -> float:
    """How long the job can wait and still finish at the goal."""
    return goal_seconds - entry.remaining_seconds


def _urgency(entry: Live, goal_seconds: float, cluster: Cluster) -> tuple[bool, float]:
    ends_now = entry.running and entry.remaining_seconds <= cluster.round_seconds
    if ends_now and cluster.restart_seconds and goal_seconds < math.inf:
        return False, -math.inf  # stopping it would win less than a round and cost a restart
    laxity = laxity_seconds(entry, goal_seconds) - RESTARTS_TO_YIELD * cluster.restart_seconds * entry.running
    has_laxity = laxity > cluster.round_seconds
    return has_laxity, entry.remaining_seconds if has_laxity else laxity
