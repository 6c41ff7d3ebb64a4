"""What has been applied at this server, and the waiting for it.

In: the write-backs of each worker as they are applied (never when they arrive). Out: for a read, whether the rows it
found are the ones it may see. A row whose version the plan knows is ready when the stored version equals it; if it is
older although all write-backs up to the step that the read names are applied, it was lost, and the read says so at
once. A row the plan has forgotten is ready when all of these are applied. There is no barrier: a read waits for its own
rows only. A run is one start of all trainers: it begins when worker 0 opens it at a commit, or when its first trainer
joins, and who still writes for an older run is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition, RLock

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64
from foresee.errors import LostWriteError, StaleReadError, StoreUnavailableError, UsageError
from foresee.plan.record import UNKNOWN_VERSION

GONE_POLL_SECONDS = 1.0
"""How often a parked read looks whether its client is still there."""


def not_ready(rows: Int64, expected: Int32, found: Int32, *, not_before: int, all_applied: bool) -> NDArray[np.bool_]:
    """Which rows have to wait. Raises if a row can never become what is expected: versions only rise, and nothing
    that it could still get is under way once all write-backs up to `not_before` are applied."""
    known = expected != UNKNOWN_VERSION
    beyond = known & (found > expected)
    if beyond.any():
        first = int(np.argmax(beyond))
        raise StaleReadError(
            f"row {rows[first]} is stored in version {found[first]}, the plan expects {expected[first]}; these tables "
            "are not as this run left them: resume from the last commit"
        )
    waiting: NDArray[np.bool_] = known & (found != expected)
    # A version is 1 + a step: a read that names an earlier step says nothing of that step's write-backs.
    lost = waiting & (expected <= not_before + 1) & all_applied
    if lost.any():
        first = int(np.argmax(lost))
        raise LostWriteError(
            f"row {rows[first]} is stored in version {found[first]}, the plan expects {expected[first]}, and all "
            f"write-backs up to step {not_before} are applied: the row's write-back was lost; resume from the last "
            "commit, and check the server's disk and memory if it happens again"
        )
    return waiting if all_applied else np.logical_or(waiting, ~known)


class Applied:
    """The steps each worker has applied. Every method may be called from any thread."""

    def __init__(self, committed_step: int) -> None:
        self._changed = Condition(RLock())
        self._generation = 0
        self._stopping = False
        self._committed_step = committed_step
        self.run: str | None = None
        self.epoch = 0
        """Rises with every run."""
        self.opened_at: int | None = None
        """Where the run was opened; None if it began by joining."""
        self.started = 0
        """When the run was started (see store.commits)."""
        self.watermarks: list[int] = []
        """For each worker the last step whose write-backs are all applied."""

    @property
    def generation(self) -> int:
        """Rises with everything that is applied."""
        return self._generation

    def begin(self, run: str, num_workers: int, step: int, *, opened: bool, started: int = 0) -> None:
        """A new run; whoever waits for an older one is told so."""
        with self._changed:
            self.run, self.watermarks = run, [step - 1] * num_workers
            self.epoch += 1
            self.opened_at, self.started = step if opened else None, started
            if opened:
                self._committed_step = step
            self._generation += 1
            self._changed.notify_all()

    def join(self, run: str, worker: int, num_workers: int, first_step: int | None, *, opened: bool = False) -> None:
        """A worker of a run is here. The first one of a new run begins it, unless it says that it was opened."""
        if not 0 <= worker < num_workers:
            raise UsageError(f"worker {worker} of {num_workers} workers cannot be: workers count from 0")
        with self._changed:
            if opened:
                self.check_run(run)
            if run != self.run:
                first = self._committed_step if first_step is None else first_step
                self.begin(run, num_workers, first, opened=False)
            elif num_workers != len(self.watermarks):
                raise UsageError(
                    f"run {run!r} has {len(self.watermarks)} workers here, worker {worker} says {num_workers}; "
                    "start all trainers with the same number of workers"
                )

    def check_run(self, run: str | None) -> None:
        """Refuses whoever does not belong to the run that is served now."""
        if run is None or run != self.run:
            raise StoreUnavailableError(
                f"run {run!r} is not the one served here, which is {self.run!r}; "
                "its trainers were replaced by newer ones: end this one"
            )

    def check_worker(self, worker: int) -> None:
        """Refuses a worker that the run does not have."""
        if not 0 <= worker < len(self.watermarks):
            raise UsageError(f"worker {worker} is not one of the {len(self.watermarks)} workers of run {self.run!r}")

    def rows_written(self) -> None:
        with self._changed:
            self._generation += 1
            self._changed.notify_all()

    def raise_to(self, run: str | None, worker: int, step: int) -> None:
        """All write-backs of this worker up to `step` are applied. A step that comes again changes nothing."""
        with self._changed:
            self.check_run(run)
            self.check_worker(worker)
            self.watermarks[worker] = max(self.watermarks[worker], step)
            self._generation += 1
            self._changed.notify_all()

    def all_reached(self, step: int) -> bool:
        return all(reached >= step for reached in self.watermarks)

    def committed(self, step: int) -> None:
        self._committed_step = step

    def stop(self) -> None:
        """Ends all waiting."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def wait_for_change(
        self, generation: int, deadline: float, *, is_gone: Callable[[], bool], waiting_for: Callable[[], str]
    ) -> None:
        """Returns when something was applied after `generation`; raises at the deadline (time.monotonic)."""
        with self._changed:
            while self._generation == generation:
                remaining = deadline - time.monotonic()
                if self._stopping:
                    raise StoreUnavailableError("it is stopping; start it again and resume from the last commit")
                if remaining <= 0 or is_gone():
                    raise StoreUnavailableError(f"{waiting_for()}; look for a trainer that hangs or has ended")
                self._changed.wait(min(remaining, GONE_POLL_SECONDS))

    def sentence(self) -> str:
        """How far each worker is, for an error."""
        steps = ", ".join(f"worker {worker} {step}" for worker, step in enumerate(self.watermarks))
        return f"applied up to step: {steps or 'no worker is here'}"
