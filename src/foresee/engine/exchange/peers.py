"""The exchange of rows and gradients with other workers, as the records say; for one worker alone there is none.

The training loop calls the same methods of an `Exchange` at each step. `LocalExchange` is a worker without peers: the
row kernels update in one pass and nothing is sent. `PeerExchange` is one worker among several: `protocol` decides what
is exchanged when, and here it is carried out over a mesh. The background exchange has a thread and a lane of its own,
so that neither queues behind the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from foresee.arrays import Float64, Int32, Int64
from foresee.engine.cache import Cache, Caches
from foresee.engine.exchange.dense import Sums
from foresee.engine.exchange.mesh import Finish, Lane, LinkScheduler, Mesh, UnscheduledLink
from foresee.engine.exchange.protocol import (
    ExchangeProtocol,
    Phases,
    Request,
    StartBackground,
    Swap,
    nothing,
    squares_of_rows,
)
from foresee.engine.exchange.schedule import ExchangeSchedule, Payload, pack, unpack
from foresee.engine.planned_step import PlannedStep
from foresee.engine.trace.tracer import NULL_TRACER, Tracer, thread_name
from foresee.store.contract import Rows
from foresee.store.layout import Layout


class Exchange(Protocol):
    """The phases of a step at which rows or gradients are exchanged."""

    link: LinkScheduler
    """Closed while critical transfers use the link."""

    @property
    def rank(self) -> int:
        """Which worker this is."""
        ...

    def expect(self, work: PlannedStep) -> None:
        """Prepare what follows from the record alone. Called long before the step, on the planner thread."""
        ...

    def receive_rows(self, step: int, caches: Caches) -> None:
        """Put the rows that peers sent for the step into their slots. Called before the step."""
        ...

    def update(self, work: PlannedStep, gradients: Sequence[Tensor], caches: Caches) -> None:
        """Send gradients to the owners of their rows, who apply them. Called after backward.

        The gradient of a group whose record learns nothing is ignored.
        """
        ...

    def squared_norm(self, work: PlannedStep, gradients: Sequence[Tensor], caches: Caches) -> float:
        """Return the squared norm of the gradients of the step's rows, each summed over all lookups of all workers."""
        ...

    def send_rows(self, work: PlannedStep, caches: Caches) -> None:
        """Send rows to the peers that need them next. Called after the evictions."""
        ...

    def settle(self, caches: Caches) -> list[list[tuple[Int64, Rows]]]:
        """Wait for background transfers, so that the caches are the state after the last step.

        Returns:
            For each group, the rows that belong to this worker and are in no cache yet, because their step has not
            begun. Together with what the caches hold they are the whole state.
        """
        ...


class LocalExchange:
    """One worker: every row is its own."""

    rank = 0

    def __init__(self) -> None:
        self.link: LinkScheduler = UnscheduledLink()

    def expect(self, work: PlannedStep) -> None:
        pass

    def receive_rows(self, step: int, caches: Caches) -> None:
        pass

    def update(self, work: PlannedStep, gradients: Sequence[Tensor], caches: Caches) -> None:
        for part, gradient, cache in zip(work.groups, gradients, caches, strict=True):
            if part.record.learns:
                cache.update(part, gradient)

    def squared_norm(self, work: PlannedStep, gradients: Sequence[Tensor], caches: Caches) -> float:
        groups = zip(work.groups, gradients, caches, strict=True)
        sums = (cache.sums(part, gradient, part.record.gradient_positions) for part, gradient, cache in groups)
        return sum(sum_of_sorted(squares_of_rows(of_group)) for of_group in sums)

    def send_rows(self, work: PlannedStep, caches: Caches) -> None:
        for part, cache in zip(work.groups, caches, strict=True):
            cache.table.free(part.record.drop)

    def settle(self, caches: Caches) -> list[list[tuple[Int64, Rows]]]:
        return [[] for _ in caches]


