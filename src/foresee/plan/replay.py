"""Turn the slots of records back into rows, one step after another.

`Replay` keeps which row is in which slot of every worker and which rows are on their way to a later step. `resumed`,
which enters a plan in the middle, and the explanation of a plan use it. The checker (`check`) has its own replay, so
that a mistake here cannot hide a mistake of a planner. Memory: one number for each slot, and transfers of two steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.record import Kind, Record

EMPTY = -1


@dataclass(frozen=True, slots=True)
class RowTransfer:
    """Rows, or gradients of rows, that go from one worker to another after a step."""

    kind: Kind
    source: int
    target: int
    sent_after: int
    deadline: int
    """The step that uses them; the step itself for gradients."""
    rows: Int64
    slots: Int32
    """Where the target puts the rows; empty for gradients."""

    @property
    def critical(self) -> bool:
        """Return whether the step right after `sent_after` waits for this transfer."""
        return self.deadline == self.sent_after + 1


@dataclass(frozen=True, slots=True)
class Played:
    """One step of all workers, with rows instead of slots."""

    step: int
    records: Sequence[Record]
    used: Sequence[Int64]
    """Distinct rows of each worker."""
    arrived: Sequence[RowTransfer]
    """Copies and moves that this step uses."""
    sent: Sequence[RowTransfer]
    """Everything that leaves after this step, gradients included."""


class Replay:
    """The contents of every worker's slots while a plan is played."""

    def __init__(self, num_workers: int, capacity_rows: int) -> None:
        self.rows = np.full((num_workers, capacity_rows), EMPTY, np.int64)  # [workers, slots]
        self.arrivals: dict[int, list[RowTransfer]] = defaultdict(list)
        """Copies and moves by the step they are for."""

    def arrive(self, step: int) -> list[RowTransfer]:
        """Put the rows that peers sent for this step into their slots."""
        arrived = self.arrivals.pop(step, [])
        for transfer in arrived:
            self.rows[transfer.target, transfer.slots] = transfer.rows
        return arrived

    def play(self, records: Sequence[Record]) -> Played:
        """Play one step: the records of all workers, in worker order."""
        step = records[0].step
        arrived = self.arrive(step)
        for record in records:
            self.rows[record.worker, record.fetch.slot] = record.fetch.row
        used = [self.rows[record.worker, record.unique] for record in records]
        sent = [transfer for record in records for transfer in self._send(record, records)]
        for transfer in sent:
            if transfer.kind != Kind.GRAD:
                self.arrivals[transfer.deadline].append(transfer)
        for record in records:
            moved = record.send.slot[record.send.kind == Kind.MOVE]
            for slots in (moved, record.evict.slot, record.drop):
                self.rows[record.worker, slots] = EMPTY
        return Played(step, records, used, arrived, sent)

    def kept(self) -> list[Int64]:
        """Return the rows in each worker's slots."""
        return [rows[rows != EMPTY] for rows in self.rows]

    def _send(self, record: Record, records: Sequence[Record]) -> list[RowTransfer]:
        # A peer lists what it receives in the order in which it is sent, so positions pair the two lists.
        send, transfers = record.send, []
        for peer, kind, deadline in np.unique(np.stack([send.peer, send.kind, send.deadline]), axis=1).T.tolist():
            chosen = (send.peer == peer) & (send.kind == kind) & (send.deadline == deadline)
            rows, slots = self.rows[record.worker, send.slot[chosen]], np.empty(0, np.int32)
            if kind != Kind.GRAD:
                recv = records[peer].recv
                slots = recv.slot[(recv.peer == record.worker) & (recv.kind == kind) & (recv.deadline == deadline)]
            transfers.append(RowTransfer(Kind(kind), record.worker, peer, record.step, deadline, rows, slots))
        return transfers
