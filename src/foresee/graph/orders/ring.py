"""`ring`: our order. Partitions stand on a circle, a window moves round it, and visitors come into the last slot.

A window of c - 1 neighbours takes in partition i, which meets the c - 2 others and the last visitor: distances 1 to
c - 1. Then visitors come from further ahead; one at distance b meets distances b to b + c - 2. With visitors at ...,
3c - 2, 2c - 1, c, a turn covers each distance from 1 to m (c - 1) once. So where p = 2 m (c - 1) + 1 every pair meets
in m p states, and no read is wasted. A buffer of more than half keeps what it can and turns the rest. For other p it is
the better of the next larger ring without useless visits, and of the next smaller one with guests or a round of beta.

An epoch begins with the partitions that the last one left: they are the first state, and all other places on the circle
are drawn anew. Each bucket is trained in a random one of the states that have it. With logical partitions random groups
stand on the circle instead: fewer and larger states. With several turns each pair meets several times an epoch.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from foresee.arrays import Int32
from foresee.errors import PlanError
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Path, Traversal, in_random_state


def ring(setting: Setting, rng: np.random.Generator) -> Traversal:
    p, c, size = setting.num_partitions, setting.capacity, _group_size(setting)
    held = rng.permutation(p)[:c].astype(np.int32) if setting.carried is None else setting.carried
    states = [held]
    for _ in range(setting.turns):
        states += _turned(_some_path(p // size, c // size, rng), p, states[-1], rng)
    return in_random_state(p, states, rng)


def ring_path(p: int, c: int, phase: int = 0) -> Path:
    """A turn where p = 2 m (c - 1) + 1, entered in one of m phases: after so many visitors of the first period."""
    m = ring_multiple(p, c)
    if m is None:
        raise ValueError(f"no ring of {p} partitions fits a buffer of {c}")
    return _turn(p, c, m, phase)


@lru_cache(maxsize=4096)
def best_path(p: int, c: int) -> Path:
    """The shortest path of states that we know, for any p and c."""
    if 2 * c > p:
        return _around_pinned(p, c)
    if ring_multiple(p, c):
        return ring_path(p, c)
    m, more = divmod(p - 1, 2 * (c - 1))
    above = _with_guests(p, c, m) if 2 < c > more else _after_round(p, c, best_path(p - (c - 1), c))
    if c == 2:
        return above  # Every read makes one new pair: there is nothing to gain.
    return min(_sparse_ring(p, c), above, key=lambda path: len(path.slots))


def _some_path(p: int, c: int, rng: np.random.Generator) -> Path:
    m = ring_multiple(p, c)
    return best_path(p, c) if m is None else ring_path(p, c, int(rng.integers(m)))


def _turned(path: Path, p: int, held: Int32, rng: np.random.Generator) -> list[Int32]:
    """The states of the path behind its first, which is what the buffer holds; who is where on it is drawn.

    A partition of the path is a group here, and a slot of it as many slots.
    """
    slots_of = rng.permutation(len(held)).reshape(len(path.first), -1)
    size = slots_of.shape[1]
    members = np.empty((p // size, size), np.int32)
    members[path.first] = held[slots_of]
    others = np.setdiff1d(np.arange(p // size), path.first)
    members[others] = rng.permutation(np.setdiff1d(np.arange(p), held)).reshape(-1, size)
    buffer, found = held.copy(), []
    for slot, group in zip(path.slots.tolist(), path.incoming.tolist(), strict=True):
        buffer[slots_of[slot]] = members[group]
        found.append(buffer.copy())
    return found


def _group_size(setting: Setting) -> int:
    p, c, groups = setting.num_partitions, setting.capacity, setting.logical_partitions or setting.num_partitions
    size = p // groups if 0 < groups <= p else 0
    if size == 0 or p % groups or c % size or (c < 2 * size and c < p):
        raise PlanError(
            f"ring cannot put {p} partitions into {groups} groups of which a buffer of {c} holds 2 or more; choose "
            "numbers of partitions, buffer and logical partitions that divide each other, such as 64, 32 and 4"
        )
    return size


def _around_pinned(p: int, c: int) -> Path:
    """p - c must come and as many must come back; 2 (p - c) + 1 partitions turn, and all others stay."""
    turning, room = 2 * (p - c) + 1, p - c + 1
    if turning == 1:
        return Path(np.arange(p, dtype=np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
    path = ring_path(turning, room)
    return Path(np.append(path.first, np.arange(turning, p)).astype(np.int32), path.slots, path.incoming)


def _with_guests(p: int, c: int, m: int) -> Path:
    """A ring, and up to c - 1 guests who stand on no circle: each visits whenever the window is all new to them.

    So a guest meets c - 1 partitions with every read, and in 2 m visits all but one, `last`. Guests, `last` and as many
    of the first window as fit are the first state. The others of the window come for `last` and guests, but 0 is there
    before `last` leaves: a ring of m = 1 makes that pair in no other state.
    """
    n = 2 * m * (c - 1) + 1
    guests, last, window = list(range(n, p)), n - c + 1, [-place % n for place in range(c - 1)]
    there, coming = window[: n + c - 1 - p], window[n + c - 1 - p :]
    leaving = [last, *guests[:-1]] if there else [guests[0], last, *guests[1:-1]]
    first, reads = [*guests, last, *there], list(zip(leaving, coming, strict=True))
    visitor = guests[-1]
    for period in range(n):
        come = guests[:-1] if period == 0 else guests if period % (c - 1) == 0 and period < 2 * m * (c - 1) else []
        ahead = [(period + k * (c - 1) + 1) % n for k in range(m - 1, 0, -1)]
        if period > 0:
            reads.append((visitor if m == 1 else (period - c + 1) % n, period))
            visitor = (period - c + 1) % n if m == 1 else visitor
        for partition in [*come, *([c - 1] if period == 0 and m > 1 else []), *ahead]:
            reads.append((visitor, partition))
            visitor = partition
    return _by_slot(first, reads)


def _by_slot(first: list[int], reads: list[tuple[int, int]]) -> Path:
    """Of reads by who leaves and who comes."""
    slot_of = {partition: slot for slot, partition in enumerate(first)}
    slots = []
    for leaving, coming in reads:
        slot_of[coming] = slot_of.pop(leaving)
        slots.append(slot_of[coming])
    incoming = [coming for _, coming in reads]
    return Path(np.array(first, np.int32), np.array(slots, np.int32), np.array(incoming, np.int32))


def _after_round(p: int, c: int, rest: Path) -> Path:
    """As beta begins: c - 1 partitions meet all others and are done; then the rest without them."""
    label_of = np.empty(p - c + 1, np.int32)
    label_of[rest.first[-1]] = p - 1
    label_of[np.setdiff1d(np.arange(p - c + 1), rest.first[-1:])] = np.arange(c - 1, p - 1)
    slots = np.concatenate([np.full(p - c, c - 1), np.arange(c - 1), rest.slots])
    incoming = np.concatenate([np.arange(c, p), label_of[rest.first[:-1]], label_of[rest.incoming]])
    return Path(np.arange(c, dtype=np.int32), slots.astype(np.int32), incoming.astype(np.int32))


def _turn(p: int, c: int, m: int, phase: int = 0) -> Path:
    """All that comes while the window moves once round p partitions, with m - 1 visitors in each period."""
    window = c if m == 1 else c - 1
    first = np.empty(c, np.int32)
    first[-np.arange(window) % window] = -np.arange(window) % p
    if m > 1:
        first[-1] = c - 1 if phase == 0 else (m - phase) * (c - 1) + 1
    period = np.arange(p + 1, dtype=np.int32)[:, None]
    ahead = np.array([0, *((m - visitor) * (c - 1) + 1 for visitor in range(1, m))], np.int32)
    incoming, slots = period + ahead, np.full((p + 1, m), c - 1, np.int32)
    incoming[incoming >= p] -= p
    slots[:, :1] = period % window
    turn = slice(phase + 1, phase + m * p)
    return Path(first, slots.ravel()[turn], incoming.ravel()[turn])


def _sparse_ring(p: int, c: int) -> Path:
    """The ring with enough visitors for all distances; one that would make no new pair does not come.

    The last visitor of a period also meets whoever enters next. One that stays until its own turn to enter the window
    is there already: its slot and that of the oldest change roles.
    """
    path = _turn(p, c, -(-(p - 1) // (2 * (c - 1))))
    slot_of, visiting = list(range(c)), c - 1
    buffer, missing, reads = path.first.copy(), ~np.eye(p, dtype=bool), []
    missing[np.ix_(buffer, buffer)] = False
    coming = list(zip(path.slots.tolist(), path.incoming.tolist(), strict=True))
    for (role, partition), (next_role, after) in pairwise([*coming, (visiting, 0)]):
        meets = buffer.copy()
        meets[slot_of[visiting]] = partition if next_role == visiting else after
        if partition == buffer[slot_of[visiting]]:
            slot_of[role], slot_of[visiting] = slot_of[visiting], slot_of[role]
        elif role != visiting or missing[partition, meets].any():
            buffer[slot_of[role]] = partition
            missing[partition, buffer] = missing[buffer, partition] = False
            reads.append((slot_of[role], partition))
    slots, incoming = np.array(reads, np.int32).T
    return Path(path.first, slots, incoming)


RING = Order(
    name="ring",
    meaning="ours: a window moves round a circle of partitions and visitors meet it; the buffer is carried on",
    colour="#2b8a3e",
    needs="any buffer of 2 or more; reads least where p = 2 m (c - 1) + 1",
    traverse=ring,
    carries=True,
)


def pair_bound(p: int, c: int) -> int:
    """No order has fewer swaps: c (c - 1) / 2 pairs are together at first, and a swap makes at most c - 1 more."""
    return _divided_up(p * (p - 1) // 2 - c * (c - 1) // 2, c - 1)


def bucket_bound(p: int, c: int) -> int:
    """The same counted by buckets, as the authors' talk does; never above `pair_bound`."""
    return _divided_up(p * p - c * c, 2 * c - 1)


