"""One epoch over a partitioned graph: the states of a buffer, and the buckets of edges that each state trains.

Nodes are cut into p partitions of equal size; bucket (i, j) has the edges from partition i to partition j and can be
trained while both are in the buffer, which holds c of them. An order gives a `Traversal`: pure, with the generator of
random numbers passed in. Everything that trains or counts reads this and nothing else of an order. Below it stands what
orders share: two ways to say which state trains a bucket, and the states of an order that is a list of buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit

from foresee.arrays import Int32, Int64


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

    def state_of_bucket(self) -> Int32:
        """[p, p]: the state that trains bucket (source, target), -1 where none does: the grid that a report draws."""
        grid = np.full((self.num_partitions, self.num_partitions), -1, np.int32)
        for state, buckets in enumerate(self.buckets):
            grid[buckets[:, 0], buckets[:, 1]] = state
        return grid

    def unevenness(self) -> float:
        """How far an order of edges is from random, 0 to 1.

        How much the share of a partition's buckets that were trained differs from that of all, at the worst time of the
        epoch, as a mean over partitions. Edges in random order have 0.
        """
        grid = self.state_of_bucket()
        sides = np.concatenate([grid, grid.T], axis=1)
        trained = np.stack([np.bincount(side, minlength=len(self.states)) for side in sides]).cumsum(axis=1)
        shares = trained / trained[:, -1:]
        return float(np.abs(shares - shares.mean(axis=0)).max(axis=1).mean())


@dataclass(frozen=True, slots=True)
class Path:
    """States one read apart: the first, and for each read the slot that it fills and the partition that comes."""

    first: Int32
    slots: Int32
    incoming: Int32

    def states(self) -> list[Int32]:
        buffer, found = self.first.copy(), [self.first.copy()]
        for slot, partition in zip(self.slots.tolist(), self.incoming.tolist(), strict=True):
            buffer[slot] = partition
            found.append(buffer.copy())
        return found


def in_first_state(num_partitions: int, states: Sequence[Int32]) -> Traversal:
    """Each bucket is trained as soon as both partitions are there."""
    grid = np.full((num_partitions, num_partitions), -1, np.int32)
    for number in range(len(states) - 1, -1, -1):
        grid[np.ix_(states[number], states[number])] = number
    return _by_grid(states, grid)


def in_random_state(num_partitions: int, states: Sequence[Int32], rng: np.random.Generator) -> Traversal:
    """Each bucket is trained in one of the states that have both partitions, all with equal chance: deferred."""
    slots = np.stack([np.sort(state) for state in states])
    together = np.zeros((num_partitions, num_partitions), np.int64)
    _count_together(slots, together)
    chosen = (rng.random(together.shape) * together).astype(np.int64)
    grid = np.full(together.shape, -1, np.int32)
    _choose_state(slots, chosen, grid)
    return _by_grid(states, grid)


def from_buckets(num_partitions: int, capacity: int, order: Int32) -> Traversal:
    """States of a list of buckets [p * p, 2]: a partition that is not there comes when its bucket does.

    The one whose next use is furthest leaves (Belady). The buffer is filled at first with what is used first.
    """
    uses = _uses(num_partitions, order)
    by_first_use = sorted(range(num_partitions), key=lambda partition: uses[partition][-1])
    buffer = by_first_use[:capacity]
    begins, states = [0], [np.array(buffer, np.int32)]
    for at, bucket in enumerate(order.tolist()):
        missing = [partition for partition in dict.fromkeys(bucket) if partition not in buffer]
        for partition in missing:
            slots = [slot for slot, there in enumerate(buffer) if there not in bucket]
            buffer[max(slots, key=lambda slot: uses[buffer[slot]][-1])] = partition
        for partition in set(bucket):
            uses[partition].pop()
        if missing:
            begins.append(at)
            states.append(np.array(buffer, np.int32))
    return Traversal(num_partitions, tuple(states), tuple(np.split(order, begins[1:])))


def without_twins(pairs: Int32) -> Int32:
    """[pairs, 2, 2], a bucket and its transpose, one after the other [buckets, 2]; those on the diagonal once."""
    keep = np.ones(pairs.shape[:2], bool)
    keep[:, 1] = pairs[:, 0, 0] != pairs[:, 0, 1]
    found: Int32 = pairs[keep]
    return found


def states_of_nodes(traversal: Traversal, partitions: Int64, rng: np.random.Generator) -> Int32:
    """For each node, given its partition: one of the states that have it, all with equal chance; -1: none has it."""
    present = np.zeros((traversal.num_partitions, len(traversal.states)), bool)
    for number, state in enumerate(traversal.states):
        present[state, number] = True
    times, numbers = present.sum(1), np.nonzero(present)[1]
    begins = np.cumsum(times) - times
    chosen = begins[partitions] + (rng.random(len(partitions)) * times[partitions]).astype(np.int64)
    found = numbers[np.minimum(chosen, len(numbers) - 1)]
    return np.where(times[partitions] > 0, found, -1).astype(np.int32)


def _uses(num_partitions: int, order: Int32) -> list[list[int]]:
    """For each partition where it is used, the next use last, below it one behind the end."""
    uses = [[len(order)] for _ in range(num_partitions)]
    for at in range(len(order) - 1, -1, -1):
        for partition in {int(order[at, 0]), int(order[at, 1])}:
            uses[partition].append(at)
    return uses


def _by_grid(states: Sequence[Int32], grid: Int32) -> Traversal:
    by_state = np.argsort(grid.ravel(), kind="stable")
    sources, targets = np.divmod(by_state, len(grid))
    ends = np.searchsorted(grid.ravel()[by_state], np.arange(len(states) + 1))
    buckets = np.stack([sources, targets], axis=1).astype(np.int32)
    cut = tuple(buckets[begin:end] for begin, end in pairwise(ends))
    return Traversal(len(grid), tuple(states), cut)


@njit(cache=True)
def _count_together(states: Int32, together: Int64) -> None:
    for state in states:
        for i in state:
            for j in state:
                together[i, j] += 1


@njit(cache=True)
def _choose_state(states: Int32, left: Int64, grid: Int32) -> None:
    """Counts down in `left` the states with both partitions that pass before the chosen one."""
    for number in range(len(states)):
        for i in states[number]:
            for j in states[number]:
                if left[i, j] == 0:
                    grid[i, j] = number
                left[i, j] -= 1
