"""The plan of one run, made as it is asked for, with a bounded part of it kept.

In: a stream, the header of a plan, and workers that ask for their records from a step on. Out: batches of records. A
thread plans ahead of the farthest worker, `AHEAD_STEPS` and no more, and keeps the steps behind it that a slower
worker, or one that lost its connection, may still ask for. Workers train in lockstep, so the slowest is never further
behind than the queues of a worker are long. Who asks for an older step all the same gets it, too: planning is
deterministic, and begins again at the plan's first step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from threading import Condition, Thread
from typing import Any

from foresee.data.batch import BatchStream
from foresee.engine.plan_columns import batch_of
from foresee.engine.planning import planned_records
from foresee.errors import PlanError
from foresee.plan.record import Header, Record

AHEAD_STEPS = 32
"""How far planning runs ahead of the farthest worker."""
CHUNK_STEPS = 8
"""Steps of one answer."""


def kept_steps(header: Header) -> int:
    """How far one worker may be behind another: two queues of `fetch_ahead_steps` and a little, and two answers."""
    return 2 * (header.fetch_ahead_steps + 2) + 2 * CHUNK_STEPS + 4


class PlanSession:
    """Use it as a context manager, or close it. Any thread may ask."""

    def __init__(self, stream: BatchStream, header: Header, *, after: PlanSession | None = None) -> None:
        """`after` is a session on the same stream that is given up for this one."""
        self.header = header
        self._stream = stream
        self._changed = Condition()
        self._kept: dict[int, list[Any]] = {}
        """For each kept step the batch of each worker."""
        self._asked = header.first_step
        """The farthest step that anybody has asked for."""
        self._generation = 0
        self._error: BaseException | None = None
        self._thread: Thread | None = None if after is None else after.give_up()
        with self._changed:
            self._begin(header.first_step)

    def __enter__(self) -> PlanSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def records(self, worker: int, step: int, *, deadline: float) -> list[Any]:
        """One worker's next batches from a step on, at least one; none if the deadline (time.monotonic) passes."""
        end = self.header.first_step + self.header.num_steps
        if not (0 <= worker < self.header.num_workers and self.header.first_step <= step < end):
            raise PlanError(
                f"step {step} of worker {worker} is not part of this plan, which has the steps "
                f"{self.header.first_step} to {end - 1} for {self.header.num_workers} workers; ask for one of these"
            )
        with self._changed:
            # All steps planned so far that are not older than this are kept: `_asked` only rises while a plan lasts.
            if step < self._asked - kept_steps(self.header):
                self._begin(step)
            elif step > self._asked:
                self._asked = step
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: step in self._kept or self._error is not None, max(0.0, deadline - time.monotonic())
            )
            if step not in self._kept and self._error is not None:
                raise self._error
            steps = range(step, step + CHUNK_STEPS)
            return [self._kept[it][worker] for it in steps if it in self._kept]

    def close(self) -> None:
        """Ends planning and all waiting."""
        if (thread := self.give_up()) is not None:
            thread.join()

    def give_up(self) -> Thread | None:
        """As `close`, without waiting for the thread, which ends at its next step."""
        with self._changed:
            self._generation += 1
            self._error = self._error or PlanError("this plan was given up; start the workers again")
            self._changed.notify_all()
            return self._thread

    def _begin(self, asked: int) -> None:
        """Plans from the first step on, on a new thread; the one before ends at its next step."""
        self._generation += 1
        self._kept.clear()
        self._error = None
        self._asked = asked
        arguments = (self._generation, self._thread)
        self._thread = Thread(target=self._plan, args=arguments, name="foresee-plan", daemon=True)
        self._changed.notify_all()
        self._thread.start()

    def _plan(self, generation: int, before: Thread | None) -> None:
        try:
            if before is not None:
                before.join()  # one thread at a time reads the stream
            for records in _by_step(planned_records(self._stream, self.header), self.header.num_workers):
                if not self._keep(records, generation):
                    return
        except BaseException as error:
            with self._changed:
                if generation == self._generation:
                    self._error = error
                    self._changed.notify_all()

    def _keep(self, records: list[Record], generation: int) -> bool:
        """Adds a step once there is room; False if this thread's plan is not wanted any more."""
        step, num_kept = records[0].step, kept_steps(self.header)
        batches = [batch_of(record) for record in records] if step >= self._asked - num_kept else None
        with self._changed:
            self._changed.wait_for(lambda: generation != self._generation or step < self._asked + AHEAD_STEPS)
            if generation != self._generation:
                return False
            if batches is not None:
                self._kept[step] = batches
            for old in [it for it in self._kept if it < self._asked - num_kept]:
                del self._kept[old]
            self._changed.notify_all()
        return True


def _by_step(records: Iterator[Record], num_workers: int) -> Iterator[list[Record]]:
    """Records of all workers of a step come one after another."""
    while together := list(islice(records, num_workers)):
        yield together
