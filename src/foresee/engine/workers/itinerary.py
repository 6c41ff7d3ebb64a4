"""What of a record goes over in which exchange, and which rows are applied when.

In: the record of one worker and step. Out: parcels for each of the step's three exchanges (gradients, rows,
background; see `conversation`), and where in the step's gradients they are taken from and added to. Pure: it follows
from the record alone, so both ends of a transfer come to the same sizes, and it is worked out long before the step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.engine.workers.parcels import Parcel, parcels_of
from foresee.plan.record import Int32, Int64, Kind, Record, Transfers

BACKGROUND = 2
NOT_HERE = -1


@dataclass(frozen=True, slots=True)
class Joint:
    """Owned rows that get gradients of peers in one exchange."""

    slots: Int32
    own: Int64
    """Their places in the gradients that travel."""
    added: list[Int64]
    """For each worker, the places in `slots` to which its gradients are added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Itinerary:
    """The exchanges of one worker's step; each list has one entry for each worker."""

    gradients_out: list[Parcel]
    gradients_in: list[Parcel]
    rows_out: list[Parcel]
    rows_in: list[Parcel]
    background_out: list[Parcel]
    background_in: list[Parcel]
    travelling: Int32
    """Positions in `unique` whose gradient is sent, or joined by those of peers."""
    gradients_sent: list[Int64]
    """Places in `travelling` of the gradients that go out now."""
    background_sent: list[Int64]
    now: Joint
    """Applied once the gradients of the critical path are there."""
    late: Joint
    """Waits for gradients of the background."""
    alone_leaving: Int32
    """Positions in `unique` of rows that only this worker uses in this step, and that leave its cache after it."""
    alone_staying: Int32
    moved: Int32
    """Slots whose row leaves for another owner."""

    @classmethod
    def of(cls, record: Record, num_workers: int) -> Itinerary:
        send, recv = record.send, record.recv
        gradients_out, rows_out, background_out = parcels_of(send, _exchange(send, record.step), num_workers)
        gradients_in, rows_in, background_in = parcels_of(recv, _exchange(recv, record.step), num_workers)
        gradient_out = send.kind == Kind.GRAD
        slots = np.unique(np.concatenate([send.slot[gradient_out], recv.slot[recv.kind == Kind.GRAD]]))
        positions = _Positions(record.unique)
        alone = positions.without(record.apply, slots)
        leaves = positions.mark(np.concatenate([record.evict.slot, send.slot[~gradient_out]]))[alone]
        return cls(
            gradients_out=gradients_out,
            gradients_in=gradients_in,
            rows_out=rows_out,
            rows_in=rows_in,
            background_out=background_out,
            background_in=background_in,
            travelling=positions.of(slots),
            gradients_sent=[np.searchsorted(slots, parcel.gradients) for parcel in gradients_out],
            background_sent=[np.searchsorted(slots, parcel.gradients) for parcel in background_out],
            now=_joint(slots, gradients_in),
            late=_joint(slots, background_in),
            alone_leaving=alone[leaves],
            alone_staying=alone[~leaves],
            moved=send.slot[send.kind == Kind.MOVE],
        )


def _exchange(transfers: Transfers, step: int) -> Int32:
    """Which of the three each transfer goes over with: gradients, rows, background."""
    is_row = (transfers.kind != Kind.GRAD).astype(np.int32)
    return np.where(transfers.deadline == step + 1, is_row, np.int32(BACKGROUND))


def _joint(travelling: Int32, incoming: list[Parcel]) -> Joint:
    slots = np.unique(np.concatenate([parcel.gradients for parcel in incoming]))
    added = [np.searchsorted(slots, parcel.gradients) for parcel in incoming]
    return Joint(slots, np.searchsorted(travelling, slots), added)


class _Positions:
    """From slots to positions in `unique`."""

    def __init__(self, unique: Int32) -> None:
        self._num_unique = len(unique)
        self._place = np.full(int(unique.max(initial=-1)) + 1, NOT_HERE, np.int32)
        self._place[unique] = np.arange(len(unique), dtype=np.int32)

    def of(self, slots: Int32) -> Int32:
        return self._place[slots]

    def mark(self, slots: Int32) -> NDArray[np.bool_]:
        """[unique]: whether a position's slot is among these; slots that the step does not use count for nothing."""
        marks = np.zeros(self._num_unique + 1, np.bool_)
        marks[self._place[slots[slots < len(self._place)]]] = True  # NOT_HERE marks the entry beyond the last
        return marks[:-1]

    def without(self, slots: Int32, others: Int32) -> Int32:
        """Positions of slots that are not among the others."""
        positions = self.of(slots)
        return positions[~self.mark(others)[positions]]