def swap_bound(p: int, c: int) -> int:
    """No order has fewer swaps, by pairs or by returns.

    When the last partition comes for the first time, p - c have come and p - c have left. Each of these has to meet the
    last one, so it comes once more: 2 (p - c) reads. This is the larger bound where the buffer holds half or more.
    """
    return max(pair_bound(p, c), 2 * (p - c))


def turn_bound(p: int, c: int) -> int:
    """No closed turn, at whose end the buffer is what it was, has fewer reads.

    Let k partitions stay all the time. Of the others each is read at least once, and each read makes at most c - 1 - k
    of their pairs: reads >= max(p - k, pairs of p - k / (c - 1 - k)). The least over k is at k = 0, unless the buffer
    holds more than half: then all but 2 (p - c) + 1 can stay, and these are read once.
    """
    if c == p:
        return 0
    if 2 * c > p:
        return 2 * (p - c) + 1
    return _divided_up(p * (p - 1) // 2, c - 1)


def beta_swaps(p: int, c: int) -> int:
    """Swaps of BETA: rounds that hold c - 1 partitions while all others pass by, then bring the next c - 1."""
    beyond = p - c
    rounds = beyond // (c - 1) + 1
    return beyond + rounds * beyond - rounds * (rounds - 1) // 2 * (c - 1)


def ring_swaps(p: int, c: int) -> int:
    """Swaps of the ring where p = 2 m (c - 1) + 1: one fewer than `turn_bound`, since the first state is there."""
    return turn_bound(p, c) - 1


def ring_multiple(p: int, c: int) -> int | None:
    """The m of p = 2 m (c - 1) + 1, the form for which a ring reaches `turn_bound`; None: p has another form."""
    m, rest = divmod(p - 1, 2 * (c - 1))
    return m if m > 0 and rest == 0 else None


def _divided_up(number: int, by: int) -> int:
    return -(-number // by)
