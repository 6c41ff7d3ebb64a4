"""What a worker does for and with its peers, as the records say.

`LocalExchange` is a worker without peers: the row kernels update in one pass and nothing travels. `peers.PeerExchange`
is one among several. The training loop calls the same four methods at each step on either.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from foresee.base.arrays import Int64
from foresee.engine.cache import Cache
from foresee.engine.exchange.link_scheduler import LinkScheduler, UnscheduledLink
from foresee.engine.planned_step import PlannedStep
from foresee.plan.record import Record
from foresee.store.contract import Rows


class Exchange(Protocol):
    """The moments of a step at which rows or gradients may come or go."""

    link: LinkScheduler
    """Closed while the link belongs to what is urgent."""

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
        """After backward: gradients go to the owners of their rows, and owners apply them."""
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
        cache.update(work, gradient)

    def send_rows(self, record: Record, cache: Cache) -> None:
        pass

    def settle(self, cache: Cache) -> list[tuple[Int64, Rows]]:
        return []
