"""`ring`: our order. Partitions stand on a circle, a window moves round it, and visitors come into the last slot.

A window of c - 1 neighbours takes in partition i, which meets the c - 2 others and the last visitor: distances 1 to
c - 1. Then visitors come from further ahead; one at distance b meets distances b to b + c - 2. With visitors at ...,
3c - 2, 2c - 1, c, a turn covers each distance from 1 to m (c - 1) once. So where p = 2 m (c - 1) + 1 every pair meets
in m p states, and no read is wasted. A buffer of more than half keeps what it can and turns the rest. For other p the
best of a ring without useless visits, of beta's rounds before a smaller ring, and of a greedy end is taken.

An epoch begins with the partitions that the last one left: they are the first state, and all other places on the circle
are drawn anew. Each bucket is trained in a random one of the states that have it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from foresee.base.arrays import Bool, Int32
from foresee.graph.orders.bounds import ring_multiple
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Path, Traversal, in_random_state


def ring(setting: Setting, rng: np.random.Generator) -> Traversal:
    p, held = setting.num_partitions, setting.carried
    states: list[Int32] = []
    for _ in range(setting.turns):
        turn = _relabelled(_some_path(p, setting.capacity, rng), p, held, rng).states()
        states += turn[1:] if states else turn
        held = states[-1]
    return in_random_state(p, states, rng)


def ring_path(p: int, c: int, phase: int = 0) -> Path:
    """A turn where p = 2 m (c - 1) + 1, entered in one of m phases: after so many visitors of the first period."""
    m = ring_multiple(p, c)
    if m is None:
        raise ValueError(f"no ring of {p} partitions fits a buffer of {c}")
    window = c if m == 1 else c - 1
    first = np.empty(c, np.int32)
    first[-np.arange(window) % window] = -np.arange(window) % p
    if m > 1:
        first[-1] = c - 1 if phase == 0 else (m - phase) * (c - 1) + 1
    period, event = np.divmod(np.arange(phase + 1, phase + m * p), m)
    slots = np.where(event == 0, period % window, c - 1)
    incoming = np.where(event == 0, period, period + (m - event) * (c - 1) + 1) % p
    return Path(first, slots.astype(np.int32), incoming.astype(np.int32))


@lru_cache(maxsize=256)
def best_path(p: int, c: int) -> Path:
    """The shortest path of states that we know, for any p and c."""
    if 2 * c > p:
        return _around_pinned(p, c)
    if ring_multiple(p, c):
        return ring_path(p, c)
    found = [_sparse_ring(p, c), _after_round(p, c, best_path(p - (c - 1), c))]
    return min(found, key=lambda path: len(path.slots))


def _some_path(p: int, c: int, rng: np.random.Generator) -> Path:
    m = ring_multiple(p, c)
    return best_path(p, c) if m is None else ring_path(p, c, int(rng.integers(m)))


def _relabelled(path: Path, p: int, held: Int32 | None, rng: np.random.Generator) -> Path:
    """The same path over other partitions: first those that are held, in their slots."""
    c = len(path.first)
    if held is None:
        held = rng.permutation(p)[:c].astype(np.int32)
    slot_of = rng.permutation(c).astype(np.int32)
    label_of = np.empty(p, np.int32)
    label_of[path.first] = held[slot_of]
    label_of[np.setdiff1d(np.arange(p), path.first)] = rng.permutation(np.setdiff1d(np.arange(p), held))
    return Path(held, slot_of[path.slots], label_of[path.incoming])


def _around_pinned(p: int, c: int) -> Path:
    """p - c must come and as many must come back; 2 (p - c) + 1 partitions turn, and all others stay."""
    turning, room = 2 * (p - c) + 1, p - c + 1
    if turning == 1:
        return Path(np.arange(p, dtype=np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
    path = ring_path(turning, room)
    return Path(np.append(path.first, np.arange(turning, p)).astype(np.int32), path.slots, path.incoming)


def _after_round(p: int, c: int, rest: Path) -> Path:
    """As beta begins: c - 1 partitions meet all others and are done; then the rest without them."""
    label_of = np.empty(p - c + 1, np.int32)
    label_of[rest.first[-1]] = p - 1
    label_of[np.setdiff1d(np.arange(p - c + 1), rest.first[-1:])] = np.arange(c - 1, p - 1)
    slots = np.concatenate([np.full(p - c, c - 1), np.arange(c - 1), rest.slots])
    incoming = np.concatenate([np.arange(c, p), label_of[rest.first[:-1]], label_of[rest.incoming]])
    return Path(np.arange(c, dtype=np.int32), slots.astype(np.int32), incoming.astype(np.int32))


def _sparse_ring(p: int, c: int) -> Path:
    """The ring of the next larger m; what makes no new pair does not come, and a greedy end takes over at the best time."""
    m = -(-(p - 1) // (2 * (c - 1)))
    found = [_cut_ring(p, c, multiple, periods) for multiple in (m - 1, m) for periods in (p // 2, p - c, p) if multiple]
    return min(found, key=lambda path: len(path.slots))


def _cut_ring(p: int, c: int, m: int, num_periods: int) -> Path:
    window = c if m == 1 else c - 1
    first = np.empty(c, np.int32)
    first[-np.arange(window) % window] = -np.arange(window) % p
    if m > 1:
        first[-1] = c - 1
    meetings = _Meetings(p, first)
    for event in range(1, num_periods * m):
        period, visitor = divmod(event, m)
        partition = (period + (m - visitor) * (c - 1) + 1 if visitor else period) % p
        meetings.bring(c - 1 if visitor else period % window, partition, needed=not visitor)
    meetings.finish()
    return Path(first, np.array(meetings.slots, np.int32), np.array(meetings.incoming, np.int32))


class _Meetings:
    """A buffer, and which pairs of partitions have not been in it together."""

    def __init__(self, p: int, first: Int32) -> None:
        self._buffer = first.copy()
        self._missing: Bool = ~np.eye(p, dtype=bool)
        self._missing[np.ix_(first, first)] = False
        self.slots: list[int] = []
        self.incoming: list[int] = []

    def bring(self, slot: int, partition: int, needed: bool = True) -> None:
        """Brings a partition into a slot; one that is not needed there comes only if it makes a new pair."""
        there = np.flatnonzero(self._buffer == partition)
        if len(there):
            if needed:
                self._buffer[there[0]], self._buffer[slot] = self._buffer[slot], partition
            return
        left = self._buffer[slot]
        self._buffer[slot] = partition
        if not needed and not self._missing[partition, self._buffer].any():
            self._buffer[slot] = left
            return
        self._missing[partition, self._buffer] = self._missing[self._buffer, partition] = False
        self.slots.append(slot)
        self.incoming.append(partition)

    def finish(self) -> None:
        """Until all have met: what makes most pairs comes, for the one that has fewest to make."""
        while self._missing.any():
            to_make = self._missing.sum(axis=1)
            new = self._missing[:, self._buffer]
            gain = new.sum(axis=1)[:, None] - new - to_make[self._buffer] / (len(to_make) + 1)
            gain[self._buffer] = -np.inf
            gain[to_make == 0] = -np.inf
            partition, slot = np.unravel_index(np.argmax(gain), gain.shape)
            self.bring(int(slot), int(partition))


ORDER = Order(
    name="ring",
    meaning="ours: a window moves round a circle of partitions and visitors meet it; the buffer is carried on",
    colour="#2b8a3e",
    needs="any buffer of 2 or more; reads least where p = 2 m (c - 1) + 1",
    traverse=ring,
    carries=True,
)
