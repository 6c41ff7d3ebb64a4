"""The program Shockwave solves over the next rounds, and HiGHS as one of its two solvers (the other is greedy.py).

    maximise  (1/(N T)) Σ weight_i log(progress_i)  −  k max_i remaining_i
    subject to whole gangs, the GPUs of each round, and at least `least_rounds_i` rounds for job i,

where log is taken piecewise linear. The value depends on a schedule only through how many rounds each job gets. In: for
each live job its GPUs, progress, speed, run time left and weight; a time limit. Out: for every round the jobs that run.
The published code models log with binaries; log is concave and maximised, so one linear cut per segment is enough. A
second, small program puts each job's rounds in time, heavier jobs earlier. Without a solution in time: None.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.io.optional import OptionalModule

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


sparse: Any = OptionalModule("scipy.sparse")
optimize: Any = OptionalModule("scipy.optimize")
_Rows = tuple[Any, float | Floats | Ints, float | Floats | Ints]
"""Linear constraints: sparse matrix, lower and upper limits."""


def solve_highs(window: Window, *, time_limit_seconds: float = 5.0, gap: float = 1e-3) -> list[list[int]] | None:
    """Jobs (as indices) of each round; None if the program is infeasible or no solution was found in time."""
    rounds = best_rounds(window, time_limit_seconds=time_limit_seconds, gap=gap)
    return None if rounds is None else _spread(window, rounds, time_limit_seconds, gap)


def best_rounds(window: Window, *, time_limit_seconds: float = 5.0, gap: float = 1e-3) -> Ints | None:
    """Rounds per job. Variables: runs [jobs * rounds] binary, units [jobs], log [jobs], longest remaining time."""
    jobs, rounds = window.num_jobs, window.num_rounds
    num_runs = jobs * rounds
    identity, zeros = sparse.identity(jobs), sparse.csr_matrix
    per_job = sparse.kron(sparse.identity(jobs), np.ones((1, rounds)))  # sums a job's runs
    pace = sparse.diags(window.seconds_per_unit)
    none, column = zeros((jobs, jobs)), zeros((jobs, 1))
    rows: list[_Rows] = [
        (sparse.hstack([_capacity(window), zeros((rounds, 2 * jobs + 1))]), -np.inf, window.capacity_gpus),
        (sparse.hstack([-window.round_seconds * per_job, pace, none, column]), -np.inf, 0.0),
        (sparse.hstack([zeros((jobs, num_runs)), pace, none, np.ones((jobs, 1))]), window.remaining_seconds, np.inf),
        (sparse.hstack([per_job, none, none, column]), window.least_rounds.astype(float), np.inf),
    ]
    for slope, offset in _log_segments():
        units = sparse.diags(-slope / window.units_total)
        limit = offset + slope * window.units_done / window.units_total
        rows.append((sparse.hstack([zeros((jobs, num_runs)), units, identity, column]), -np.inf, limit))
    cost = np.concatenate([np.zeros(num_runs + jobs), -window.weights / (jobs * rounds), [window.makespan_weight]])
    upper = np.concatenate([np.ones(num_runs), window.units_total - window.units_done, np.zeros(jobs), [np.inf]])
    lower = np.concatenate([np.zeros(num_runs + jobs), np.full(jobs, LOG_KNOTS[0]), [0.0]])
    solution = _solve(cost, rows, optimize.Bounds(lower, upper), num_runs, time_limit_seconds, gap)
    return None if solution is None else solution[:num_runs].reshape(jobs, rounds).round().sum(axis=1).astype(np.int64)


def _spread(window: Window, rounds: Ints, time_limit_seconds: float, gap: float) -> list[list[int]] | None:
    """Least weighted mean position of the rounds each job was given."""
    weight = np.where(rounds > 0, window.weights / np.maximum(rounds, 1), 0.0)
    cost = np.outer(weight, np.arange(window.num_rounds)).ravel()
    per_job = sparse.kron(sparse.identity(window.num_jobs), np.ones((1, window.num_rounds)))
    rows: list[_Rows] = [(_capacity(window), -np.inf, window.capacity_gpus), (per_job, rounds, rounds)]
    solution = _solve(cost, rows, optimize.Bounds(0, 1), len(cost), time_limit_seconds, gap)
    if solution is None:
        return None
    runs = solution.reshape(window.num_jobs, window.num_rounds).round().astype(bool)
    return [np.flatnonzero(runs[:, index]).tolist() for index in range(window.num_rounds)]


def _capacity(window: Window) -> Any:
    return sparse.kron(window.gpus[None, :], sparse.identity(window.num_rounds))


def _log_segments() -> list[tuple[float, float]]:
    """Slope and offset of each linear piece of the logarithm."""
    slopes = np.diff(LOG_KNOTS) / np.diff(PROGRESS_KNOTS)
    offsets = LOG_KNOTS[:-1] - slopes * PROGRESS_KNOTS[:-1]
    return list(zip(slopes.tolist(), offsets.tolist(), strict=True))


def _solve(
    cost: Floats, rows: list[_Rows], bounds: Any, num_integer: int, time_limit_seconds: float, gap: float
) -> Floats | None:
    integrality = np.zeros(len(cost))
    integrality[:num_integer] = 1
    result = optimize.milp(
        cost,
        constraints=[optimize.LinearConstraint(sparse.csr_matrix(matrix), low, high) for matrix, low, high in rows],
        bounds=bounds,
        integrality=integrality,
        options={"time_limit": time_limit_seconds, "mip_rel_gap": gap},
    )
    return None if result.x is None else np.asarray(result.x)
