"""Which worker trains which sample of a batch, every worker the same number.

In: the distinct rows that each sample accesses, who owns them, and when they were accessed last. Out: a worker for each
sample. The global batch stays the same set of samples, so what synchronous training computes stays the same.

    contiguous       the first n samples to worker 0, the next n to worker 1, ...
    herald           the published greedy: in file order, each sample to the worker that owns most of its rows
    location_aware   starts from that, then pairs of samples change places where that saves transfers: a move, or a copy
                     and a gradient for each further user of a row, those on the critical path counting more

`rank_positions` says which positions of lookups in a sample (with one id a feature: which features) are worth the time
that `location_aware` takes to look at them. Nothing here measures time: whoever runs the planner does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64

NO_OWNER = -1


@dataclass(frozen=True, slots=True)
class Scene:
    """What a placement may look at."""

    step: int
    num_workers: int
    sample_offsets: Int32  # [samples + 1]
    inverse: Int32  # [lookups]: which distinct row
    owner: Int32  # [distinct]: worker, or NO_OWNER: in the store
    last_touch: Int32  # [distinct]: step of the latest access before this one, or -1
    next_touch: Int32  # [distinct]: step of the next one as far as is known, or -1

    @property
    def num_samples(self) -> int:
        return len(self.sample_offsets) - 1


Placement = Callable[[Scene], Int32]


def contiguous(scene: Scene) -> Int32:
    """Equal slices in file order; lengths differ by one at most."""
    return (np.arange(scene.num_samples) * scene.num_workers // scene.num_samples).astype(np.int32)


def herald(scene: Scene) -> Int32:
    """Herald's greedy, exactly: file order, ties to the first worker in an order rotated by the batch's number."""
    holders = np.where(scene.owner == NO_OWNER, 0, np.int64(1) << np.maximum(scene.owner, 0).astype(np.int64))
    return greedy(scene.sample_offsets, scene.inverse, holders, scene.num_workers, scene.step)


def greedy(sample_offsets: Int32, inverse: Int32, holders: Int64, num_workers: int, rotation: int) -> Int32:
    """In file order, each sample to the worker with room that holds most of its rows: bit w of `holders`."""
    placed = np.empty(len(sample_offsets) - 1, np.int32)
    _greedy(sample_offsets, inverse, holders, num_workers, rotation, placed)
    return placed


def rounds_for(num_workers: int) -> int:
    """A planner has to keep up with its workers: where they are few it has more time for each sample."""
    return min(max(32 // num_workers, 4), 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocationAware:
    """Fewest transfers, critical ones first: Herald's greedy, then samples change places while that saves something."""

    swap_rounds: int | None = None
    """How often samples that want another place look for one; None: as `rounds_for` says. In each round twice as many
    samples of the better place are asked whether they would go the other way."""
    positions: tuple[int, ...] | None = None
    """Which lookups of each sample count, by their position in it (with one id a feature: which features); None: all.

    Time grows with their number; `positions` finds those that are worth it.
    """

    def __call__(self, scene: Scene) -> Int32:
        scene = scene if self.positions is None else _reduced(scene, self.positions)
        placed = herald(scene)
        rounds = rounds_for(scene.num_workers) if self.swap_rounds is None else self.swap_rounds
        if scene.num_workers == 1 or rounds == 0:
            return placed
        members = np.argsort(placed, kind="stable").astype(np.int32)
        begins = np.concatenate([[0], np.cumsum(np.bincount(placed, minlength=scene.num_workers))])
        rows = row_costs(scene)
        counts = np.zeros((len(scene.owner), scene.num_workers), np.int32)
        users = np.zeros(len(scene.owner), np.int64)
        count_users(scene.sample_offsets, scene.inverse, placed, counts, users)
        starts = np.zeros(scene.num_samples + 1, np.int32)
        shared = np.empty(len(scene.inverse), np.int32)
        gains = np.zeros((scene.num_samples, scene.num_workers), np.int32)
        num_shared = _split(scene.sample_offsets, scene.inverse, counts, users, rows, COMMON, starts, shared, gains)
        _swap(
            starts, shared, gains, rows[:num_shared], counts[:num_shared], users[:num_shared], members, begins, placed,
            rounds, 2 * rounds,
        )  # fmt: skip
        return placed


