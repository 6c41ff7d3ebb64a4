"""`beta` and `beta_deferred`: Marius's order. c - 1 partitions stay while all others pass by in the last slot, then
leave for good, and the next c - 1 come.

`beta` trains a bucket as soon as both partitions are there, as published first; `beta_deferred` in a random one of the
states that have both. The buffer is filled anew each epoch.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32
from foresee.errors import PlanError
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Path, Traversal, in_first_state, in_random_state


def beta_path(num_partitions: int, capacity: int, rng: np.random.Generator) -> Path:
    permuted = rng.permutation(num_partitions).astype(np.int32)
    first, buffer, disk = permuted[:capacity].copy(), permuted[:capacity], permuted[capacity:]
    slots: list[int] = []
    incoming: list[int] = []
    while len(disk):
        by_chance = rng.permutation(capacity)
        passing, disk = by_chance[-1], rng.permutation(disk)
        slots += [int(passing)] * len(disk)
        incoming += disk.tolist()
        buffer[passing], disk = disk[-1], rng.permutation(np.append(disk[:-1], buffer[passing]))
        retired = by_chance[: min(capacity - 1, len(disk))]
        slots += retired.tolist()
        incoming += disk[: len(retired)].tolist()
        buffer[retired], disk = disk[: len(retired)], disk[len(retired) :]
    return Path(first, np.array(slots, np.int32), np.array(incoming, np.int32))


def beta(setting: Setting, rng: np.random.Generator) -> Traversal:
    return in_first_state(setting.num_partitions, _states(setting, rng))


def beta_deferred(setting: Setting, rng: np.random.Generator) -> Traversal:
    return in_random_state(setting.num_partitions, _states(setting, rng), rng)


def _states(setting: Setting, rng: np.random.Generator) -> list[Int32]:
    return beta_path(setting.num_partitions, setting.capacity, rng).states()


BETA = Order(
    name="beta",
    meaning="Marius: some stay while all others pass by; a bucket is trained as soon as it can be",
    colour="#d1495b",
    needs="any buffer of 2 or more",
    traverse=beta,
)

BETA_DEFERRED = Order(
    name="beta_deferred",
    meaning="the states of beta; a bucket is trained in a random one of those that have it",
    colour="#e07b39",
    needs="any buffer of 2 or more",
    traverse=beta_deferred,
)


def comet(setting: Setting, rng: np.random.Generator) -> Traversal:
    p, c, size = setting.num_partitions, setting.capacity, _group_size(setting)
    pinned = np.arange(setting.pinned, dtype=np.int32)
    groups = (setting.pinned + rng.permutation(p - setting.pinned)).astype(np.int32).reshape(-1, size)
    path = beta_path(len(groups), (c - setting.pinned) // size, rng)
    states = [np.concatenate([pinned, groups[state].ravel()]) for state in path.states()]
    return in_random_state(p, states, rng)


def _group_size(setting: Setting) -> int:
    p, c, groups = setting.num_partitions, setting.capacity, setting.logical_partitions
    size = c // 2 if groups is None else p // max(groups, 1)
    if size < 1 or any(number % size for number in (p, c, setting.pinned)) or groups not in (None, p // size):
        named = f"{p} partitions into {p // max(size, 1) if groups is None else groups} groups"
        raise PlanError(
            f"comet cannot put {named} of equal size with a buffer of {c} and {setting.pinned} pinned; choose numbers "
            "of partitions, buffer and logical partitions that divide each other, such as 32, 8 and 8"
        )
    if (c - setting.pinned) // size < 2 and c < p:
        raise PlanError(
            f"comet has room for {(c - setting.pinned) // size} group of {size} beside {setting.pinned} pinned ones "
            "and needs 2; choose more logical partitions or a larger buffer"
        )
    return size


COMET = Order(
    name="comet",
    meaning="MariusGNN: random groups of partitions move together; a bucket is trained in a random state that has it",
    colour="#3b82c4",
    needs="an even buffer c, and p a multiple of c / 2 (or logical partitions that divide both)",
    traverse=comet,
)
