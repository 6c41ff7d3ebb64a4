"""Which worker trains which sample of a batch, every worker the same number.

In: the distinct rows that each sample touches, who owns them, and when they were touched last. Out: a worker for each
sample. The global batch stays the same set of samples, so what synchronous training computes stays the same.

    contiguous       the first n samples to worker 0, the next n to worker 1, ...
    herald           the published greedy: in file order, each sample to the worker that owns most of its rows
    location_aware   in file order to the worker where it costs the fewest transfers, given who was placed before;
                     then pairs of samples change places as long as that saves transfers
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit

from foresee.plan.record import Int32, Int64

NO_OWNER = -1


@dataclass(frozen=True, slots=True)
class Scene:
    """What a placement may look at."""

    step: int
    num_workers: int
    sample_offsets: Int32  # [samples + 1]
    inverse: Int32  # [lookups]: which distinct row
    owner: Int32  # [distinct]: worker, or NO_OWNER: in the store
    last_touch: Int32  # [distinct]: step of the latest touch before this one, or -1
    next_touch: Int32  # [distinct]: step of the next one as far as is known, or -1

    @property
    def num_samples(self) -> int:
        return len(self.sample_offsets) - 1


Placement = Callable[[Scene], Int32]


def contiguous(scene: Scene) -> Int32:
    """Equal slices in file order."""
    return (np.arange(scene.num_samples) * scene.num_workers // scene.num_samples).astype(np.int32)


def herald(scene: Scene) -> Int32:
    """Herald's greedy, exactly: file order, ties to the first worker in an order rotated by the batch's number."""
    placed = np.empty(scene.num_samples, np.int32)
    load_max = -(-scene.num_samples // scene.num_workers)
    _greedy(scene.sample_offsets, scene.inverse, scene.owner, scene.num_workers, scene.step, load_max, placed)
    return placed


def location_aware(scene: Scene) -> Int32:
    """Fewest transfers, critical ones first."""
    costs = _row_costs(scene)
    placed = np.empty(scene.num_samples, np.int32)
    counts = np.zeros((len(scene.owner), scene.num_workers), np.int32)
    load_max = -(-scene.num_samples // scene.num_workers)
    _place_by_cost(
        scene.sample_offsets, scene.inverse, scene.owner, costs, scene.num_workers, scene.step, load_max, counts, placed
    )
    _swap_pairs(scene.sample_offsets, scene.inverse, scene.owner, costs, scene.num_workers, counts, placed, SWAP_ROUNDS)
    return placed


PLACEMENTS: dict[str, Placement] = {"contiguous": contiguous, "herald": herald, "location_aware": location_aware}

CRITICAL = 4
"""What a transfer on the critical path costs, in units of one in the background."""
SWAP_ROUNDS = 3


def _row_costs(scene: Scene) -> Int64:
    """[distinct, 2]: the cost of the first user who is not the owner, and of each further user.

    A first user elsewhere costs a move (a fetch, which any first user costs, is no reason to prefer a worker). Each
    further user costs a copy before the step and a gradient after it.
    """
    arrives = np.where(scene.last_touch == scene.step - 1, CRITICAL, 1)
    leaves = np.where(scene.next_touch == scene.step + 1, CRITICAL, 1)
    owned = scene.owner != NO_OWNER
    return np.stack([np.where(owned, arrives, 0), np.where(owned, arrives, 1) + leaves], axis=1).astype(np.int64)


@njit(nogil=True, cache=True)
def _greedy(
    offsets: Int32, inverse: Int32, owner: Int32, num_workers: int, rotation: int, load_max: int, placed: Int32
) -> None:
    load = np.zeros(num_workers, np.int64)
    score = np.zeros(num_workers, np.int64)
    for sample in range(len(placed)):
        score[:] = 0
        for k in range(offsets[sample], offsets[sample + 1]):
            if owner[inverse[k]] >= 0:
                score[owner[inverse[k]]] += 1
        best = -1
        for turn in range(num_workers):
            worker = (rotation + turn) % num_workers
            if load[worker] < load_max and (best < 0 or score[worker] > score[best]):
                best = worker
        placed[sample] = best
        load[best] += 1


@njit(nogil=True, cache=True, inline="always")
def _cost_of_joining(counts: Int32, owner: Int32, costs: Int64, row: int, worker: int, users: int) -> int:
    """What a row costs more if `worker` becomes one of its users; `users` workers are so already."""
    if counts[row, worker] > 0:
        return 0
    if users == 0:
        return 0 if owner[row] == worker else int(costs[row, 0])
    if owner[row] >= 0 and counts[row, owner[row]] == 0 and owner[row] == worker:
        # The owner joins: no move after all, but the users so far become copies.
        return int(costs[row, 1] - costs[row, 0])
    return int(costs[row, 1])


@njit(nogil=True, cache=True, inline="always")
def _num_users(counts: Int32, row: int) -> int:
    users = 0
    for worker in range(counts.shape[1]):
        users += counts[row, worker] > 0
    return users


@njit(nogil=True, cache=True)
def _place_by_cost(
    offsets: Int32, inverse: Int32, owner: Int32, costs: Int64, num_workers: int, rotation: int, load_max: int,
    counts: Int32, placed: Int32,
) -> None:  # fmt: skip
    load = np.zeros(num_workers, np.int64)
    total = np.zeros(num_workers, np.int64)
    users_of = np.zeros(len(owner), np.int32)
    for sample in range(len(placed)):
        total[:] = 0
        for k in range(offsets[sample], offsets[sample + 1]):
            row = inverse[k]
            if users_of[row] == num_workers:
                continue
            for worker in range(num_workers):
                total[worker] += _cost_of_joining(counts, owner, costs, row, worker, users_of[row])
        best = -1
        for turn in range(num_workers):
            worker = (rotation + turn) % num_workers
            if load[worker] < load_max and (best < 0 or total[worker] < total[best]):
                best = worker
        placed[sample] = best
        load[best] += 1
        for k in range(offsets[sample], offsets[sample + 1]):
            row = inverse[k]
            users_of[row] += counts[row, best] == 0
            counts[row, best] += 1


@njit(nogil=True, cache=True)
def _move_cost(
    offsets: Int32, inverse: Int32, owner: Int32, costs: Int64, counts: Int32, sample: int, source: int, target: int
) -> int:
    """Change of the total cost if the sample moves; `counts` is changed accordingly."""
    change = 0
    for k in range(offsets[sample], offsets[sample + 1]):
        row = inverse[k]
        counts[row, source] -= 1
        if counts[row, source] == 0:
            change -= _cost_of_joining(counts, owner, costs, row, source, _num_users(counts, row))
        if counts[row, target] == 0:
            change += _cost_of_joining(counts, owner, costs, row, target, _num_users(counts, row))
        counts[row, target] += 1
    return change


@njit(nogil=True, cache=True)
def _swap_pairs(
    offsets: Int32, inverse: Int32, owner: Int32, costs: Int64, num_workers: int, counts: Int32, placed: Int32,
    rounds: int,
) -> None:  # fmt: skip
    """Lets samples change places with a partner drawn by a fixed rule, where that lowers the cost."""
    num_samples = len(placed)
    state = np.uint64(0x9E3779B97F4A7C15)
    for _ in range(rounds * num_samples):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        first = np.int64((state >> np.uint64(33)) % np.uint64(num_samples))
        second = np.int64((state & np.uint64(0x7FFFFFFF)) % np.uint64(num_samples))
        one, other = placed[first], placed[second]
        if one == other:
            continue
        change = _move_cost(offsets, inverse, owner, costs, counts, first, one, other)
        change += _move_cost(offsets, inverse, owner, costs, counts, second, other, one)
        if change < 0:
            placed[first], placed[second] = other, one
        else:
            _move_cost(offsets, inverse, owner, costs, counts, second, one, other)
            _move_cost(offsets, inverse, owner, costs, counts, first, other, one)
