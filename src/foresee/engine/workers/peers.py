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

from foresee.engine.cache import Cache
from foresee.engine.gate import Gate
from foresee.engine.work import Work
from foresee.engine.workers.conversation import Conversation, Moments, Request, StartBackground, Swap, nothing
from foresee.engine.workers.dense import Sums
from foresee.engine.workers.itinerary import Itinerary
from foresee.engine.workers.mesh import Mesh
from foresee.engine.workers.parcels import Contents, pack, unpack
from foresee.plan.record import Int32, Int64, Record
from foresee.store.contract import Layout, Rows


class PeerExchange:
    """One of `num_workers` workers. Close it before the process group is destroyed."""

    def __init__(
        self, layout: Layout, mesh: Mesh, lap: Callable[[str], None] = lambda what: None, dense: Sums | None = None
    ) -> None:
        """`lap` is told, by the thread that updates, what it did last: for a timeline.

        dense: the sums of dense gradients over the same link, which go before the rows of the next step.
        """
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self.gate = Gate()
        self._layout = layout
        self._mesh = mesh
        self._lap = lap
        self._dense = dense or Sums()
        self._conversation = Conversation(layout, mesh.rank, mesh.num_workers)
        self._itineraries: dict[int, Itinerary] = {}
        """Of steps that are planned and not done; as many as the pipeline's queues hold."""
        self._thread = ThreadPoolExecutor(1, "foresee-exchange")
        self._travelling: Future[None] | None = None

    def expect(self, record: Record) -> None:
        self._itineraries[record.step] = Itinerary.of(record, self.num_workers)

    def deliver(self, step: int, cache: Cache) -> None:
        self._conversation.deliver(step, cache)

    def update(self, work: Work, gradient: Tensor, cache: Cache) -> None:
        itinerary, gradients = self._itineraries[work.record.step], _OfStep(work, gradient, cache, self.num_workers)
        self._carry_out(self._conversation.update(work.record, itinerary, gradients, cache))

    def depart(self, record: Record, cache: Cache) -> None:
        self._carry_out(self._conversation.depart(record, self._itineraries.pop(record.step), cache))

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        self._finish_background()
        return self._conversation.waiting()

    def close(self) -> None:
        self._finish_background()
        self._thread.shutdown()

    def _carry_out(self, moments: Moments) -> None:
        answer: Any = None
        while True:
            try:
                request = moments.send(answer)
            except StopIteration:
                return
            answer = self._do(request)

    def _do(self, request: Request) -> list[Contents] | None:
        if isinstance(request, Swap):
            return self._swap(request)
        if isinstance(request, StartBackground):
            self._travelling = self._thread.submit(self._travel, request.moments)
        else:
            self._lap("update")
            self._finish_background()
            self._lap("background_wait")
        return None

    def _travel(self, moments: Moments) -> None:
        self.gate.wait()
        self._carry_out(moments)

    def _finish_background(self) -> None:
        if self._travelling is not None:
            self._travelling.result()
            self._travelling = None

    def _swap(self, swap: Swap) -> list[Contents]:
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

    work: Work
    gradient: Tensor
    cache: Cache
    num_workers: int

    def sums(self, positions: Int32) -> Tensor:
        return self.cache.sums(self.work, self.gradient, positions).div_(self.num_workers)

    def apply(self, positions: Int32) -> None:
        self.cache.update(self.work, self.gradient, positions, divisor=self.num_workers)
