"""What a worker exchanges with its peers in a step, and what it does with the answers. No thread, wire or clock inside.

Three exchanges belong to a step x, each one all-to-all whose sizes both sides know from the plan:

    gradients    after backward, for rows that the next step uses: the owner sums in worker order and applies
    rows         after evictions and dense sums, for step x + 1: copies (VALUE), rows that change their owner (MOVE)
    background   everything with deadline x + 2, while step x + 1 computes

Most rows of a step are used by one worker alone. They are applied while an exchange is under way: those that leave the
cache during the first, the rest during the second, so that no peer waits for work that only one worker needs.

The phases of a step are generators: they yield what has to be sent or waited for (`Swap`, `StartBackground`,
`FINISH_BACKGROUND`) and are sent the answer. `peers.PeerExchange` carries them out over a mesh; the simulation of
`foresee.testing` carries out the very same in one thread.

The background exchange of step x ends before step x + 1 evicts or sends anything: from then on all of its rows are
final. Rows for a later step wait beside the cache and take their slots when that step begins.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from foresee.arrays import Float32, Float64, Int32, Int64
from foresee.engine.cache import Cache
from foresee.engine.exchange.mesh import Lane
from foresee.engine.exchange.schedule import ExchangeSchedule, Joint, Payload, PeerBuffer
from foresee.plan.record import Record
from foresee.store.contract import Rows
from foresee.store.layout import Layout


class Gradients(Protocol):
    """What backward left for the distinct rows of a step, by position in `unique`."""

    def sums(self, positions: Int32) -> Tensor:
        """[positions, width]: what these rows get from this worker. On the CPU."""
        ...

    def apply(self, positions: Int32) -> None:
        """One optimiser step on rows that no other worker uses."""
        ...


def nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Swap:
    """Send each peer its contents; the answer is what each peer sent, in worker order."""

    lane: Lane
    contents: list[Payload]
    outgoing: list[PeerBuffer]
    incoming: list[PeerBuffer]
    meanwhile: Callable[[], None] = nothing
    """To be done while the contents travel, or wait for the link."""
    after_dense: bool = False
    """The sums of dense gradients have the link before it."""


@dataclass(frozen=True, slots=True)
class StartBackground:
    """Carry these phases out while the next step computes."""

    phases: Phases


@dataclass(frozen=True, slots=True)
class FinishBackground:
    """Wait until what was started is over."""


FINISH_BACKGROUND = FinishBackground()
Request = Swap | StartBackground | FinishBackground
Phases = Generator[Request, Any, Any]


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
    rows: Joint
    own: Tensor


class ExchangeProtocol:
    """One of `num_workers` workers."""

    def __init__(self, layout: Layout, rank: int, num_workers: int) -> None:
        self.rank, self.num_workers = rank, num_workers
        self._layout = layout
        self._empty = Payload(
            np.empty((0, layout.width), np.float32), np.empty((0, layout.value_words), np.float32),
            Rows.empty(0, layout), np.empty(0, np.int64),
        )  # fmt: skip
        self._arrivals: dict[int, list[_Arrival]] = {}
        self._unfinished: _Unfinished | None = None
        self._late_gradients: list[Payload] = []
        self._remaining: Callable[[], None] = nothing
        """The part of a step's update that need not be over before its rows leave."""

    def receive_rows(self, step: int, cache: Cache) -> None:
        """Before the step: rows that peers sent for it take their slots."""
        for arrival in self._arrivals.pop(step, []):
            cache.put(arrival.value_slots, arrival.values)
            cache.put(arrival.move_slots, arrival.moved)
            cache.table.adopt(arrival.move_slots, arrival.moved_rows)

    def update(self, record: Record, schedule: ExchangeSchedule, gradients: Gradients, cache: Cache) -> Phases:
        """After backward: gradients go to the owners of their rows, and owners apply."""
        sums = gradients.sums(schedule.travelling)
        arrived = yield Swap(
            Lane.CRITICAL, self._sent(sums, schedule.gradients_sent), schedule.gradients_out,
            schedule.gradients_in, partial(gradients.apply, schedule.alone_leaving),
        )  # fmt: skip
        self._apply(_Unfinished(record.step, schedule.now, _some(sums, schedule.now.own)), arrived, cache)
        # The background exchange of the step before must be over before rows are evicted or sent.
        yield FINISH_BACKGROUND
        self._unfinished = _Unfinished(record.step, schedule.late, _some(sums, schedule.late.own))
        self._late_gradients = self._sent(sums, schedule.background_sent)
        self._remaining = partial(gradients.apply, schedule.alone_staying)

    def send_rows(self, record: Record, schedule: ExchangeSchedule, cache: Cache) -> Phases:
        """After the evictions: rows leave for the peers that need them next."""
        next_step = record.step + 1
        later = [
            self._rows(peer_buffer, cache, gradients.gradients)
            for peer_buffer, gradients in zip(schedule.background_out, self._late_gradients, strict=True)
        ]
        soon = [self._rows(peer_buffer, cache) for peer_buffer in schedule.rows_out]
        cache.table.free(schedule.moved)
        cache.table.free(record.drop)
        unfinished = self._unfinished
        assert unfinished is not None
        arrived = yield Swap(
            Lane.CRITICAL, soon, schedule.rows_out, schedule.rows_in, self._remaining, after_dense=True
        )
        self._remaining = nothing
        self._arrive(next_step, schedule.rows_in, arrived)
        # Only now: what is not urgent must not take the link from what is.
        yield StartBackground(self._travel(next_step + 1, later, schedule, unfinished, cache))

    def squares(self, record: Record, schedule: ExchangeSchedule, gradients: Gradients) -> Phases:
        """After backward, before `update`: send all shared gradients to their owners at once, for the norm of a step.

        Returns two arrays with the square of a gradient for each row: of rows that only this worker uses, and of the
        shared rows that it owns, whose gradients are summed over workers as `update` will sum them.
        """
        alone = gradients.sums(np.setdiff1d(record.gradient_positions, schedule.travelling))
        sums, at_once = gradients.sums(schedule.travelling), schedule.gradients_at_once(record)
        arrived = yield Swap(Lane.CRITICAL, self._sent(sums, at_once.sent), at_once.outgoing, at_once.incoming)
        rows = at_once.owned
        total = sum_in_worker_order(self.rank, _some(sums, rows.own), rows.added, arrived)
        return squares_of_rows(alone), squares_of_rows(total)

    def waiting(self) -> list[tuple[Int64, Rows]]:
        """Rows that belong to this worker and are in no cache yet, because their step has not come.

        Ask when nothing is in the background: those, with what the caches hold, are the whole state.
        """
        arrivals = [arrival for arrivals in self._arrivals.values() for arrival in arrivals]
        return [(arrival.moved_rows, arrival.moved) for arrival in arrivals if len(arrival.moved_rows)]

    def _travel(
        self, deadline: int, contents: list[Payload], schedule: ExchangeSchedule, unfinished: _Unfinished, cache: Cache
    ) -> Phases:
        incoming = schedule.background_in
        arrived = yield Swap(Lane.BACKGROUND, contents, schedule.background_out, incoming)
        self._apply(unfinished, arrived, cache)
        self._arrive(deadline, incoming, arrived)

    def _apply(self, unfinished: _Unfinished, arrived: list[Payload], cache: Cache) -> None:
        rows = unfinished.rows
        if len(rows.slots):
            total = sum_in_worker_order(self.rank, unfinished.own, rows.added, arrived)
            cache.apply(rows.slots, total, version=unfinished.step + 1)

    def _sent(self, sums: Tensor, places: list[Int64]) -> list[Payload]:
        """The gradients for each worker."""
        return [replace(self._empty, gradients=sums.numpy()[at]) if len(at) else self._empty for at in places]

    def _rows(self, peer_buffer: PeerBuffer, cache: Cache, gradients: Float32 | None = None) -> Payload:
        contents = self._empty if gradients is None else replace(self._empty, gradients=gradients)
        if len(peer_buffer.values):
            contents = replace(contents, values=cache.copy(peer_buffer.values).values)
        if len(peer_buffer.moves):
            contents = replace(
                contents, moved=cache.copy(peer_buffer.moves), moved_rows=cache.table.row[peer_buffer.moves]
            )
        return contents

    def _arrive(self, deadline: int, incoming: list[PeerBuffer], arrived: list[Payload]) -> None:
        for peer_buffer, content in zip(incoming, arrived, strict=True):
            if not (len(peer_buffer.values) or len(peer_buffer.moves)):
                continue
            copies = Rows.empty(len(peer_buffer.values), self._layout)
            copies.values[:] = content.values
            copies.state[:] = 0.0
            copies.versions[:] = 0
            arrival = _Arrival(peer_buffer.values, copies, peer_buffer.moves, content.moved, content.moved_rows)
            self._arrivals.setdefault(deadline, []).append(arrival)


def _some(sums: Tensor, places: Int64) -> Tensor:
    """Some rows of a tensor on the CPU: numpy takes a numpy index far quicker."""
    return torch.from_numpy(sums.numpy()[places])


def squares_of_rows(sums: Tensor) -> Float64:
    """[rows]: the squared norm of each row's gradient."""
    squares: Float64 = np.square(sums.numpy(), dtype=np.float64).sum(axis=1)
    return squares


def sum_in_worker_order(rank: int, own: Tensor, added: list[Int64], arrived: list[Payload]) -> Tensor:
    """Gradients of rows in the order of workers, whoever owns them; `added` says where a worker's go."""
    total = np.zeros_like(own.numpy())
    for worker, (places, content) in enumerate(zip(added, arrived, strict=True)):
        if worker == rank:
            total += own.numpy()
        elif len(places):
            total[places] += content.gradients  # a worker sends a row's gradient once
    return torch.from_numpy(total)
