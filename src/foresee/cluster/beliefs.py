"""What is believed of a job's run time left: a median and a spread, not a point.

In: a live job with its estimate, and the spread of the errors estimates have shown. Out: a `Belief`, log-normal.
A job that has not run is as uncertain as jobs were that have finished. One that runs can be watched: an estimate that
shrinks by two seconds per second of service is twice too long, so the error of its own pace is taken out as far as
the errors of others make it likely to be one. A job that outruns its estimate has no estimate left; having got so far
it will go on for a part of the time it has had.
Never: look at the job's description; what is believed follows from estimates and service alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from foresee.cluster.estimators import ASSUMED_ERROR, LEAST_SECONDS
from foresee.cluster.simulation import Live

PACE_NOISE = 0.1
"""Spread of log(pace) of a job whose estimate is right: epochs are counted whole, speeds change."""
QUARTILE = 0.674


class Belief(NamedTuple):
    seconds: float
    """Median run time left."""
    spread: float
    """Standard deviation of its logarithm."""

    @property
    def likely_least(self) -> float:
        """One job in six has less."""
        return self.seconds * math.exp(-self.spread)

    @property
    def likely_most(self) -> float:
        """One job in six has more."""
        return self.seconds * math.exp(self.spread)


def believe(entry: Live) -> Belief:
    spread = entry.estimate_error
    seconds = entry.remaining_seconds
    run = entry.served_seconds - entry.job.done_seconds
    if run > 0 and seconds <= LEAST_SECONDS:
        # Of the jobs that last longer than their median, half last QUARTILE spreads longer.
        seconds = max(seconds, run * (math.exp(QUARTILE * spread) - 1.0))
    elif run > 0 and spread > 0 and seconds < entry.first_estimate_seconds:
        pace = (entry.first_estimate_seconds - seconds) / run
        trust = spread**2 / (spread**2 + PACE_NOISE**2)
        seconds = max(LEAST_SECONDS, seconds * pace**-trust)
        spread *= math.sqrt(1.0 - trust)
    return Belief(seconds, spread)


def never_certain(belief: Belief) -> Belief:
    """The belief with the spread that is taken for granted before any job has shown its own."""
    return Belief(belief.seconds, max(belief.spread, ASSUMED_ERROR))
