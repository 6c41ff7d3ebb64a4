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

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Fetch, Header, Kind, Planner, Record, Transfers

EMPTY = -1


@dataclass(frozen=True, slots=True)
class Arrival:
    """Rows that a worker gets from a peer, for the step of a deadline."""

    worker: int
    slots: Int32
    rows: Int64


class Holdings:
    """Which row is in which slot of every worker, as the records of all workers say."""

    def __init__(self, num_workers: int, capacity_rows: int) -> None:
        self.row = np.full((num_workers, capacity_rows), EMPTY, np.int64)
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)
        """By the step they are for."""

    def arrive(self, step: int) -> None:
        """Rows that peers sent for this step take their slots."""
        for arrival in self.arrivals.pop(step, []):
            self.row[arrival.worker, arrival.slots] = arrival.rows

    def play(self, records: list[Record]) -> None:
        """One step of all workers, in worker order."""
        self.arrive(records[0].step)
        for record in records:
            self.row[record.worker, record.fetch.slot] = record.fetch.row
        for receiver in records:
            for sender in records:
                self._pass_on(sender, receiver)
        for record in records:
            moved = record.send.slot[record.send.kind == Kind.MOVE]
            for slots in (record.evict.slot, record.drop, moved):
                self.row[record.worker, slots] = EMPTY

    def _pass_on(self, sender: Record, receiver: Record) -> None:
        """What one sends the other receives, in the same order."""
        out = _rows_between(sender.send, receiver.worker)
        into = _rows_between(receiver.recv, sender.worker)
        for deadline in np.unique(receiver.recv.deadline[into]):
            sent = sender.send.slot[out & (sender.send.deadline == deadline)]
            slots = receiver.recv.slot[into & (receiver.recv.deadline == deadline)]
            self.arrivals[int(deadline)].append(Arrival(receiver.worker, slots, self.row[sender.worker, sent]))


def _rows_between(transfers: Transfers, peer: int) -> NDArray[np.bool_]:
    between: NDArray[np.bool_] = (transfers.peer == peer) & (transfers.kind != Kind.GRAD)
    return between


class ResumedPlan:
    """The planner of a plan that is entered at `header.first_step`. Give it the accesses from where the plan began."""

    def __init__(self, header: Header, whole: Planner) -> None:
        self.header = header
        self._whole = whole
        self._holdings = Holdings(header.num_workers, header.capacity_rows)
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
                self._holdings.play(self._step)
                self._step = []
        return kept

    def _furnished(self, record: Record) -> Record:
        """With fetches of what the plan takes to be there."""
        first = self.header.first_step
        if record.step > first + 1:
            return record
        if not self._entered:
            self._holdings.arrive(first)
            self._entered = True
        if record.step == first:
            slots = np.flatnonzero(self._holdings.row[record.worker] != EMPTY).astype(np.int32)
            return _fetching(record, slots, self._holdings.row[record.worker, slots])
        for arrival in self._holdings.arrivals.get(record.step, []):
            if arrival.worker == record.worker:
                record = _fetching(record, arrival.slots, arrival.rows)
        return record


def _fetching(record: Record, slots: Int32, rows: Int64) -> Record:
    fetch = record.fetch
    more = Fetch(
        row=np.concatenate([fetch.row, rows]),
        slot=np.concatenate([fetch.slot, slots]),
        version=np.concatenate([fetch.version, np.full(len(rows), UNKNOWN_VERSION, np.int32)]),
    )
    return replace(record, fetch=more)
