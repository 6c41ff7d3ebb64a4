"""A worker among peers: rows and gradients go where its records say.

What is said when stands in `conversation`; here it is carried out, over a mesh. The background exchange has a thread
and a lane of its own, so that neither queues behind the other.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from foresee.base.arrays import Int32, Int64
from foresee.engine.cache import Cache
from foresee.engine.exchange.dense import Sums
from foresee.engine.exchange.link_scheduler import LinkScheduler
from foresee.engine.exchange.mesh import Mesh
from foresee.engine.exchange.protocol import ExchangeProtocol, Phases, Request, StartBackground, Swap, nothing
from foresee.engine.exchange.schedule import ExchangeSchedule, Payload, pack, unpack
from foresee.engine.planned_step import PlannedStep
from foresee.plan.record import Record
from foresee.store.contract import Layout, Rows


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
        self._lap = span
        self._dense = dense or Sums()
        self._conversation = ExchangeProtocol(layout, mesh.rank, mesh.num_workers)
        self._itineraries: dict[int, ExchangeSchedule] = {}
        """Of steps that are planned and not done; as many as the pipeline's queues hold."""
        self._thread = ThreadPoolExecutor(1, "foresee-exchange")
        self._travelling: Future[None] | None = None

    def expect(self, record: Record) -> None:
        self._itineraries[record.step] = ExchangeSchedule.of(record, self.num_workers)

    def receive_rows(self, step: int, cache: Cache) -> None:
        self._conversation.receive_rows(step, cache)

    def update(self, work: PlannedStep, gradient: Tensor, cache: Cache) -> None:
        itinerary, gradients = self._itineraries[work.record.step], _OfStep(work, gradient, cache, self.num_workers)
        self._carry_out(self._conversation.update(work.record, itinerary, gradients, cache))

    def send_rows(self, record: Record, cache: Cache) -> None:
        self._carry_out(self._conversation.send_rows(record, self._itineraries.pop(record.step), cache))

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        self._finish_background()
        return self._conversation.waiting()

    def close(self) -> None:
        self._finish_background()
        self._thread.shutdown()

    def _carry_out(self, moments: Phases) -> None:
        answer: Any = None
        while True:
            try:
                request = moments.send(answer)
            except StopIteration:
                return
            answer = self._do(request)

    def _do(self, request: Request) -> list[Payload] | None:
        if isinstance(request, Swap):
            return self._swap(request)
        if isinstance(request, StartBackground):
            self._travelling = self._thread.submit(self._travel, request.moments)
        else:
            self._lap("update")
            self._finish_background()
            self._lap("background_wait")
        return None

    def _travel(self, moments: Phases) -> None:
        self.link.wait()
        self._carry_out(moments)

    def _finish_background(self) -> None:
        if self._travelling is not None:
            self._travelling.result()
            self._travelling = None

    def _swap(self, swap: Swap) -> list[Payload]:
        sent, sizes = pack(swap.contents, swap.outgoing, self._layout)
        expected = [parcel.size(self._layout) for parcel in swap.incoming]
        meanwhile = swap.meanwhile
        if swap.after_dense and self._dense.under_way:
            meanwhile()
            meanwhile = nothing
            self._lap("update")
            self._dense.wait()
            self._lap("dense_wait")
        finish = self._mesh.start(swap.lane, sent, sizes, expected)
        meanwhile()
        return unpack(finish(), swap.incoming, self._layout)


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
