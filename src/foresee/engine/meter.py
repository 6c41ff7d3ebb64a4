"""What a run does, measured between two readings.

In: the loss and the logits of every step, and the run's own counters and waiting times. Out: a `Reading`. One meter
for each reader: the display and the metrics file read at different intervals.

Time counts from the end of the first step on: before it kernels are compiled and a window is planned, and the loop
waits for that and not for rows. What a run that goes on fetches to fill its cache is no miss of its first step.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from foresee.engine.loop import Run
from foresee.engine.metrics import MetricsWindow
from foresee.engine.progress import Reading
from foresee.plan.record import Counters


class Meter:
    """Sums since the last reading."""

    def __init__(
        self, run: Run, window: MetricsWindow, *, samples_before: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._run, self._window, self._clock = run, window, clock
        self._begun = clock()
        self._samples = samples_before
        self._warm = False
        """The first step is done."""
        self._loss, self._num_steps, self._num_samples = 0.0, 0, 0
        self._forget()

    def add(self, loss: float, num_samples: int) -> None:
        """Counts a step in."""
        self._loss += loss
        self._num_steps += 1
        self._samples += num_samples
        if self._warm:
            self._num_samples += num_samples
        else:
            self._warm, self._last, self._waited = True, self._clock(), self._run.times.rows_seconds

    def read(self) -> Reading:
        """The interval since the last reading; a new one begins."""
        now, counters = self._clock(), self._run.counters
        seconds, timed = max(now - self._last, 1e-9), self._num_samples > 0
        num_unique = counters.num_unique - self._counters.num_unique
        num_fetched = counters.num_fetched - self._counters.num_fetched - (self._run.rows_refilled - self._refilled)
        reading = Reading(
            step=self._run.steps_done,
            num_steps=self._run.stream.num_steps,
            samples=self._samples,
            seconds=now - self._begun,
            loss=self._loss / max(1, self._num_steps),
            auc=self._window.result().auc,
            samples_per_second=self._num_samples / seconds if timed else None,
            hit_rate=1.0 - num_fetched / num_unique if num_unique else None,
            wait_share=min(1.0, (self._run.times.rows_seconds - self._waited) / seconds) if timed else None,
        )
        self._forget()
        return reading

    def _forget(self) -> None:
        self._last = self._clock()
        self._counters: Counters = self._run.counters
        self._waited, self._refilled = self._run.times.rows_seconds, self._run.rows_refilled
        self._loss, self._num_steps, self._num_samples = 0.0, 0, 0
