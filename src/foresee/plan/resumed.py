"""A plan entered in the middle: from some step on, the very records that follow from the plan's beginning.

Placement looks at who holds which rows, so a plan that began anew at step N would place samples otherwise, and
gradients would be added in another order. Here planning begins where the plan did; records before step N are played and
dropped. What the caches would hold at N, or have on its way, is read from the store instead: it is added to the fetches
of steps N and N + 1. From there on nothing differs, and a run that was interrupted ends with the bytes of one that was
not.

In: the planner of the whole plan, and the step to enter at; the store must be in the state after N steps. Out: records
from N on. Memory: one number for each slot of each worker.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Fetch, Header, Planner, Record
from foresee.plan.replay import EMPTY, Replay


class ResumedPlan:
    """The planner of a plan that is entered at `header.first_step`. Give it the accesses from where the plan began."""

    def __init__(self, header: Header, whole: Planner) -> None:
        self.header = header
        self._whole = whole
        self._replay = Replay(header.num_workers, header.capacity_rows)
        self._step: list[Record] = []
        """Records of a step before the first, until those of all workers are there."""
        self._entered = False

    def push(self, accesses: Accesses) -> list[Record]:
        return self._from_entry(self._whole.push(accesses))

    def finish(self) -> list[Record]:
        return self._from_entry(self._whole.finish())

    def _from_entry(self, records: list[Record]) -> list[Record]:
        kept = []
        for record in records:
            if record.step >= self.header.first_step:
                kept.append(self._furnished(record))
                continue
            self._step.append(record)
            if len(self._step) == self.header.num_workers:
                self._replay.play(self._step)
                self._step = []
        return kept

    def _furnished(self, record: Record) -> Record:
        """With fetches of what the plan takes to be there."""
        first = self.header.first_step
        if record.step > first + 1:
            return record
        if not self._entered:
            self._replay.arrive(first)
            self._entered = True
        if record.step == first:
            slots = np.flatnonzero(self._replay.rows[record.worker] != EMPTY).astype(np.int32)
            return _fetching(record, slots, self._replay.rows[record.worker, slots])
        for transfer in self._replay.arrivals.get(record.step, []):
            if transfer.target == record.worker:
                record = _fetching(record, transfer.slots, transfer.rows)
        return record


def _fetching(record: Record, slots: Int32, rows: Int64) -> Record:
    fetch = record.fetch
    more = Fetch(
        row=np.concatenate([fetch.row, rows]),
        slot=np.concatenate([fetch.slot, slots]),
        version=np.concatenate([fetch.version, np.full(len(rows), UNKNOWN_VERSION, np.int32)]),
    )
    return replace(record, fetch=more)
