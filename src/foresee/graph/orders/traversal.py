"""One epoch over a partitioned graph: the states of a buffer, and the buckets of edges that each state trains.

Nodes are cut into p partitions of equal size; bucket (i, j) has the edges from partition i to partition j and can be
trained while both are in the buffer, which holds c of them. An order gives a `Traversal`: pure, with the generator of
random numbers passed in. Everything that trains or counts reads this and nothing else of an order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foresee.base.arrays import Int32


@dataclass(frozen=True, slots=True)
class Traversal:
    """The states of one epoch, in order, and what each trains."""

    num_partitions: int
    states: tuple[Int32, ...]
    """Partitions in the buffer, by slot: one that stays keeps its place."""
    buckets: tuple[Int32, ...]
    """For each state [buckets, 2]: (source partition, target partition), both there; each bucket once an epoch."""

    @property
    def swaps(self) -> int:
        """Partitions read after the first state was filled."""
        return sum(len(np.setdiff1d(new, old)) for old, new in zip(self.states[:-1], self.states[1:], strict=True))

    def reads(self, before: Int32 | None = None) -> int:
        """Partitions read in the epoch, if the buffer holds `before` when it begins; None: it is empty."""
        first = self.states[0]
        return self.swaps + (len(first) if before is None else len(np.setdiff1d(first, before)))