class PeerExchange:
    """One of `num_workers` workers. Close it before the process group is destroyed."""

    def __init__(self, layout: Layout, mesh: Mesh, tracer: Tracer = NULL_TRACER, dense: Sums | None = None) -> None:
        """Rows of several widths follow the protocol group by group, in step: what groups exchange together is sent
        as one buffer.

        Args:
            layout: Of the rows.
            mesh: Reaches the other workers.
            tracer: Records transfers and waits as spans.
            dense: Sums of dense gradients over the same link, which go before the rows of the next step.
        """
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self.link = LinkScheduler()
        self._layouts = layout.groups
        self._mesh = mesh
        self._tracer = tracer
        self._step = 0  # that exchanges last, for spans
        self._dense = dense or Sums()
        self._protocols = [ExchangeProtocol(group, mesh.rank, mesh.num_workers) for group in self._layouts]
        self._schedules: dict[int, list[ExchangeSchedule]] = {}
        """Of steps that are planned and not done; as many as the pipeline's queues hold."""
        self._thread = ThreadPoolExecutor(1, thread_name("exchange"))
        self._travelling: Future[None] | None = None

    def expect(self, work: PlannedStep) -> None:
        self._schedules[work.step] = [ExchangeSchedule.of(part.record, self.num_workers) for part in work.groups]

    def receive_rows(self, step: int, caches: Caches) -> None:
        self._step = step
        for protocol, cache in zip(self._protocols, caches, strict=True):
            protocol.receive_rows(step, cache)

    def update(self, work: PlannedStep, gradients: Sequence[Tensor], caches: Caches) -> None:
        self._step = work.step
        groups = zip(self._protocols, work.groups, self._schedules[work.step], gradients, caches, strict=True)
        self._carry_out(
            [
                protocol.update(part.record, schedule, _OfStep(part, gradient, cache, self.num_workers), cache)
                for protocol, part, schedule, gradient, cache in groups
            ]
        )

    def squared_norm(self, work: PlannedStep, gradients: Sequence[Tensor], caches: Caches) -> float:
        """Sum the gradients of shared rows at their owners, as `update` does; they are sent once more for it.

        Every worker returns the same bits, and they do not depend on which worker owns a row: a run that resumes, or
        has another cache, clips by the same norm.
        """
        self._step = work.step
        groups = zip(self._protocols, work.groups, self._schedules[work.step], gradients, caches, strict=True)
        with self._tracer.span("update", work.step):
            of_groups = self._carry_out(
                [
                    protocol.squares(part.record, schedule, _OfStep(part, gradient, cache, self.num_workers))
                    for protocol, part, schedule, gradient, cache in groups
                ]
            )
            alone = sum_of_sorted(*(squares for squares, _ in of_groups))
            of_workers = self._exchange_with_all(np.concatenate([[alone], *(squares for _, squares in of_groups)]))
        return sum(float(squares[0]) for squares in of_workers) + sum_of_sorted(*(it[1:] for it in of_workers))

    def _exchange_with_all(self, numbers: Float64) -> list[Float64]:
        """Return the numbers of every worker, in worker order. Workers may have different counts of them."""
        counts = self._send_to_all(np.array([len(numbers)], np.float64), [1] * self.num_workers)
        return self._send_to_all(numbers, [int(count[0]) for count in counts])

    def _send_to_all(self, numbers: Float64, counts: list[int]) -> list[Float64]:
        words = torch.from_numpy(numbers.view(np.float32))
        sent, expected = words.repeat(self.num_workers), [2 * count for count in counts]
        finish = self._start(Lane.CRITICAL, sent, [len(words)] * self.num_workers, expected)
        return [part.numpy().view(np.float64) for part in torch.split(finish(), expected)]

    def send_rows(self, work: PlannedStep, caches: Caches) -> None:
        groups = zip(self._protocols, work.groups, self._schedules.pop(work.step), caches, strict=True)
        self._carry_out(
            [protocol.send_rows(part.record, schedule, cache) for protocol, part, schedule, cache in groups]
        )

    def settle(self, caches: Caches) -> list[list[tuple[Int64, Rows]]]:
        self._finish_background()
        return [protocol.waiting() for protocol in self._protocols]

    def close(self) -> None:
        self._finish_background()
        self._thread.shutdown()

    def _carry_out(self, phases: Sequence[Phases]) -> list[Any]:
        """Run the phases of every group in step, as all ask for the same at the same time. Return their results."""
        answers: Sequence[Any] = [None for _ in phases]
        while True:
            requests = [_next(phase, answer) for phase, answer in zip(phases, answers, strict=True)]
            results = [request.result for request in requests if isinstance(request, _Ended)]
            if results:
                return results
            answers = self._do([request for request in requests if not isinstance(request, _Ended)])

    def _do(self, requests: Sequence[Request]) -> Sequence[list[Payload] | None]:
        if swaps := [request for request in requests if isinstance(request, Swap)]:
            return self._swap(swaps)
        if started := [request.phases for request in requests if isinstance(request, StartBackground)]:
            self._travelling = self._thread.submit(self._travel, started)
        else:
            with self._tracer.span("background_wait", self._step):
                self._finish_background()
        return [None for _ in requests]

    def _travel(self, phases: Sequence[Phases]) -> None:
        self.link.wait()
        self._carry_out(phases)

    def _finish_background(self) -> None:
        if self._travelling is not None:
            self._travelling.result()
            self._travelling = None

    def _swap(self, swaps: Sequence[Swap]) -> list[list[Payload]]:
        groups = list(zip(swaps, self._layouts, strict=True))
        sent, sizes = joined([pack(swap.contents, swap.outgoing, layout) for swap, layout in groups])
        expected = [[peer_buffer.size(layout) for peer_buffer in swap.incoming] for swap, layout in groups]

        def meanwhile() -> None:
            for swap in swaps:
                swap.meanwhile()

        remaining = meanwhile
        if swaps[0].after_dense and self._dense.under_way:
            remaining()
            remaining = nothing
            with self._tracer.span("dense_wait", self._step):
                self._dense.wait()
        finish = self._start(swaps[0].lane, sent, sizes, [sum(it) for it in zip(*expected, strict=True)])
        remaining()
        arrived = divided(finish(), expected)
        return [unpack(it, swap.incoming, layout) for it, (swap, layout) in zip(arrived, groups, strict=True)]

    def _start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        """Start a transfer. Waiting for it is a span, and its bytes count as soon as it is over."""
        step, word_bytes = self._step, sent.element_size()
        out, back = (
            {peer: size * word_bytes for peer, size in enumerate(parts) if peer != self.rank}
            for parts in (sizes, expected)
        )
        wait = self._mesh.start(lane, sent, sizes, expected)

        def finish() -> Tensor:
            what = "exchange" if lane is Lane.CRITICAL else "background"
            with self._tracer.span(what, step, sum(out.values()) + sum(back.values())):
                received = wait()
            self._tracer.swapped(out, back, critical=lane is Lane.CRITICAL)
            return received

        return finish


