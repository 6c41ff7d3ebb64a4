"""AlloX: match waiting jobs to GPUs and places in their queues so that the sum of completion times is least.

In: live jobs. Out: an order: who runs stays, then the jobs the matching starts now, then the rest by arrival.
A job that is k-th from the end of a GPU's queue delays k completions, so it costs k times its run time; the matching
of jobs to (GPU, k) is a linear assignment. As published, only the longest-waiting jobs take part and a gang counts as
one job.
Never: preempt. It is optimal for one-GPU jobs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.cluster.job import Cluster
from foresee.cluster.simulation import Live, Order
from foresee.io.optional import OptionalModule

optimize: Any = OptionalModule("scipy.optimize")
OLDEST_SHARE = 0.2
"""Part of the waiting jobs that takes part, unless there are more free GPUs than that."""


def allox(cluster: Cluster) -> Order:
    def order(now: float, live: Sequence[Live]) -> list[str]:
        running = [entry for entry in live if entry.running]
        waiting = sorted((e for e in live if not e.running), key=lambda entry: entry.job.arrival_seconds)
        free = cluster.gpus - sum(entry.gpus for entry in running)
        invited = waiting[: max(int(OLDEST_SHARE * len(waiting)), free)]
        first = _starters(invited, free) if invited and free else []
        started = set(map(id, first))
        return [entry.id for entry in [*running, *first, *(e for e in waiting if id(e) not in started)]]

    return order


class AlloxShares:
    """AlloX as a rule for shares, the way Shockwave's artifact compares with it.

    A job the matching starts gets the share 1 / GPUs of its gang and keeps it; only one-GPU jobs, whose share is
    whole, count as placed, so gangs take part in every matching and a placed job counts as one GPU.
    """

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def __call__(self, now: float, live: Sequence[Live], gpus: int) -> NDArray[np.float64]:
        self._shares = {entry.id: self._shares.get(entry.id, 0.0) for entry in live}
        waiting = [entry for entry in live if self._shares[entry.id] != 1.0]
        free = gpus - (len(live) - len(waiting))
        waiting.sort(key=lambda entry: entry.job.arrival_seconds)
        invited = waiting[: max(int(OLDEST_SHARE * len(waiting)), free)]
        for entry in _starters(invited, free) if invited and free else []:
            self._shares[entry.id] = 1.0 / entry.gpus
        return np.array(list(self._shares.values()))


def _starters(waiting: Sequence[Live], num_gpus: int) -> list[Live]:
    """The job at the head of each GPU's queue in the cheapest matching, shortest first."""
    places = -(-len(waiting) // num_gpus)
    remaining = np.array([entry.remaining_seconds for entry in waiting])
    from_end = np.repeat(np.arange(1, places + 1), num_gpus)  # column = (place, GPU)
    jobs, columns = optimize.linear_sum_assignment(np.outer(remaining, from_end))
    heads: dict[int, tuple[int, int]] = {}
    for job, column in zip(jobs.tolist(), columns.tolist(), strict=True):
        place, gpu = divmod(column, num_gpus)
        heads[gpu] = max(heads.get(gpu, (-1, -1)), (place, job))
    return sorted((waiting[job] for _, job in heads.values()), key=lambda entry: entry.remaining_seconds)