location_aware = LocationAware()

PLACEMENTS: dict[str, Placement] = {"contiguous": contiguous, "herald": herald, "location_aware": location_aware}

CRITICAL = 4
"""What a transfer on the critical path costs, in units of one in the background."""
COMMON = 16
"""A row that so many samples of every worker touch stays with every worker, whatever single samples do."""
NO_MATTER, ONE_SAMPLE = -1, -2
"""Rows that are not shared: no place changes what they cost, or only that of their one sample."""
FIRST, FURTHER, OWNER = 0, 1, 2
"""Columns of the rows' costs: see `row_costs`."""


def row_costs(scene: Scene) -> Int32:
    """[distinct, 4]: the cost of the first user who is not the owner, of each further user, and the owner.

    A first user elsewhere costs a move (a fetch, which any first user costs, is no reason to prefer a worker). Each
    further user costs a copy before the step and a gradient after it. The fourth column only aligns.
    """
    arrives = np.where(scene.last_touch == scene.step - 1, CRITICAL, 1)
    leaves = np.where(scene.next_touch == scene.step + 1, CRITICAL, 1)
    owned = scene.owner != NO_OWNER
    costs = np.zeros((len(scene.owner), 4), np.int32)
    costs[:, FIRST] = np.where(owned, arrives, 0)
    costs[:, FURTHER] = np.where(owned, arrives, 1) + leaves
    costs[:, OWNER] = scene.owner
    return costs


def _reduced(scene: Scene, positions: tuple[int, ...]) -> Scene:
    """The scene with only some lookups of each sample."""
    starts, lengths = scene.sample_offsets[:-1], np.diff(scene.sample_offsets)
    wanted = np.array(sorted(positions), np.int64)
    lookups = starts[:, None] + wanted[None, :]  # [samples, positions]
    there = wanted[None, :] < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
    return replace(scene, sample_offsets=offsets, inverse=scene.inverse[lookups[there]])


@njit(nogil=True, cache=True)
def _greedy(offsets: Int32, inverse: Int32, holders: Int64, num_workers: int, rotation: int, placed: Int32) -> None:
    # Every worker has room for its equal share; the remainder goes to whoever first wants one more.
    share, remainder = len(placed) // num_workers, len(placed) % num_workers
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
            if load[worker] < share + (remainder > 0) and (best < 0 or score[worker] > score[best]):
                best = worker
        placed[sample] = best
        remainder -= load[best] == share
        load[best] += 1


@njit(nogil=True, cache=True)
def count_users(offsets: Int32, inverse: Int32, placed: Int32, counts: Int32, users: Int64) -> None:
    """counts[row, worker]: samples of the worker that touch the row; bit w of users[row]: there is one at worker w."""
    latest = np.full(len(users), -1, np.int32)
    for sample in range(len(placed)):
        for k in range(offsets[sample], offsets[sample + 1]):
            row = inverse[k]
            if latest[row] != sample:
                latest[row] = sample
                counts[row, placed[sample]] += 1
                users[row] |= np.int64(1) << placed[sample]


