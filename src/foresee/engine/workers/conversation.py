"""What a worker says to its peers in a step, and what it does with the answers. No thread, wire or clock inside.

Three exchanges belong to a step x, each one all-to-all whose sizes both sides know from the plan:

    gradients    after backward, for rows that the next step uses: the owner sums in worker order and applies
    rows         after the evictions, for step x + 1: copies (VALUE) and rows that change their owner (MOVE)
    background   everything with deadline x + 2, while step x + 1 computes

The moments of a step are generators: they yield what has to be done by whoever has a wire (`Swap`, `StartBackground`,
`FINISH_BACKGROUND`) and are sent the answer. `peers.PeerExchange` carries them out over a mesh; the simulation of
`foresee.testing` carries out the very same in one thread.

The background exchange of step x ends before step x + 1 evicts or sends anything: from then on all of its rows are
final. Rows for a later step wait beside the cache and take their slots when that step begins.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresee.engine.cache import Cache
from foresee.engine.workers.itinerary import Itinerary
from foresee.engine.workers.mesh import Lane
from foresee.engine.workers.parcels import Contents, Float32, Parcel
from foresee.plan.record import Int32, Int64, Record
from foresee.store.contract import Layout, Rows


@dataclass(frozen=True, slots=True)
class Swap:
    """Send each peer its contents; the answer is what each peer sent, in worker order."""

    lane: Lane
    contents: list[Contents]
    outgoing: list[Parcel]
    incoming: list[Parcel]


@dataclass(frozen=True, slots=True)
class StartBackground:
    """Carry these moments out beside the next step."""

    moments: Moments


@dataclass(frozen=True, slots=True)
class FinishBackground:
    """Wait until what was started is over."""


FINISH_BACKGROUND = FinishBackground()
Request = Swap | StartBackground | FinishBackground
Moments = Generator[Request, Any, None]


@dataclass(frozen=True, slots=True)
class _Arrival:
    """Rows that wait for their step."""

    value_slots: Int32
    values: Rows
    move_slots: Int32
    moved: Rows
    moved_rows: Int64


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """Owned rows whose step waits for gradients that travel in the background."""

    step: int
    slots: Int32
    sums: Tensor


class Conversation:
    """One of `num_workers` workers."""

    def __init__(self, layout: Layout, rank: int, num_workers: int) -> None:
        self.rank, self.num_workers = rank, num_workers
        self._layout = layout
        self._nothing = Contents(
            np.empty((0, layout.width), np.float32), np.empty((0, layout.width), np.float32), Rows.empty(0, layout),
            np.empty(0, np.int64),
        )  # fmt: skip
        self._arrivals: dict[int, list[_Arrival]] = {}
        self._unfinished: _Unfinished | None = None
        self._late_gradients: list[Contents] = []

    def deliver(self, step: int, cache: Cache) -> None:
        """Before the step: rows that peers sent for it take their slots."""
        for arrival in self._arrivals.pop(step, []):
            cache.put(arrival.value_slots, arrival.values)
            cache.put(arrival.move_slots, arrival.moved)
            cache.table.adopt(arrival.move_slots, arrival.moved_rows)

    def update(self, record: Record, itinerary: Itinerary, sums: Tensor, cache: Cache) -> Moments:
        """After backward: `sums` are the gradients of `record.unique`; owners apply."""
        place = np.full(int(record.unique.max(initial=-1)) + 1, -1, np.int64)
        place[record.unique] = np.arange(len(record.unique))
        contents = [self._gradients(parcel, sums, place) for parcel in itinerary.gradients_out]
        arrived = yield Swap(Lane.CRITICAL, contents, itinerary.gradients_out, itinerary.gradients_in)
        total = sum_in_worker_order(
            self.rank, itinerary.now, _some(sums, place[itinerary.now]), itinerary.gradients_in, arrived
        )
        cache.apply(itinerary.now, total, version=record.step + 1)
        # The background exchange of the step before must be over before rows are evicted or sent.
        yield FINISH_BACKGROUND
        self._unfinished = _Unfinished(record.step, itinerary.late, _some(sums, place[itinerary.late]))
        self._late_gradients = [self._gradients(parcel, sums, place) for parcel in itinerary.background_out]

    def depart(self, record: Record, itinerary: Itinerary, cache: Cache) -> Moments:
        """After the evictions: rows leave for the peers that need them next."""
        next_step = record.step + 1
        later = [
            self._rows(parcel, cache, gradients.gradients)
            for parcel, gradients in zip(itinerary.background_out, self._late_gradients, strict=True)
        ]
        soon = [self._rows(parcel, cache) for parcel in itinerary.rows_out]
        cache.table.free(itinerary.moved)
        cache.table.free(record.drop)
        unfinished = self._unfinished
        assert unfinished is not None
        arrived = yield Swap(Lane.CRITICAL, soon, itinerary.rows_out, itinerary.rows_in)
        self._arrive(next_step, itinerary.rows_in, arrived)
        # Only now: what is not urgent must not take the link from what is.
        yield StartBackground(self._travel(next_step + 1, later, itinerary, unfinished, cache))

    def waiting(self) -> list[tuple[Int64, Rows]]:
        """Rows that belong to this worker and are in no cache yet, because their step has not come.

        Ask when nothing is in the background: those, with what the caches hold, are the whole state.
        """
        arrivals = [arrival for arrivals in self._arrivals.values() for arrival in arrivals]
        return [(arrival.moved_rows, arrival.moved) for arrival in arrivals if len(arrival.moved_rows)]

    def _travel(
        self, deadline: int, contents: list[Contents], itinerary: Itinerary, unfinished: _Unfinished, cache: Cache
    ) -> Moments:
        incoming = itinerary.background_in
        arrived = yield Swap(Lane.BACKGROUND, contents, itinerary.background_out, incoming)
        total = sum_in_worker_order(self.rank, unfinished.slots, unfinished.sums, incoming, arrived)
        cache.apply(unfinished.slots, total, version=unfinished.step + 1)
        self._arrive(deadline, incoming, arrived)

    def _gradients(self, parcel: Parcel, sums: Tensor, place: Int64) -> Contents:
        if not len(parcel.gradients):
            return self._nothing
        return replace(self._nothing, gradients=sums.numpy()[place[parcel.gradients]])

    def _rows(self, parcel: Parcel, cache: Cache, gradients: Float32 | None = None) -> Contents:
        contents = self._nothing if gradients is None else replace(self._nothing, gradients=gradients)
        if len(parcel.values):
            contents = replace(contents, values=cache.copy(parcel.values).values)
        if len(parcel.moves):
            contents = replace(contents, moved=cache.copy(parcel.moves), moved_rows=cache.table.row[parcel.moves])
        return contents

    def _arrive(self, deadline: int, incoming: list[Parcel], arrived: list[Contents]) -> None:
        for parcel, content in zip(incoming, arrived, strict=True):
            if not (len(parcel.values) or len(parcel.moves)):
                continue
            copies = Rows.empty(len(parcel.values), self._layout)
            copies.values[:] = content.values
            copies.state[:] = 0.0
            copies.versions[:] = 0
            arrival = _Arrival(parcel.values, copies, parcel.moves, content.moved, content.moved_rows)
            self._arrivals.setdefault(deadline, []).append(arrival)


def _some(sums: Tensor, positions: Int64) -> Tensor:
    """Some rows of a tensor on the CPU: numpy takes a numpy index far quicker."""
    return torch.from_numpy(sums.numpy()[positions])


def sum_in_worker_order(
    rank: int, slots: Int32, own: Tensor, incoming: list[Parcel], arrived: list[Contents]
) -> Tensor:
    """The gradients of these rows, added in the order of workers, whoever owns them."""
    place = np.full(int(slots.max(initial=-1)) + 1, -1, np.int64)
    place[slots] = np.arange(len(slots))
    total = torch.zeros_like(own)
    for parcel, content in zip(incoming, arrived, strict=True):
        if parcel.peer == rank:
            total += own
        elif len(parcel.gradients):
            total.index_add_(0, torch.from_numpy(place[parcel.gradients]), torch.from_numpy(content.gradients))
    return total
