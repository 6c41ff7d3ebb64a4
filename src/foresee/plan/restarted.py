"""Planning across steps after which nothing is known until they are trained.

A user's loader is opened again only when its epoch was trained. Up to there everything must be planned, including the
last step, whose evictions otherwise depend on the next one. So the plan ends there, all rows are written back, and a
new plan of the same kind begins with the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from foresee.plan.record import NOTHING_BEFORE, Accesses, Header, Planner, Record


class Restarted:
    """Ends the planner after each `Accesses.is_last_known` and makes a new one for the steps that follow.

    Args:
        header: What is planned in all.
        first_step: The step of the first accesses.
        make: Makes the planner of a header.
    """

    def __init__(self, header: Header, first_step: int, make: Callable[[Header], Planner]) -> None:
        self.header = header
        self._make = make
        self._planner: Planner | None = make(header)
        self._next = first_step
        self._not_before = NOTHING_BEFORE

    def push(self, accesses: Accesses) -> list[Record]:
        if self._planner is None:
            end = self.header.first_step + self.header.num_steps
            options = replace(self.header.options, planned_from=None)
            self._planner = self._make(
                replace(self.header, first_step=self._next, num_steps=end - self._next, options=options)
            )
            # The new planner does not know which rows the last one wrote back.
            self._not_before = self._next - 1
        self._next += 1
        records = self._planner.push(accesses)
        return self._guarded(records) + (self.finish() if accesses.is_last_known else [])

    def finish(self) -> list[Record]:
        planner, self._planner = self._planner, None
        return [] if planner is None else self._guarded(planner.finish())

    def _guarded(self, records: list[Record]) -> list[Record]:
        if self._not_before == NOTHING_BEFORE:
            return records
        return [replace(it, not_before=max(it.not_before, self._not_before)) for it in records]
