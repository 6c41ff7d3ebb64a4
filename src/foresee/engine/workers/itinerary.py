"""What of a record goes over in which exchange.

In: the record of one worker and step. Out: parcels for each of the step's three exchanges (gradients, rows,
background; see `conversation`), and which rows are applied in which of them. Pure: it follows from the record alone, so
both ends of a transfer come to the same sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foresee.engine.workers.parcels import Parcel, parcels_of
from foresee.plan.record import Int32, Kind, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Itinerary:
    """The exchanges of one worker's step; each list has one parcel for each worker."""

    gradients_out: list[Parcel]
    gradients_in: list[Parcel]
    rows_out: list[Parcel]
    rows_in: list[Parcel]
    background_out: list[Parcel]
    background_in: list[Parcel]
    now: Int32
    """Slots that are applied once the gradients of the critical path are there."""
    late: Int32
    """Slots that wait for gradients of the background."""
    moved: Int32
    """Slots whose row leaves for another owner."""

    @classmethod
    def of(cls, record: Record, num_workers: int) -> Itinerary:
        send, recv, next_step = record.send, record.recv, record.step + 1
        gradient_out, gradient_in = send.kind == Kind.GRAD, recv.kind == Kind.GRAD
        soon_out, soon_in = send.deadline == next_step, recv.deadline == next_step
        late = np.unique(recv.slot[gradient_in & ~soon_in]).astype(np.int32)
        return cls(
            gradients_out=parcels_of(send, gradient_out & soon_out, num_workers),
            gradients_in=parcels_of(recv, gradient_in & soon_in, num_workers),
            rows_out=parcels_of(send, ~gradient_out & soon_out, num_workers),
            rows_in=parcels_of(recv, ~gradient_in & soon_in, num_workers),
            background_out=parcels_of(send, send.deadline == next_step + 1, num_workers),
            background_in=parcels_of(recv, recv.deadline == next_step + 1, num_workers),
            now=record.apply[~np.isin(record.apply, late)],
            late=late,
            moved=send.slot[send.kind == Kind.MOVE],
        )
