"""How far a job has come, and what one round of service adds to it.

In: rounds of service. Out: seconds used, units done, whether it is finished.
Two kinds with one contract: `RegimeExecution` serves seconds of described work; `StepExecution` counts training steps
and changes batch sizes exactly as the published simulator does, quirks included, so that its schedules can be
replayed.
Never: decide who runs, or know of other jobs.
"""

from __future__ import annotations

import math
from typing import Protocol

from foresee.cluster.batch_scaling import LARGEST_BATCH, StepProfile, wanted_batch
from foresee.cluster.job import Job

FINISHED_WITHIN_SECONDS = 1e-9


class Execution(Protocol):
    """One job's progress. A round is `offer`, then `serve`, then `end_round`."""

    served_seconds: float
    """Useful run time so far, restarts not counted."""

    @property
    def finished(self) -> bool: ...

    @property
    def units_done(self) -> float: ...

    @property
    def seconds_per_unit(self) -> float:
        """Speed at present."""
        ...

    @property
    def steps_per_second(self) -> float:
        """Speed at present as the job itself counts it: steps where they are known, else units."""
        ...

    def offer(self, round_seconds: float, restart_seconds: float, speed: float) -> float:
        """Seconds of the coming round the job would take up, restart included."""
        ...

    def serve(self, elapsed_seconds: float, restart_seconds: float, speed: float) -> float:
        """Take up `elapsed_seconds` of the round; returns the useful part."""
        ...

    def end_round(self) -> None:
        """The round is over, whether the job ran or not."""
        ...


def start_execution(job: Job) -> Execution:
    return RegimeExecution(job) if job.steps is None else StepExecution(job.steps)


class RegimeExecution:
    """Serves described work second by second: what is served in all equals the work exactly."""

    def __init__(self, job: Job) -> None:
        self._regimes = tuple((regime.num_units, regime.seconds_per_unit, regime.seconds) for regime in job.regimes)
        self._work_seconds = job.exclusive_seconds
        self.served_seconds = job.done_seconds
        self._look()

    def _look(self) -> None:
        """Note what can be seen of the job; it stays so until it is served again."""
        units, left, reached = 0.0, self.served_seconds, 0.0
        for _, seconds_per_unit, seconds in self._regimes:
            spent = min(left, seconds)
            units += spent / seconds_per_unit
            left -= spent
        self.remaining_seconds = self._work_seconds - self.served_seconds
        self.finished = self.remaining_seconds <= FINISHED_WITHIN_SECONDS
        self.units_done = units
        for num_units, seconds_per_unit, _ in self._regimes:
            reached += num_units
            self.seconds_per_unit = seconds_per_unit
            if units < reached:
                break
        self.steps_per_second = 1 / self.seconds_per_unit

    def offer(self, round_seconds: float, restart_seconds: float, speed: float) -> float:
        return min(round_seconds, restart_seconds + self.remaining_seconds / speed)

    def serve(self, elapsed_seconds: float, restart_seconds: float, speed: float) -> float:
        served = min(self.remaining_seconds, (elapsed_seconds - restart_seconds) * speed)
        if self.remaining_seconds - served <= FINISHED_WITHIN_SECONDS:
            served = self.remaining_seconds
        self.served_seconds += served
        self._look()
        return elapsed_seconds - restart_seconds

    def end_round(self) -> None:
        pass


class StepExecution:
    """Counts steps as the published simulator does; its oddities are kept because its schedules depend on them."""

    # A restart is charged only to rounds that are used nearly in full.
    SHORT_ROUND_SECONDS = 5.0
    # A batch change can leave a job with nothing to do; it then "fails" this often before it is let go.
    EMPTY_ROUNDS_MAX = 5

    def __init__(self, profile: StepProfile) -> None:
        self._profile = profile
        self._batch_size = profile.batch_size
        self._steps_done = 0
        self._steps_total = profile.num_steps
        self._offered_steps = 0
        self._round_seconds = 0.0
        self._empty_rounds = 0
        self._wanted: int | None = None
        self.served_seconds = 0.0
        self.finished = False

    @property
    def units_done(self) -> float:
        return self._steps_done / self._profile.steps_per_epoch(self._batch_size)

    @property
    def seconds_per_unit(self) -> float:
        return self._profile.steps_per_epoch(self._batch_size) / self.steps_per_second

    @property
    def steps_per_second(self) -> float:
        return self._profile.steps_per_second[self._batch_size]

    def offer(self, round_seconds: float, restart_seconds: float, speed: float) -> float:
        steps_per_second = self.steps_per_second * speed
        self._round_seconds = round_seconds
        self._offered_steps = min(int(steps_per_second * round_seconds), self._steps_total - self._steps_done)
        return max(self._offered_steps, 0) / steps_per_second

    def serve(self, elapsed_seconds: float, restart_seconds: float, speed: float) -> float:
        steps = self._offered_steps
        if restart_seconds and elapsed_seconds > self._round_seconds - self.SHORT_ROUND_SECONDS:
            steps = int(steps * ((elapsed_seconds - restart_seconds) / elapsed_seconds))
            elapsed_seconds -= restart_seconds
        self.served_seconds += elapsed_seconds
        if steps <= 0 and elapsed_seconds <= 0:
            self._empty_rounds += 1
            self.finished = self._empty_rounds >= self.EMPTY_ROUNDS_MAX
        else:
            self._empty_rounds = 0
            self._steps_done += steps
            out_of_time = self.served_seconds > self._profile.run_seconds_max
            self.finished = self._steps_done >= self._steps_total or out_of_time
        self._change_batch()
        return elapsed_seconds

    def end_round(self) -> None:
        epoch = math.ceil(self._steps_done / self._profile.steps_per_epoch(self._batch_size))
        # A request stands until the job runs; later rounds can add one but never take it back.
        self._wanted = wanted_batch(self._profile, self._batch_size, epoch) or self._wanted

    def _change_batch(self) -> None:
        """Carry out a pending batch change, keeping the number of epochs in all and of epochs begun."""
        profile, wanted = self._profile, self._wanted
        self._wanted = None
        at_largest = profile.model != "Transformer" and profile.batch_size == LARGEST_BATCH[profile.model]
        if wanted is None or at_largest or wanted not in profile.steps_per_second:
            return
        before, after = profile.steps_per_epoch(self._batch_size), profile.steps_per_epoch(wanted)
        epochs_total = math.ceil(self._steps_total / before)
        rescaled = math.ceil(self._steps_total * (1 / (wanted / self._batch_size)))
        self._steps_total = rescaled if math.ceil(rescaled / after) == epochs_total else epochs_total * after
        self._steps_done = math.ceil(self._steps_done / before) * after
        self._batch_size = wanted
