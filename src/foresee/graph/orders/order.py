"""What an order is: a way to bring an epoch's buckets before a buffer, with all that lists and reports say of it.

In: a `Setting` (partitions, buffer, what the last epoch left there) and a generator of random numbers. Out: a
`Traversal`. An order stands in one file beside this one and one line of the registry; from outside, an entry point of
the group `foresee.orders` adds one. Everything else asks the registry: nobody compares names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from foresee.arrays import Int32
from foresee.errors import PlanError
from foresee.graph.orders.traversal import Traversal, in_first_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What an order is asked for."""

    num_partitions: int
    capacity: int
    """Partitions that the buffer holds."""
    carried: Int32 | None = None
    """What it holds when the epoch begins, by slot: the last state of the epoch before. None: nothing."""
    pinned: int = 0
    """The first so many partitions stay in the buffer all epoch, such as those with the training nodes."""
    logical_partitions: int | None = None
    """Groups of partitions that move together, for orders of two levels; None: what the order thinks best."""
    turns: int = 1
    """How often every pair of partitions meets in an epoch, for orders that can: more reads, closer to random."""

    def __post_init__(self) -> None:
        p, c = self.num_partitions, self.capacity
        if not min(p, 2) <= c <= p or p < 1:
            raise PlanError(
                f"a buffer of {c} partitions cannot train a graph of {p}; "
                f"give it at least {min(max(p, 1), 2)} and at most {max(p, 1)}"
            )
        if not 0 <= self.pinned <= p:
            raise PlanError(f"{self.pinned} of {p} partitions cannot stay; pin between 0 and {p}")
        if self.turns < 1:
            raise PlanError(f"an epoch cannot have {self.turns} turns; give 1 or more")
        if self.carried is not None and not _is_state(self.carried, p, c):
            raise PlanError(
                f"the buffer cannot hold {self.carried.tolist()} of {p} partitions when an epoch begins; "
                f"give {c} different ones, or none"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One order."""

    name: str
    meaning: str
    """What it does, for lists and captions."""
    colour: str
    """Of its lines and bars, as `#3b82c4`."""
    needs: str
    """What it asks of partitions, buffer or data, for lists and sentences."""
    traverse: Callable[[Setting, np.random.Generator], Traversal]
    trains: Literal["edges", "nodes"] = "edges"
    """Every bucket once an epoch; or the nodes of partition q, which stand as bucket (q, q)."""
    carries: bool = False
    """Begins with what the epoch before left in the buffer, if that is given."""


def _is_state(state: Int32, num_partitions: int, capacity: int) -> bool:
    in_range = bool(np.all((state >= 0) & (state < num_partitions)))
    return in_range and len(state) == capacity == len(np.unique(state))


def random(setting: Setting, rng: np.random.Generator) -> Traversal:
    return in_first_state(setting.num_partitions, [np.arange(setting.num_partitions, dtype=np.int32)])


RANDOM = Order(
    name="random",
    meaning="edges of the whole graph in random order, as in memory",
    colour="#555555",
    needs="memory for all rows, or planned rows as the unit of transfer",
    traverse=random,
    carries=True,
)
