"""Traces with the properties of published studies, as many as are wanted.

In: the name of a study, jobs, GPUs, load and a seed. Out: jobs. What all studies agree on is in the model: people
submit in bursts of jobs that resemble each other, more by day than by night; few people submit most; most jobs are
small and short while a few large gangs hold most of the GPU time; a third of the jobs ends early, failed or killed;
some change their batch size, and with it their speed, while they train. The figures per study are those of its paper.
Never: a number that depends on anything but the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from foresee.cluster.job import Job, Regime
from foresee.errors import PlanError

DAY_SECONDS = 86_400.0
NIGHT_SHARE = 0.6
"""Part by which the rate of submissions falls from the height of the day to the depth of the night."""
ALIKE_SIGMA = 0.3
"""Spread of the log run times of jobs submitted together."""
EARLY_END_LOG_RANGE = (np.log(0.01), 0.0)
"""A job that fails or is killed has run this share of its time, log-uniform."""
EPOCHS = (10, 120)
BATCHES = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What a paper says about its cluster's jobs."""

    gangs: Mapping[int, float]
    """GPUs -> share of submissions."""
    median_seconds: float
    """Of jobs on one GPU."""
    log_sigma: float
    """Spread of log run times."""
    gang_factor: float
    """How much longer a job's median is for each doubling of its gang."""
    longest_seconds: float
    burst_mean: float
    """Jobs per submission."""
    num_users: int
    early_share: float
    """Jobs that fail or are killed before their time."""
    regime_share: float
    """Jobs whose batch size grows while they train."""


STUDIES: dict[str, Study] = {
    # Jeon et al., ATC '19, and its public table: 80 to 93 % on one GPU, median 19 min, gangs of 8 hold half the time.
    "philly": Study(
        gangs={1: 0.84, 2: 0.05, 4: 0.05, 8: 0.06}, median_seconds=900, log_sigma=1.9, gang_factor=1.7,
        longest_seconds=28_800, burst_mean=2.5, num_users=60, early_share=0.3, regime_share=0.3,
    ),
    # Hu et al., SC '21: median 206 s and mean 6,652 s, half of the jobs on several GPUs.
    "helios": Study(
        gangs={1: 0.55, 2: 0.12, 4: 0.13, 8: 0.16, 16: 0.04}, median_seconds=206, log_sigma=2.4, gang_factor=1.4,
        longest_seconds=28_800, burst_mean=4.0, num_users=80, early_share=0.35, regime_share=0.2,
    ),
    # Weng et al., NSDI '22: median 23 min, p90 4.5 h, most tasks on a GPU or less, repeated many times over.
    "pai": Study(
        gangs={1: 0.8, 2: 0.09, 4: 0.06, 8: 0.05}, median_seconds=1_380, log_sigma=1.85, gang_factor=1.2,
        longest_seconds=28_800, burst_mean=6.0, num_users=120, early_share=0.3, regime_share=0.3,
    ),
    # Zheng et al., NSDI '23: 0.2 to 5 h, two thirds of the jobs scale their batch, one job at a time.
    "shockwave": Study(
        gangs={1: 0.6, 2: 0.3, 4: 0.07, 8: 0.03}, median_seconds=3_600, log_sigma=0.9, gang_factor=1.0,
        longest_seconds=18_000, burst_mean=1.0, num_users=20, early_share=0.0, regime_share=0.66,
    ),
}  # fmt: skip


def generate(study: str, *, num_jobs: int, gpus: int, load: float, seed: int) -> tuple[Job, ...]:
    """Jobs in order of arrival; their work over the span of their arrivals would keep `load` · `gpus` GPUs busy."""
    if study not in STUDIES:
        raise PlanError(f"study {study!r} is not known: choose one of {', '.join(STUDIES)}")
    if num_jobs < 1 or not load > 0:
        raise PlanError(f"{num_jobs} jobs at load {load:g}: give at least one job and a load above 0")
    if seed < 0:
        raise PlanError(f"seed {seed} cannot be used: give a seed of at least 0")
    rng = np.random.default_rng([seed, *study.encode()])
    bursts: list[list[Job]] = []
    while (known := sum(map(len, bursts))) < num_jobs:
        bursts.append(_burst(STUDIES[study], gpus, known, rng=rng)[: num_jobs - known])
    jobs = [job for burst in bursts for job in burst]
    span = sum(job.gpus * job.exclusive_seconds for job in jobs) / (gpus * load)
    moments = _submissions(len(bursts), span, rng=rng).round(1).tolist()
    return tuple(
        replace(job, arrival_seconds=moment) for burst, moment in zip(bursts, moments, strict=True) for job in burst
    )


def _burst(study: Study, gpus: int, first: int, *, rng: np.random.Generator) -> list[Job]:
    """One submission: jobs of one person on equal gangs, alike in length."""
    sizes = [size for size in study.gangs if size <= gpus]
    shares = np.array([study.gangs[size] for size in sizes])
    gang = int(rng.choice(sizes, p=shares / shares.sum()))
    median = study.median_seconds * study.gang_factor ** np.log2(gang)
    centre = median * np.exp(study.log_sigma * rng.standard_normal())
    user = min(int(rng.zipf(1.6)), study.num_users)
    count = int(rng.geometric(1 / study.burst_mean))
    lengths = centre * np.exp(ALIKE_SIGMA * rng.standard_normal(count) * (count > 1))
    early = rng.random(count) < study.early_share
    lengths = np.where(early, lengths * np.exp(rng.uniform(*EARLY_END_LOG_RANGE, count)), lengths)
    lengths = np.clip(lengths, 10.0, study.longest_seconds)
    return [
        Job(
            id=str(first + index), gpus=gang, regimes=_work(study, float(seconds), rng=rng), user=f"user-{user}",
            kind=f"{gang} GPU{'s' * (gang > 1)}",
        )
        for index, seconds in enumerate(lengths)
    ]  # fmt: skip


def _work(study: Study, seconds: float, *, rng: np.random.Generator) -> tuple[Regime, ...]:
    """Epochs of equal length, or of two to four lengths as the batch grows; the run time in all is `seconds`."""
    epochs = int(rng.integers(*EPOCHS))
    scales = rng.random() < study.regime_share
    count = int(rng.integers(2, 5)) if scales else 1
    first = int(rng.integers(0, len(BATCHES) - count + 1))
    lengths = np.maximum(1.0, np.round(rng.dirichlet(np.full(count, 2.0)) * epochs))
    paces = np.cumprod([1.0, *rng.uniform(0.5, 0.9, count - 1)])
    paces *= seconds / float(lengths @ paces)
    return tuple(
        Regime(num_units=float(units), seconds_per_unit=float(pace), batch_size=BATCHES[first + index])
        for index, (units, pace) in enumerate(zip(lengths, paces, strict=True))
    )


def _submissions(count: int, span_seconds: float, *, rng: np.random.Generator) -> np.ndarray:
    """Moments of submissions within the span, denser by day; the first is zero."""
    grid = np.linspace(0.0, span_seconds, 1_000)
    phase = rng.uniform(0.0, DAY_SECONDS)
    rate = 1.0 - NIGHT_SHARE / 2 * (1.0 + np.cos(2 * np.pi * (grid + phase) / DAY_SECONDS))
    reached = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)])
    moments = np.sort(np.interp(rng.random(count), reached / reached[-1], grid))
    return np.asarray(moments - moments[0])
