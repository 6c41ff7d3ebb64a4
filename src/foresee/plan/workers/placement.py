"""Which worker trains which sample of a batch, every worker the same number.

In: the distinct rows that each sample touches, who owns them, and when they were touched last. Out: a worker for each
sample. The global batch stays the same set of samples, so what synchronous training computes stays the same.

    contiguous       the first n samples to worker 0, the next n to worker 1, ...
    herald           the published greedy: in file order, each sample to the worker that owns most of its rows
    location_aware   starts from that, then pairs of samples change places where that saves transfers: a move, or a copy
                     and a gradient for each further user of a row, those on the critical path counting more
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
    holders = np.where(scene.owner == NO_OWNER, 0, np.int64(1) << np.maximum(scene.owner, 0).astype(np.int64))
    return greedy(scene.sample_offsets, scene.inverse, holders, scene.num_workers, scene.step)


def greedy(sample_offsets: Int32, inverse: Int32, holders: Int64, num_workers: int, rotation: int) -> Int32:
    """In file order, each sample to the worker with room that holds most of its rows: bit w of `holders`."""
    placed = np.empty(len(sample_offsets) - 1, np.int32)
    _greedy(sample_offsets, inverse, holders, num_workers, rotation, -(-len(placed) // num_workers), placed)
    return placed


def location_aware(scene: Scene) -> Int32:
    """Fewest transfers, critical ones first: Herald's greedy, then samples change places while that saves something."""
    placed = herald(scene)
    counts = np.zeros((len(scene.owner), scene.num_workers), np.int32)
    _count_users(scene.sample_offsets, scene.inverse, placed, counts)
    members = np.argsort(placed, kind="stable").reshape(scene.num_workers, -1).astype(np.int32)
    _swap(
        scene.sample_offsets, scene.inverse, scene.owner, _row_costs(scene), counts, members, placed,
        SWAP_ROUNDS, PARTNERS_TRIED,
    )  # fmt: skip
    return placed


PLACEMENTS: dict[str, Placement] = {"contiguous": contiguous, "herald": herald, "location_aware": location_aware}

CRITICAL = 4
"""What a transfer on the critical path costs, in units of one in the background."""
SWAP_ROUNDS = 4
"""How often every sample looks for a better place."""
PARTNERS_TRIED = 8
"""Samples of the better place that are asked whether they would go the other way."""


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
    offsets: Int32, inverse: Int32, holders: Int64, num_workers: int, rotation: int, load_max: int, placed: Int32
) -> None:
    load = np.zeros(num_workers, np.int64)
    score = np.zeros(num_workers, np.int64)
    for sample in range(len(placed)):
        score[:] = 0
        for k in range(offsets[sample], offsets[sample + 1]):
            bits = holders[inverse[k]]
            for worker in range(num_workers):
                score[worker] += (bits >> worker) & 1
        best = -1
        for turn in range(num_workers):
            worker = (rotation + turn) % num_workers
            if load[worker] < load_max and (best < 0 or score[worker] > score[best]):
                best = worker
        placed[sample] = best
        load[best] += 1


@njit(nogil=True, cache=True)
def _count_users(offsets: Int32, inverse: Int32, placed: Int32, counts: Int32) -> None:
    """counts[row, worker]: lookups of the row by samples of the worker."""
    for sample in range(len(placed)):
        for k in range(offsets[sample], offsets[sample + 1]):
            counts[inverse[k], placed[sample]] += 1


@njit(nogil=True, cache=True, inline="always")
def _change(
    offsets: Int32, inverse: Int32, owner: Int32, costs: Int64, counts: Int32, sample: int, source: int, target: int
) -> int:
    """By how much the cost of the step changes if the sample goes from one worker to another."""
    change = 0
    for k in range(offsets[sample], offsets[sample + 1]):
        row = inverse[k]
        leaves = counts[row, source] == 1
        joins = counts[row, target] == 0
        if leaves:
            change -= costs[row, 1]
            if owner[row] == source:
                change += costs[row, 0]
        if joins:
            change += costs[row, 1]
            if owner[row] == target:
                change -= costs[row, 0]
    return change


@njit(nogil=True, cache=True, inline="always")
def _move(offsets: Int32, inverse: Int32, counts: Int32, sample: int, source: int, target: int) -> None:
    for k in range(offsets[sample], offsets[sample + 1]):
        counts[inverse[k], source] -= 1
        counts[inverse[k], target] += 1


@njit(nogil=True, cache=True)
def _best_place(
    offsets: Int32, inverse: Int32, owner: Int32, costs: Int64, counts: Int32, sample: int, source: int, change: Int64
) -> int:
    """The worker to which the sample would go with the greatest saving, or its own."""
    num_workers = counts.shape[1]
    change[:] = 0
    for k in range(offsets[sample], offsets[sample + 1]):
        row = inverse[k]
        base = 0
        if counts[row, source] == 1:
            base = costs[row, 0] * (owner[row] == source) - costs[row, 1]
        for worker in range(num_workers):
            change[worker] += base + costs[row, 1] * (counts[row, worker] == 0)
        if owner[row] >= 0 and counts[row, owner[row]] == 0:
            change[owner[row]] -= costs[row, 0]
    best = source
    change[source] = 0
    for worker in range(num_workers):
        if change[worker] < change[best]:
            best = worker
    return best


@njit(nogil=True, cache=True)
def _swap(
    offsets: Int32, inverse: Int32, owner: Int32, costs: Int64, counts: Int32, members: Int32, placed: Int32,
    rounds: int, partners: int,
) -> None:  # fmt: skip
    """Every sample looks for its best place, and changes places with the first of a few partners there that agrees.

    Partners are drawn by a fixed rule: the same scene gives the same placement. `members` is [workers, samples].
    """
    num_samples = len(placed)
    change = np.empty(counts.shape[1], np.int64)
    draw = np.uint64(0x9E3779B97F4A7C15)
    for turn in range(rounds * num_samples):
        worker, seat = turn % members.shape[0], turn // members.shape[0] % members.shape[1]
        sample = members[worker, seat]
        target = _best_place(offsets, inverse, owner, costs, counts, sample, worker, change)
        if target == worker:
            continue
        saving = change[target]
        _move(offsets, inverse, counts, sample, worker, target)
        agreed = False
        for _ in range(partners):
            draw = draw * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            other_seat = np.int64((draw >> np.uint64(33)) % np.uint64(members.shape[1]))
            other = members[target, other_seat]
            if saving + _change(offsets, inverse, owner, costs, counts, other, target, worker) < 0:
                _move(offsets, inverse, counts, other, target, worker)
                members[worker, seat], members[target, other_seat] = other, sample
                placed[sample], placed[other] = target, worker
                agreed = True
                break
        if not agreed:
            _move(offsets, inverse, counts, sample, target, worker)
