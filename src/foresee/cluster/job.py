"""A job of a shared cluster, and the cluster itself, as plain values; and seconds in words (`3 h 05 min`).

In: what a person or a trace says about a job (GPUs, work, arrival, weight, user).
Out: frozen records that every other file of this folder passes around.
Work is a list of regimes: so many units (epochs, or plain seconds) at so many seconds each on the job's own GPUs.
Never: clocks, files, or any opinion about who should run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from foresee.cluster.batch_scaling import StepProfile
from foresee.errors import PlanError


@dataclass(frozen=True, kw_only=True, slots=True)
class Regime:
    """A stretch of a job's life in which its speed does not change."""

    num_units: float
    """Units of work in this stretch, above zero; an epoch where epochs are known, else one second of run time."""
    seconds_per_unit: float
    """Run time of one unit when the job has all its GPUs, above zero."""
    batch_size: int = 0
    """The batch size that makes the speed what it is; regimes of equal batch size are the same mode. 0: unknown."""

    @property
    def seconds(self) -> float:
        return self.num_units * self.seconds_per_unit


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One gang: it runs on all of its GPUs or not at all."""

    id: str
    gpus: int
    regimes: tuple[Regime, ...]
    arrival_seconds: float = 0.0
    done_seconds: float = 0.0
    """Run time already behind it when the plan begins; part of its work."""
    paused: bool = False
    """It was stopped after what it has done and waits as the plan begins; else a job with progress is running then."""
    started_seconds: float | None = None
    """When it started, if it is running as the plan begins: it then keeps its GPUs to its end."""
    weight: float = 1.0
    """How much of the cluster the job is entitled to, relative to the others."""
    user: str = ""
    kind: str = ""
    """Class of the job, for tables by class: a model's name, a queue, a virtual cluster."""
    steps: StepProfile | None = None
    """Step-level behaviour where a trace has it; the simulator then follows steps, not regimes."""

    @property
    def num_units(self) -> float:
        return math.fsum(regime.num_units for regime in self.regimes)

    @property
    def changes_speed(self) -> bool:
        """It has more than one mode, which its owner knows; for how long it stays in each nobody need know."""
        return len(self.regimes) > 1

    @property
    def exclusive_seconds(self) -> float:
        """Run time alone on the cluster, by the job's own description."""
        return sum(regime.seconds for regime in self.regimes)

    @property
    def runs_at_begin(self) -> bool:
        """It runs as the plan begins, so going on costs no restart."""
        return self.started_seconds is not None or bool(self.done_seconds and not self.paused)

    @property
    def left_seconds(self) -> float:
        """Run time the plan has to find room for."""
        return self.exclusive_seconds - self.done_seconds

    def seconds_after(self, units_done: float) -> float:
        """Run time of what is left once `units_done` units are done."""
        left, skip = 0.0, units_done
        for regime in self.regimes:
            skipped = min(skip, regime.num_units)
            left += (regime.num_units - skipped) * regime.seconds_per_unit
            skip -= skipped
        return left

    def seconds_per_unit_at(self, units_done: float) -> float:
        """Speed of the unit in progress once `units_done` units are done."""
        reached = 0.0
        for regime in self.regimes:
            reached += regime.num_units
            if units_done < reached:
                return regime.seconds_per_unit
        return self.regimes[-1].seconds_per_unit


def work_of_seconds(seconds: float) -> tuple[Regime, ...]:
    """Work of which only the run time is known: one regime, whose unit is a second."""
    return (Regime(num_units=seconds, seconds_per_unit=1.0),)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The machine: equal GPUs, scheduled in rounds."""

    gpus: int
    round_seconds: float = 120.0
    restart_seconds: float = 20.0
    """Lost when a job runs in a round without having run in the one before (saving, loading, warming up)."""
    gpus_per_server: int | None = None
    """Size of a server; None is one flat pool in which place does not matter."""
    locality_penalty: float = 0.0
    """Share of its speed a job loses when it is spread over more servers than it needs."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise PlanError(f"a cluster of {self.gpus} GPUs cannot run anything: give gpus of at least 1")
        if not 0 <= self.restart_seconds < self.round_seconds:
            raise PlanError(
                f"restart_seconds={self.restart_seconds:g} does not leave anything of a round of "
                f"{self.round_seconds:g} s: make rounds longer than a restart"
            )
        if self.gpus_per_server is not None and self.gpus_per_server < 1:
            raise PlanError(f"gpus_per_server={self.gpus_per_server}: give at least 1, or none for one flat pool")
        if not 0 <= self.locality_penalty < 1:
            raise PlanError(f"locality_penalty={self.locality_penalty:g} must be at least 0 and below 1")


def check_jobs(jobs: Iterable[Job], cluster: Cluster) -> tuple[Job, ...]:
    """The jobs in order of arrival, or the first reason why they cannot be planned on this cluster."""
    seen: set[str] = set()
    for job in (checked := sorted(jobs, key=lambda job: job.arrival_seconds)):
        reason = _fault(job, cluster)
        if job.id in seen:
            reason = "its id is used twice: give each job its own"
        if reason:
            raise PlanError(f"job {job.id!r} cannot be planned: {reason}")
        seen.add(job.id)
    held = sum(job.gpus for job in checked if job.started_seconds is not None)
    if held > cluster.gpus:
        raise PlanError(
            f"the jobs that are running hold {held} GPUs and the cluster has {cluster.gpus}: "
            f"give gpus of at least {held}"
        )
    return tuple(checked)


def _fault(job: Job, cluster: Cluster) -> str:
    if job.gpus < 1:
        return f"it asks for {job.gpus} GPUs, expected at least 1"
    if job.gpus > cluster.gpus:
        return f"it asks for {job.gpus} GPUs and the cluster has {cluster.gpus}: give it fewer, or plan with more GPUs"
    if not _positive([regime.seconds for regime in job.regimes]):
        return f"its work is {job.exclusive_seconds:g} s, expected regimes that each take a positive time"
    if not 0 <= job.done_seconds < job.exclusive_seconds or (job.done_seconds and job.steps):
        return (
            f"{job.done_seconds:g} s of its {job.exclusive_seconds:g} s are done, expected less than all, and steps new"
        )
    if job.started_seconds is not None and not job.arrival_seconds <= job.started_seconds < math.inf:
        return f"it started at {job.started_seconds:g} s, expected no earlier than it arrived"
    if job.paused and job.started_seconds is not None:
        return "it is paused and running at once: leave out one of the two"
    if not (math.isfinite(job.arrival_seconds) and job.arrival_seconds >= 0):
        return f"it arrives at {job.arrival_seconds:g} s, expected zero or later"
    if not (math.isfinite(job.weight) and job.weight > 0):
        return f"its weight is {job.weight:g}, expected a positive number"
    return ""


def _positive(seconds: Sequence[float]) -> bool:
    return bool(seconds) and all(math.isfinite(value) and value > 0 for value in seconds)


def in_words(seconds: float) -> str:
    if seconds < 0:
        return f"-{in_words(-seconds)}"
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"
