"""The traces of `benchmarks/cluster.py`, and which of them nobody looked at while the default policy was designed.

Seen: the four published traces, twenty generated ones (seed 1) and eight slices of Philly. The policy was designed
and every number in it chosen on these alone. Unseen: twenty generated ones (seed 2) and twelve slices of other days
of Philly. The split was written down here before the first run on an unseen trace; an unseen trace that has been
looked at to change the policy becomes a seen one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from foresee.cluster.formats import read_jobs
from foresee.cluster.formats.shockwave import Trace, read_trace
from foresee.cluster.generator import STUDIES, generate
from foresee.cluster.job import Cluster, Job

LOADS = (0.5, 0.8, 1.0, 1.4, 2.0)
# (GPUs, jobs) of generated traces, taken in turn.
SIZES = ((16, 120), (32, 160), (24, 140))
SEEN_SEED, UNSEEN_SEED = 1, 2
# Days of the Philly table, from its first arrival. Days 45, 70 and 71 had been measured before the split was made.
SEEN_DAYS = (25, 31, 38, 45, 47, 52, 60, 70)
UNSEEN_DAYS = (27, 34, 36, 41, 43, 46, 50, 57, 66, 72, 79, 94)
# A slice: this many jobs from noon on, gangs up to a server, no job longer than eight hours.
SLICE_JOBS = 150
SLICE_GPUS_MAX = 8
SLICE_SECONDS_MAX = 28_800.0
# Some slices are one burst of half an hour: its load is meant over at least this long.
SLICE_SPAN_MIN = 14_400.0
PUBLISHED = (32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    name: str
    seen: bool
    trace: Trace


def published(data: Path, sizes: Sequence[int] = PUBLISHED) -> dict[int, Trace]:
    return {gpus: read_trace(data / f"shockwave_trace_{gpus}gpu.json.gz") for gpus in sizes}


def traces(data: Path, *, seen: bool) -> list[Named]:
    """All but the published ones."""
    return [*_generated(seen), *_slices(data, seen)]


def _generated(seen: bool) -> Iterator[Named]:
    seed = SEEN_SEED if seen else UNSEEN_SEED
    for row, study in enumerate(STUDIES):
        for column, load in enumerate(LOADS):
            gpus, num_jobs = SIZES[(row + column) % len(SIZES)]
            jobs = generate(study, num_jobs=num_jobs, gpus=gpus, load=load, seed=100 * seed + column)
            trace = Trace(cluster=Cluster(gpus=gpus), jobs=jobs)
            yield Named(name=f"{study}, load {load}, {gpus} GPUs", seen=seen, trace=trace)


def _slices(data: Path, seen: bool) -> Iterator[Named]:
    for index, day in enumerate(SEEN_DAYS if seen else UNSEEN_DAYS):
        jobs = _slice(data, day)
        load = LOADS[index % len(LOADS)]
        span = max(SLICE_SPAN_MIN, max(job.arrival_seconds for job in jobs))
        busy = sum(job.gpus * job.exclusive_seconds for job in jobs) / span
        gpus = max(SLICE_GPUS_MAX, round(busy / load))
        yield Named(
            name=f"Philly day {day}, load {load}, {gpus} GPUs",
            seen=seen,
            trace=Trace(cluster=Cluster(gpus=gpus), jobs=jobs),
        )


def _slice(data: Path, day: int) -> tuple[Job, ...]:
    jobs = _philly(data)
    noon = bisect_left(jobs, (day + 0.5) * 86_400.0, key=lambda job: job.arrival_seconds)
    small = (job for job in islice(jobs, noon, None) if job.gpus <= SLICE_GPUS_MAX)
    chosen = list(islice((job for job in small if job.exclusive_seconds <= SLICE_SECONDS_MAX), SLICE_JOBS))
    first = chosen[0].arrival_seconds
    return tuple(replace(job, arrival_seconds=job.arrival_seconds - first) for job in chosen)


@cache
def _philly(data: Path) -> tuple[Job, ...]:
    """In order of arrival."""
    return read_jobs(data / "philly_jobs.csv.gz", "philly").jobs
