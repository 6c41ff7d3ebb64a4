"""The program Shockwave solves over the next rounds.

In: for each live job its GPUs, progress, speed, run time left and weight. Out: a value for any number of rounds per
job.
    maximise  (1/(N T)) Σ weight_i log(progress_i)  −  k max_i remaining_i
    subject to whole gangs, the GPUs of each round, and at least `least_rounds_i` rounds for job i,
where log is taken piecewise linear. The value depends on a schedule only through how many rounds each job gets.
Never: solve it (greedy.py, highs.py), or say where weights come from (policies/shockwave.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Breakpoints of the logarithm, as published; log 0 is put at log 1e-6.
PROGRESS_KNOTS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
LOG_KNOTS = np.log(np.maximum(PROGRESS_KNOTS, 1e-6))


@dataclass(frozen=True, kw_only=True)
class Window:
    """One instance. All arrays have one entry per live job."""

    num_rounds: int
    round_seconds: float
    capacity_gpus: int
    makespan_weight: float
    """k: what one second of the longest remaining time costs."""
    gpus: Ints
    units_total: Floats
    units_done: Floats
    seconds_per_unit: Floats
    remaining_seconds: Floats
    weights: Floats
    least_rounds: Ints
    """Rounds a job must get whatever the value."""

    @property
    def num_jobs(self) -> int:
        return len(self.gpus)

    @cached_property
    def most_rounds(self) -> Ints:
        """Rounds beyond which a job has nothing left to do in the window."""
        seconds = (self.units_total - self.units_done) * self.seconds_per_unit
        return np.minimum(self.num_rounds, np.ceil(seconds / self.round_seconds)).astype(np.int64)

    def log_progress(self, rounds: Ints | Floats) -> Floats:
        """log of the share of its units a job has done after so many rounds; shape follows `rounds` [..., jobs]."""
        planned = np.minimum(rounds * self.round_seconds / self.seconds_per_unit, self.units_total - self.units_done)
        progress = (self.units_done + planned) / self.units_total
        return np.asarray(np.interp(progress, PROGRESS_KNOTS, LOG_KNOTS))

    def left_after(self, rounds: Ints | Floats) -> Floats:
        """Estimated run time left after so many rounds."""
        work = (self.units_total - self.units_done) * self.seconds_per_unit
        return np.maximum(0.0, self.remaining_seconds - np.minimum(rounds * self.round_seconds, work))

    def value(self, rounds: Ints | Floats) -> float:
        welfare = float(self.weights @ self.log_progress(rounds)) / (self.num_jobs * self.num_rounds)
        return welfare - self.makespan_weight * float(self.left_after(rounds).max())
