"""How long a job will still run, from what is known of it so far.

In: the job's description and its progress. Out: seconds of run time left on its own GPUs.
`reactive` knows only the speed at present, `regimes` also which speeds the job will ever have but not for how long
(Shockwave's predictor), `oracle` knows the job's own description to the end. `with_error` spoils any of them, job by
job.
Never: look at the execution itself; an estimator sees what a scheduler could see.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from statistics import NormalDist
from typing import NamedTuple

from foresee.cluster.job import Job, Regime
from foresee.errors import PlanError

LEAST_SECONDS = 1.0
ASSUMED_ERROR = 0.05
"""Spread of log errors taken for granted until jobs have finished."""
KEPT_WITHIN = 0.8
KEPT_WITHIN_SIGMAS = 1.2816
"""The spread is read off the error that this share of jobs keeps within: so many standard deviations of a normal."""


class Progress(NamedTuple):
    """What anyone can observe of a job."""

    units_done: float
    seconds_per_unit: float
    """Speed at present."""


Estimator = Callable[[Job, Progress], float]


def reactive(job: Job, progress: Progress) -> float:
    """All that is left goes on at the present speed."""
    return max(LEAST_SECONDS, (job.num_units - progress.units_done) * progress.seconds_per_unit)


def oracle(job: Job, progress: Progress) -> float:
    """The job's own description, to the end."""
    return max(LEAST_SECONDS, job.seconds_after(progress.units_done))


def regimes(job: Job, progress: Progress) -> float:
    """Dirichlet counts over the job's modes, restated by the epochs seen: Shockwave's predictor.

    Prior: units split evenly over the modes. Every unit seen, the one in progress included, adds one to its mode;
    expected units per mode then lose those already seen. What is left over is scaled to the units that truly remain.
    """
    return _expected_seconds(job.regimes, math.floor(progress.units_done))


@lru_cache(maxsize=100_000)  # most live jobs wait, and then nothing about them changes from round to round
def _expected_seconds(regimes: tuple[Regime, ...], seen: int) -> float:
    total = math.fsum(regime.num_units for regime in regimes)
    remaining = total - seen
    if remaining <= 0:
        return LEAST_SECONDS
    modes = _Modes.of(regimes)
    observed = modes.units_within(seen + 1)
    counts = [total / len(observed) + units for units in observed]
    expected = [total * count / sum(counts) for count in counts]
    left = [_restated(units, gone) for units, gone in zip(expected, observed, strict=True)]
    inflated = max(int(sum(left)) + 1, remaining)
    seconds = sum(units * each for units, each in zip(left, modes.seconds_per_unit, strict=True))
    return max(LEAST_SECONDS, seconds * remaining / inflated)


def _restated(expected: float, seen: float) -> float:
    """Expected units of a mode less those seen, one at a time while a whole one is left."""
    return expected - min(seen, math.floor(expected))


@dataclass(frozen=True, slots=True)
class _Modes:
    """A job's regimes by mode: equal batch sizes are one mode, whatever the order they come in."""

    seconds_per_unit: tuple[float, ...]
    lengths: tuple[tuple[int, float], ...]
    """(mode, units), regime after regime."""

    @classmethod
    def of(cls, regimes: tuple[Regime, ...]) -> _Modes:
        keyed = [(regime.batch_size or regime.seconds_per_unit, regime) for regime in regimes]
        keys = sorted({key for key, _ in keyed})
        means = []
        for key in keys:
            same = [regime for other, regime in keyed if other == key]
            means.append(sum(regime.seconds for regime in same) / sum(regime.num_units for regime in same))
        return cls(tuple(means), tuple((keys.index(key), regime.num_units) for key, regime in keyed))

    def units_within(self, units: float) -> list[float]:
        """Units of each mode among the first `units`."""
        counts = [0.0] * len(self.seconds_per_unit)
        for mode, length in self.lengths:
            counts[mode] += min(length, max(units, 0.0))
            units -= length
        return counts


class ErrorRecord:
    """How wrong the estimates on arrival were, over the jobs that have finished since."""

    # Until jobs have finished the spread is assumed, as if this many jobs had shown it.
    ASSUMED_JOBS = 10

    def __init__(self, assumed_spread: float) -> None:
        self._deviations = [assumed_spread * KEPT_WITHIN_SIGMAS] * self.ASSUMED_JOBS

    def add(self, estimated_seconds: float, true_seconds: float) -> None:
        if estimated_seconds > 0 and true_seconds > 0:
            insort(self._deviations, abs(math.log(true_seconds / estimated_seconds)))

    @property
    def spread(self) -> float:
        """Standard deviation of log(true / estimated), by the error that four jobs in five keep within.

        The median would be blind where most jobs keep one speed and are estimated exactly, and the mean is ruled by a
        few wild ones.
        """
        return self._deviations[int(KEPT_WITHIN * len(self._deviations))] / KEPT_WITHIN_SIGMAS


DEFAULT_ESTIMATOR = "regimes"
ESTIMATORS: dict[str, Estimator] = {"reactive": reactive, "regimes": regimes, "oracle": oracle}


def estimator_named(name: str) -> Estimator:
    if name not in ESTIMATORS:
        raise PlanError(f"estimator {name!r} is not known: choose one of {', '.join(ESTIMATORS)}")
    return ESTIMATORS[name]


def assumed_error(name: str) -> float:
    """Spread of log errors to tell policies of before jobs have shown it: who reads the descriptions makes none."""
    return 0.0 if name == "oracle" else ASSUMED_ERROR


def with_error(estimator: Estimator, *, sigma: float, seed: int) -> Estimator:
    """The estimator, off by one log-normal factor per job that never corrects itself while the job runs."""
    factors: dict[str, float] = {}

    def estimate(job: Job, progress: Progress) -> float:
        if job.id not in factors:
            factors[job.id] = math.exp(sigma * normal_of(f"{seed}:{job.id}"))
        return max(LEAST_SECONDS, factors[job.id] * estimator(job, progress))

    return estimate


def normal_of(key: str) -> float:
    """A standard normal number that depends on the key alone, so jobs keep their error whatever else is simulated."""
    digest = int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")
    return NormalDist().inv_cdf((digest + 0.5) / 2**64)