@dataclass(frozen=True, slots=True)
class _Ended:
    """A phase that is over, and what it returned."""

    result: Any


def _next(phase: Phases, answer: Any) -> Request | _Ended:
    """Return what the phase asks for next."""
    try:
        return phase.send(answer)
    except StopIteration as end:
        return _Ended(end.value)


def joined(packed: Sequence[tuple[Tensor, list[int]]]) -> tuple[Tensor, list[int]]:
    """The buffers of all groups as one: peer after peer, and within a peer's part group after group."""
    if len(packed) == 1:
        return packed[0]
    by_group = [torch.split(buffer, sizes) for buffer, sizes in packed]
    parts = [part for of_peer in zip(*by_group, strict=True) for part in of_peer]
    return torch.cat(parts), [sum(it) for it in zip(*(sizes for _, sizes in packed), strict=True)]


def divided(buffer: Tensor, sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The buffer of each group again, given how much of it came from each peer."""
    if len(sizes) == 1:
        return [buffer]
    parts = torch.split(buffer, [size for of_peer in zip(*sizes, strict=True) for size in of_peer])
    return [torch.cat(parts[group :: len(sizes)]) for group in range(len(sizes))]


def sum_of_sorted(*squares: Float64) -> float:
    """Add up in an order that follows from the numbers: where rows are cached must not change a bit."""
    return float(np.sort(np.concatenate(squares)).sum())


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
