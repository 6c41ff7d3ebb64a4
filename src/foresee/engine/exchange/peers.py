"""The exchange of rows and gradients with other workers, as the records say; for one worker alone there is none.

The training loop calls the same methods of an `Exchange` at each step. `LocalExchange` is a worker without peers: the
row kernels update in one pass and nothing is sent. `PeerExchange` is one worker among several: `protocol` decides what
is exchanged when, and here it is carried out over a mesh. The background exchange has a thread and a lane of its own,
so that neither queues behind the other. `recorded` wraps an exchange so that a timeline sees its calls; a run that is
not recorded gets its own back.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from foresee.base.arrays import Float32, Int32, Int64
from foresee.engine.cache import Cache
from foresee.engine.exchange.dense import Sums, of_all_workers, sum_of_all_workers
from foresee.engine.exchange.mesh import LinkScheduler, Mesh, UnscheduledLink
from foresee.engine.exchange.protocol import ExchangeProtocol, Phases, Request, StartBackground, Swap, nothing
from foresee.engine.exchange.schedule import ExchangeSchedule, Payload, pack, unpack
from foresee.engine.planned_step import PlannedStep
from foresee.engine.recording.timeline import NOT_RECORDED, TRAIN, Timeline, updates_during_backward, updating_track
from foresee.plan.record import Record
from foresee.store.contract import Layout, Rows


class Exchange(Protocol):
    """The phases of a step at which rows or gradients are exchanged."""

    link: LinkScheduler
    """Closed while critical transfers use the link."""

    @property
    def rank(self) -> int:
        """Which worker this is."""
        ...

    def expect(self, record: Record) -> None:
        """Long before the step, on the thread that plans: whatever can be worked out from the record alone."""
        ...

    def receive_rows(self, step: int, cache: Cache) -> None:
        """Before the step: rows that peers sent for it take their slots."""
        ...

    def update(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> None:
        """After backward: gradients go to the owners of their rows, and owners apply them.

        Where the record learns nothing, nobody looks at the gradient.
        """
        ...

    def squared_norm(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> float:
        """Of the gradients of all rows of the step, each summed over all lookups of all workers."""
        ...

    def send_rows(self, record: Record, cache: Cache) -> None:
        """After the evictions: rows leave for the peers that need them next."""
        ...

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        """Waits for what travels in the background, so that the cache is the state after the last step.

        Returns the rows that belong to this worker and are in no cache yet, because their step has not come: those,
        with what the caches hold, are the whole state.
        """
        ...


class LocalExchange:
    """One worker: every row is its own."""

    rank = 0

    def __init__(self) -> None:
        self.link: LinkScheduler = UnscheduledLink()

    def expect(self, record: Record) -> None:
        pass

    def receive_rows(self, step: int, cache: Cache) -> None:
        pass

    def update(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> None:
        if work.record.learns:
            cache.update(work, gradient)

    def squared_norm(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> float:
        return sum_of_squares(cache.sums(work, gradient, _all_positions(work)).numpy())

    def send_rows(self, record: Record, cache: Cache) -> None:
        cache.table.free(record.drop)

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        return []


class PeerExchange:
    """One of `num_workers` workers. Close it before the process group is destroyed."""

    def __init__(
        self, layout: Layout, mesh: Mesh, span: Callable[[str], None] = lambda what: None, dense: Sums | None = None
    ) -> None:
        """`span` is told, by the thread that updates, what it did last: for a timeline.

        dense: the sums of dense gradients over the same link, which go before the rows of the next step.
        """
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self.link = LinkScheduler()
        self._layout = layout
        self._mesh = mesh
        self._span = span
        self._dense = dense or Sums()
        self._protocol = ExchangeProtocol(layout, mesh.rank, mesh.num_workers)
        self._schedules: dict[int, ExchangeSchedule] = {}
        """Of steps that are planned and not done; as many as the pipeline's queues hold."""
        self._thread = ThreadPoolExecutor(1, "foresee-exchange")
        self._travelling: Future[None] | None = None

    def expect(self, record: Record) -> None:
        self._schedules[record.step] = ExchangeSchedule.of(record, self.num_workers)

    def receive_rows(self, step: int, cache: Cache) -> None:
        self._protocol.receive_rows(step, cache)

    def update(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> None:
        schedule, gradients = self._schedules[work.record.step], _OfStep(work, gradient, cache, self.num_workers)
        self._carry_out(self._protocol.update(work.record, schedule, gradients, cache))

    def squared_norm(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> float:
        """Rows of one worker alone are summed up there; sums of the others go round once more than an update needs."""
        positions, shared = _all_positions(work), self._schedules[work.record.step].travelling
        sums = cache.sums(work, gradient, positions).div_(self.num_workers).numpy()
        (alone,) = sum_of_all_workers([sum_of_squares(np.delete(sums, shared, axis=0))])
        rows = np.concatenate(of_all_workers(cache.table.row[work.record.unique[shared]]))
        parts = np.concatenate(of_all_workers(sums[shared]))
        distinct, place = np.unique(rows, return_inverse=True)
        total = np.zeros((len(distinct), sums.shape[1]), np.float32)
        np.add.at(total, place, parts)  # in worker order, as the owners add them
        return alone + sum_of_squares(total)

    def send_rows(self, record: Record, cache: Cache) -> None:
        self._carry_out(self._protocol.send_rows(record, self._schedules.pop(record.step), cache))

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        self._finish_background()
        return self._protocol.waiting()

    def close(self) -> None:
        self._finish_background()
        self._thread.shutdown()

    def _carry_out(self, phases: Phases) -> None:
        answer: Any = None
        while True:
            try:
                request = phases.send(answer)
            except StopIteration:
                return
            answer = self._do(request)

    def _do(self, request: Request) -> list[Payload] | None:
        if isinstance(request, Swap):
            return self._swap(request)
        if isinstance(request, StartBackground):
            self._travelling = self._thread.submit(self._travel, request.phases)
        else:
            self._span("update")
            self._finish_background()
            self._span("background_wait")
        return None

    def _travel(self, phases: Phases) -> None:
        self.link.wait()
        self._carry_out(phases)

    def _finish_background(self) -> None:
        if self._travelling is not None:
            self._travelling.result()
            self._travelling = None

    def _swap(self, swap: Swap) -> list[Payload]:
        sent, sizes = pack(swap.contents, swap.outgoing, self._layout)
        expected = [peer_buffer.size(self._layout) for peer_buffer in swap.incoming]
        meanwhile = swap.meanwhile
        if swap.after_dense and self._dense.under_way:
            meanwhile()
            meanwhile = nothing
            self._span("update")
            self._dense.wait()
            self._span("dense_wait")
        finish = self._mesh.start(swap.lane, sent, sizes, expected)
        meanwhile()
        return unpack(finish(), swap.incoming, self._layout)


def _all_positions(work: PlannedStep) -> Int32:
    return np.arange(len(work.record.unique), dtype=np.int32)


def sum_of_squares(sums: Float32) -> float:
    """Over all rows, in an order that follows from the numbers: where rows lie in a cache must not change a bit."""
    return float(np.sort(np.square(sums, dtype=np.float64).sum(axis=1)).sum())


@dataclass(frozen=True, slots=True)
class _OfStep:
    """The gradients of a step. A row's gradient is the mean over workers, as each weighs its loss by its samples."""

    work: PlannedStep
    gradient: Tensor
    cache: Cache
    num_workers: int

    def sums(self, positions: Int32) -> Tensor:
        return self.cache.sums(self.work, self.gradient, positions).div_(self.num_workers)

    def apply(self, positions: Int32) -> None:
        self.cache.update(self.work, self.gradient, positions, divisor=self.num_workers)


def recorded(exchange: Exchange, timeline: Timeline) -> Exchange:
    return exchange if timeline is NOT_RECORDED else RecordedExchange(exchange, timeline)


class RecordedExchange:
    """Each moment ends a span: what came before it, or the moment itself."""

    def __init__(self, exchange: Exchange, timeline: Timeline) -> None:
        self._exchange, self._timeline = exchange, timeline
        self.link, self.rank, self.expect, self.settle = exchange.link, exchange.rank, exchange.expect, exchange.settle
        self.squared_norm = exchange.squared_norm

    def receive_rows(self, step: int, cache: Cache) -> None:
        self._exchange.receive_rows(step, cache)
        self._timeline.track(TRAIN).span("fill", step)

    def update(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> None:
        track, step = updating_track(self._timeline), work.record.step
        track.span("other" if updates_during_backward() else "compute", step)
        self._exchange.update(work, gradient, cache)
        track.span("update", step)
        self._updated = work

    def send_rows(self, record: Record, cache: Cache) -> None:
        track = updating_track(self._timeline)
        track.span("evict", record.step)
        self._exchange.send_rows(record, cache)
        track.span("exchange", record.step)
        self._timeline.done(self._updated, cache)
