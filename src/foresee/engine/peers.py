"""A worker among peers: rows and gradients go where its records say.

Three exchanges belong to a step x, each one all-to-all whose sizes both sides know from the plan:

    gradients    after backward, for rows that the next step uses: the owner sums in worker order and applies
    rows         after the evictions, for step x + 1: copies (VALUE) and rows that change their owner (MOVE)
    background   everything with deadline x + 2, while step x + 1 computes: on a thread and a lane of its own, so that
                 neither queues behind the other

The background exchange of step x ends before step x + 1 evicts or sends anything: from then on all of its rows are
final. Rows for a later step wait beside the cache and take their slots when that step begins.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foresee.engine.cache import Cache
from foresee.engine.mesh import Lane, Mesh
from foresee.engine.parcels import Contents, Float32, Parcel, pack, parcels_of, unpack
from foresee.engine.work import Work
from foresee.plan.record import Int32, Int64, Kind, Record
from foresee.store.contract import Layout, Rows


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


class PeerExchange:
    """One of `num_workers` workers. Close it before the process group is destroyed."""

    def __init__(self, layout: Layout, mesh: Mesh) -> None:
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self._layout = layout
        self._mesh = mesh
        self._thread = ThreadPoolExecutor(1, "foresee-exchange")
        self._travelling: Future[None] | None = None
        self._arrivals: dict[int, list[_Arrival]] = {}
        self._unfinished: _Unfinished | None = None
        self._late_gradients: list[Contents] = []

    def deliver(self, step: int, cache: Cache) -> None:
        for arrival in self._arrivals.pop(step, []):
            cache.put(arrival.value_slots, arrival.values)
            cache.put(arrival.move_slots, arrival.moved)
            cache.table.adopt(arrival.move_slots, arrival.moved_rows)

    def update(self, work: Work, gradient: Tensor, cache: Cache) -> None:
        """The loss is a mean over this worker's samples, so a row's gradient is the mean over workers."""
        record = work.record
        sums = cache.sums(work, gradient).div_(self.num_workers)
        place = np.full(int(record.unique.max(initial=-1)) + 1, -1, np.int64)
        place[record.unique] = np.arange(len(record.unique))
        urgent = (record.send.kind == Kind.GRAD) & (record.send.deadline == record.step + 1)
        expected = (record.recv.kind == Kind.GRAD) & (record.recv.deadline == record.step + 1)
        late = np.unique(record.recv.slot[(record.recv.kind == Kind.GRAD) & ~expected])
        now = record.apply[~np.isin(record.apply, late)]
        outgoing = parcels_of(record.send, urgent, self.num_workers)
        incoming = parcels_of(record.recv, expected, self.num_workers)
        contents = [self._gradients(parcel, sums, place) for parcel in outgoing]
        arrived = self._swap(contents, outgoing, incoming, Lane.CRITICAL)
        total = self._sum(now, sums[place[now]], incoming, arrived)
        cache.apply(now, total, version=record.step + 1)
        # The background exchange of the step before must be over before rows are evicted or sent.
        self._finish_background()
        self._unfinished = _Unfinished(record.step, late.astype(np.int32), sums[place[late]])
        late_out = (record.send.kind == Kind.GRAD) & ~urgent
        self._late_gradients = [
            self._gradients(parcel, sums, place) for parcel in parcels_of(record.send, late_out, self.num_workers)
        ]

    def depart(self, record: Record, cache: Cache) -> None:
        next_step = record.step + 1
        background_out = parcels_of(record.send, record.send.deadline == next_step + 1, self.num_workers)
        background_in = parcels_of(record.recv, record.recv.deadline == next_step + 1, self.num_workers)
        rows_out = (record.send.kind != Kind.GRAD) & (record.send.deadline == next_step)
        rows_in = (record.recv.kind != Kind.GRAD) & (record.recv.deadline == next_step)
        critical_out = parcels_of(record.send, rows_out, self.num_workers)
        critical_in = parcels_of(record.recv, rows_in, self.num_workers)
        later = [
            self._rows(parcel, cache, gradients.gradients)
            for parcel, gradients in zip(background_out, self._late_gradients, strict=True)
        ]
        soon = [self._rows(parcel, cache) for parcel in critical_out]
        cache.table.free(record.send.slot[record.send.kind == Kind.MOVE])
        cache.table.free(record.drop)
        unfinished = self._unfinished
        assert unfinished is not None
        self._arrive(next_step, critical_in, self._swap(soon, critical_out, critical_in, Lane.CRITICAL))
        # Only now: what is not urgent must not take the link from what is.
        self._travelling = self._thread.submit(
            self._travel, next_step + 1, later, background_out, background_in, unfinished, cache
        )

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        self._finish_background()
        waiting = [arrival for arrivals in self._arrivals.values() for arrival in arrivals]
        return [(arrival.moved_rows, arrival.moved) for arrival in waiting if len(arrival.moved_rows)]

    def close(self) -> None:
        self._finish_background()
        self._thread.shutdown()

    def _travel(
        self, deadline: int, contents: list[Contents], outgoing: list[Parcel], incoming: list[Parcel],
        unfinished: _Unfinished, cache: Cache,
    ) -> None:  # fmt: skip
        arrived = self._swap(contents, outgoing, incoming, Lane.BACKGROUND)
        total = self._sum(unfinished.slots, unfinished.sums, incoming, arrived)
        cache.apply(unfinished.slots, total, version=unfinished.step + 1)
        self._arrive(deadline, incoming, arrived)

    def _finish_background(self) -> None:
        if self._travelling is not None:
            self._travelling.result()
            self._travelling = None

    def _gradients(self, parcel: Parcel, sums: Tensor, place: Int64) -> Contents:
        return Contents(sums.numpy()[place[parcel.gradients]], self._no_values(), *self._no_moves())

    def _rows(self, parcel: Parcel, cache: Cache, gradients: Float32 | None = None) -> Contents:
        return Contents(
            self._no_values() if gradients is None else gradients,
            cache.copy(parcel.values).values,
            cache.copy(parcel.moves),
            cache.table.row[parcel.moves],
        )

    def _no_values(self) -> Float32:
        return np.empty((0, self._layout.width), np.float32)

    def _no_moves(self) -> tuple[Rows, Int64]:
        return Rows.empty(0, self._layout), np.empty(0, np.int64)

    def _swap(
        self, contents: list[Contents], outgoing: list[Parcel], incoming: list[Parcel], lane: Lane
    ) -> list[Contents]:
        sent, sizes = pack(contents, outgoing, self._layout)
        expected = [parcel.size(self._layout) for parcel in incoming]
        return unpack(self._mesh.swap(lane, sent, sizes, expected), incoming, self._layout)

    def _sum(self, slots: Int32, own: Tensor, incoming: list[Parcel], arrived: list[Contents]) -> Tensor:
        """The gradients of these rows, added in the order of workers, whoever owns them."""
        place = np.full(int(slots.max(initial=-1)) + 1, -1, np.int64)
        place[slots] = np.arange(len(slots))
        total = torch.zeros_like(own)
        for parcel, content in zip(incoming, arrived, strict=True):
            if parcel.peer == self.rank:
                total += own
            else:
                total.index_add_(0, torch.from_numpy(place[parcel.gradients]), torch.from_numpy(content.gradients))
        return total

    def _arrive(self, deadline: int, incoming: list[Parcel], arrived: list[Contents]) -> None:
        for parcel, content in zip(incoming, arrived, strict=True):
            copies = Rows.empty(len(parcel.values), self._layout)
            copies.values[:] = content.values
            copies.state[:] = 0.0
            copies.versions[:] = 0
            arrival = _Arrival(parcel.values, copies, parcel.moves, content.moved, content.moved_rows)
            self._arrivals.setdefault(deadline, []).append(arrival)
