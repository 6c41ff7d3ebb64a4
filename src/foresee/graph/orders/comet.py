"""`comet`: MariusGNN's order of two levels. Partitions are put into random groups each epoch, groups move as beta moves
partitions, and a bucket is trained in a random one of the states that have both partitions.

With two groups in the buffer (the default) every pair of groups is a state of its own: few, large, evenly filled states
that read more than beta. Pinned partitions are groups of their own that never leave.
"""

from __future__ import annotations

import numpy as np

from foresee.errors import PlanError
from foresee.graph.orders.beta import beta_path
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, in_random_state


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


ORDER = Order(
    name="comet",
    meaning="MariusGNN: random groups of partitions move together; a bucket is trained in a random state that has it",
    colour="#3b82c4",
    needs="an even buffer c, and p a multiple of c / 2 (or logical partitions that divide both)",
    traverse=comet,
)
