"""Times before which no schedule can end, whatever the policy.

In: for each job when it is ready, its GPUs and its run time left. Out: a lower bound on the end of the last one.
Three reasons hold together: a job needs its run time; the GPUs must hold all work; gangs of which no two fit side by
side run one after the other. Each also holds for the jobs that arrive from any moment on, and from that moment.
Never: restarts, rounds or estimates of the future; a bound that could be beaten would be worthless.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Work(NamedTuple):
    ready_seconds: float
    gpus: int
    seconds: float


def end_bound(work: Sequence[Work], gpus: int) -> float:
    """No schedule of this work on so many GPUs ends sooner."""
    alone = max((job.ready_seconds + job.seconds for job in work), default=0.0)
    area = _one_after_another((job.ready_seconds, job.seconds * job.gpus / gpus) for job in work)
    return max(alone, area, *(_one_after_another(clique) for clique in _cliques(work, gpus)), 0.0)


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
