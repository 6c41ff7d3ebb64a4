"""Job profiles as Shockwave's published code sees them, for runs that are compared with its stored results.

In: live jobs. Out: the same jobs with the profile and the run time left that the published scheduler would work with.
It keeps epoch times in whole seconds, never below one, and rescales a profile when measured speeds contradict it by
more than 40 %; the measurement counts waiting rounds as if the job had run, so jobs that wait long are distorted.
Planning is better without it: nothing uses it unless asked to.
Never: change what the simulator knows; only the policy's view is restated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from foresee.cluster.estimators import Progress, regimes
from foresee.cluster.job import Job
from foresee.cluster.simulation import Live

DISAGREEMENT = 0.4


@dataclass
class _Measured:
    """Units a job would have done by now had it always run at the speeds measured when it did run."""

    units: float = 0.0
    round_index: int = 0
    factor: float = 1.0

    def add(self, round_index: int, seconds_per_unit: float, round_seconds: float) -> None:
        self.units += round_seconds * (round_index - self.round_index) / seconds_per_unit
        self.round_index = round_index

    def restate(self, job: Job, round_seconds: float) -> None:
        seconds = round_seconds * self.round_index
        profiled = _units_within(job, seconds)
        if self.units > 0 and abs(self.units - profiled) > DISAGREEMENT * profiled:
            self.factor = profiled / self.units


@dataclass
class PublishedProfiles:
    """Called once a round with the live jobs; remembers what it measured."""

    round_seconds: float
    _round: int = -1
    _measured: dict[str, _Measured] = field(default_factory=dict)

    def __call__(self, live: Sequence[Live]) -> list[Live]:
        self._round += 1
        return [self._restated(entry) for entry in live]

    def _restated(self, entry: Live) -> Live:
        measured = self._measured.setdefault(entry.id, _Measured())
        profile = _stretched(entry.job, 1.0)
        if entry.running:
            measured.add(self._round, entry.seconds_per_unit, self.round_seconds)
            measured.restate(profile, self.round_seconds)
        job = _stretched(profile, measured.factor) if measured.factor != 1.0 else profile
        progress = Progress(units_done=entry.units_done, seconds_per_unit=entry.seconds_per_unit)
        return replace(entry, job=job, remaining_seconds=regimes(job, progress))


def _stretched(job: Job, factor: float) -> Job:
    stretched = tuple(
        replace(regime, seconds_per_unit=factor * max(1.0, round(regime.seconds_per_unit))) for regime in job.regimes
    )
    return replace(job, regimes=stretched)


def _units_within(job: Job, seconds: float) -> float:
    """Units the profile says are done after so many seconds alone, its last regime going on for ever."""
    units = 0.0
    for regime in job.regimes:
        used = min(seconds, regime.seconds)
        units += used / regime.seconds_per_unit
        seconds -= used
    return units + seconds / job.regimes[-1].seconds_per_unit