@njit(nogil=True, cache=True)
def _split(
    offsets: Int32, inverse: Int32, counts: Int32, users: Int64, rows: Int32, common: int, starts: Int32,
    shared: Int32, gains: Int32,
) -> int:  # fmt: skip
    """Parts the rows of each sample: those it shares with others, each once; and what it gains at each worker.

    A row that no other sample touches costs its move wherever the sample is, except at its owner: no other sample's
    place changes that. Without an owner it costs nothing anywhere. A row common to all workers is left out.

    Shared rows get new numbers, and their lines move to the front of `counts`, `users` and `rows`: they are few, and
    near each other they stay in the processor's caches. Returns how many there are.
    """
    number = np.empty(len(counts), np.int32)
    owner = rows[:, OWNER].copy()
    gain = rows[:, FIRST].copy()
    num_rows = 0
    for row in range(len(counts)):
        uses, fewest = 0, counts[row, 0]
        for worker in range(counts.shape[1]):
            uses += counts[row, worker]
            fewest = min(fewest, counts[row, worker])
        number[row] = ONE_SAMPLE if uses == 1 and owner[row] >= 0 else NO_MATTER
        if uses > 1 and fewest < common:
            number[row] = num_rows
            for worker in range(counts.shape[1]):
                counts[num_rows, worker] = counts[row, worker]
            for column in range(rows.shape[1]):
                rows[num_rows, column] = rows[row, column]
            users[num_rows] = users[row]
            num_rows += 1
    latest = np.full(num_rows, -1, np.int32)
    count = 0
    for sample in range(len(offsets) - 1):
        for k in range(offsets[sample], offsets[sample + 1]):
            row = inverse[k]
            name = number[row]
            if name == ONE_SAMPLE:
                gains[sample, owner[row]] += gain[row]
                number[row] = NO_MATTER
            elif name >= 0 and latest[name] != sample:
                latest[name] = sample
                shared[count] = name
                count += 1
        starts[sample + 1] = count
    return num_rows


@njit(nogil=True, cache=True, inline="always")
def _change(
    starts: Int32, shared: Int32, gains: Int32, rows: Int32, counts: Int32, sample: int, source: int, target: int
) -> np.int64:
    """By how much the cost of the step changes if the sample goes from one worker to another."""
    change = np.int64(gains[sample, source]) - gains[sample, target]
    for k in range(starts[sample], starts[sample + 1]):
        row = shared[k]
        if counts[row, source] == 1:
            change -= rows[row, FURTHER] - (rows[row, OWNER] == source) * rows[row, FIRST]
        if counts[row, target] == 0:
            change += rows[row, FURTHER] - (rows[row, OWNER] == target) * rows[row, FIRST]
    return np.int64(change)


@njit(nogil=True, cache=True, inline="always")
def _move(starts: Int32, shared: Int32, counts: Int32, users: Int64, sample: int, source: int, target: int) -> None:
    for k in range(starts[sample], starts[sample + 1]):
        row = shared[k]
        counts[row, source] -= 1
        if counts[row, source] == 0:
            users[row] &= ~(np.int64(1) << source)
        counts[row, target] += 1
        users[row] |= np.int64(1) << target


@njit(nogil=True, cache=True)
def _best_place(
    starts: Int32, shared: Int32, gains: Int32, rows: Int32, counts: Int32, users: Int64, sample: int, source: int,
    change: Int64,
) -> int:  # fmt: skip
    """The worker to which the sample would go with the greatest saving, or its own."""
    num_workers = len(change)
    everybody = np.int64(-1) if num_workers == 64 else (np.int64(1) << num_workers) - 1
    leaving = np.int64(gains[sample, source])
    for worker in range(num_workers):
        change[worker] = -gains[sample, worker]
    for k in range(starts[sample], starts[sample + 1]):
        row = shared[k]
        if counts[row, source] == 1:
            leaving -= rows[row, FURTHER] - (rows[row, OWNER] == source) * rows[row, FIRST]
        present = users[row]
        if present == everybody:
            continue
        for worker in range(num_workers):
            change[worker] += rows[row, FURTHER] * (1 - ((present >> worker) & 1))
        owner = rows[row, OWNER]
        if owner >= 0 and not (present >> owner) & 1:
            change[owner] -= rows[row, FIRST]
    best = source
    change[source] = -leaving
    for worker in range(num_workers):
        if change[worker] < change[best]:
            best = worker
    change[best] += leaving
    return best


@njit(nogil=True, cache=True)
def _swap(
    starts: Int32, shared: Int32, gains: Int32, rows: Int32, counts: Int32, users: Int64, members: Int32, begins: Int64,
    placed: Int32, rounds: int, partners: int,
) -> None:  # fmt: skip
    """Every sample looks for its best place, and changes places with the first of a few partners there that agrees.

    Partners are drawn by a fixed rule: the same scene gives the same placement. `members` is [samples], those of
    worker w from `begins[w]` on.
    """
    num_workers, seats_max = len(begins) - 1, np.max(begins[1:] - begins[:-1])
    change = np.empty(counts.shape[1], np.int64)
    draw = np.uint64(0x9E3779B97F4A7C15)
    for turn in range(rounds * num_workers * seats_max):
        worker = turn % num_workers
        seat = begins[worker] + turn // num_workers % seats_max
        if seat == begins[worker + 1]:
            continue  # a worker with one sample less
        sample = members[seat]
        target = _best_place(starts, shared, gains, rows, counts, users, sample, worker, change)
        if target == worker:
            continue
        saving = change[target]
        _move(starts, shared, counts, users, sample, worker, target)
        agreed = False
        for _ in range(partners):
            draw = draw * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
            num_seats = np.uint64(begins[target + 1] - begins[target])
            other_seat = begins[target] + np.int64((draw >> np.uint64(33)) % num_seats)
            other = members[other_seat]
            if saving + _change(starts, shared, gains, rows, counts, other, target, worker) < 0:
                _move(starts, shared, counts, users, other, target, worker)
                members[seat], members[other_seat] = other, sample
                placed[sample], placed[other] = target, worker
                agreed = True
                break
        if not agreed:
            _move(starts, shared, counts, users, sample, target, worker)


def rank_positions(scenes: Iterable[Scene]) -> list[tuple[int, float]]:
    """(position in a sample, transfers that routing can save there per step), best first.

    A row that one sample touches saves its move if that sample goes to the owner. A row that few samples touch saves a
    copy and a gradient for each but the first that go to the same worker. A row touched by more samples than a worker
    trains needs several workers anyhow, and counts nothing. Critical transfers count as in the placement.
    """
    saved: NDArray[np.float64] = np.zeros(0)
    num_scenes = 0
    for scene in scenes:
        here = np.bincount(_positions_of(scene), _worth(scene)[scene.inverse], minlength=len(saved)).astype(np.float64)
        here[: len(saved)] += saved
        saved = here
        num_scenes += 1
    order = np.argsort(-saved, kind="stable")
    return [(int(position), float(saved[position]) / max(1, num_scenes)) for position in order]


def affordable(
    ranked: Sequence[tuple[int, float]], *, seconds_per_position: float, budget_seconds: float
) -> tuple[int, ...]:
    """The best positions that the budget pays for; none that saves nothing. Placement's time is linear in them."""
    num_paid = int(budget_seconds / seconds_per_position)
    return tuple(sorted(position for position, saved in ranked[:num_paid] if saved > 0))


def _positions_of(scene: Scene) -> NDArray[np.int64]:
    """The position of each lookup in its sample."""
    return np.arange(len(scene.inverse)) - np.repeat(scene.sample_offsets[:-1], np.diff(scene.sample_offsets))


def _worth(scene: Scene) -> NDArray[np.float64]:
    """What each lookup of a row can save at best."""
    counts = np.zeros((len(scene.owner), scene.num_workers), np.int32)
    count_users(scene.sample_offsets, scene.inverse, contiguous(scene), counts, np.zeros(len(scene.owner), np.int64))
    uses, costs = counts.sum(axis=1), row_costs(scene)
    few = uses * scene.num_workers <= scene.num_samples
    return np.where(few, (costs[:, FIRST] + (uses - 1) * costs[:, FURTHER]) / np.maximum(uses, 1), 0.0)
