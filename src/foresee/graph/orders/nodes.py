"""`dispersed`, for node classification where the training nodes do not fit: each partition comes in once an epoch.

Partitions (or random groups of them) that are not there come one after the other, each in the place of a random one
that is not pinned. The nodes of a partition are trained in a random one of the states that have it (`states_of_nodes`
says so for each node alone). An epoch begins with what the last one left.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32
from foresee.errors import PlanError
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, states_of_nodes


def dispersed(setting: Setting, rng: np.random.Generator) -> Traversal:
    p = setting.num_partitions
    states = _states(setting, rng)
    partitions = np.arange(p, dtype=np.int64)
    chosen = states_of_nodes(Traversal(p, tuple(states), ()), partitions, rng)
    trained = [np.flatnonzero(chosen == number).astype(np.int32) for number in range(len(states))]
    return Traversal(p, tuple(states), tuple(np.repeat(part, 2).reshape(-1, 2) for part in trained))


def _states(setting: Setting, rng: np.random.Generator) -> list[Int32]:
    size = _group_size(setting)
    there = _first_state(setting, rng)
    pinned = there[: setting.pinned]
    buffer, outside = there[setting.pinned :].reshape(-1, size), np.setdiff1d(np.arange(setting.num_partitions), there)
    coming = rng.permutation(outside).astype(np.int32).reshape(-1, size)
    found = [np.concatenate([pinned, buffer.ravel()])]
    for group in coming:
        buffer[rng.integers(len(buffer))] = group
        found.append(np.concatenate([pinned, buffer.ravel()]))
    return found


def _first_state(setting: Setting, rng: np.random.Generator) -> Int32:
    """Pinned partitions first."""
    p, c, pinned = setting.num_partitions, setting.capacity, np.arange(setting.pinned, dtype=np.int32)
    if setting.carried is not None and np.isin(pinned, setting.carried).all():
        others = rng.permutation(np.setdiff1d(setting.carried, pinned))
    else:
        others = setting.pinned + rng.permutation(p - setting.pinned)[: c - setting.pinned]
    return np.concatenate([pinned, others]).astype(np.int32)


def _group_size(setting: Setting) -> int:
    p, c = setting.num_partitions, setting.capacity
    size = p // (setting.logical_partitions or p)
    if size < 1 or (p - c) % size or (c - setting.pinned) % size:
        raise PlanError(
            f"dispersed cannot move {p} partitions in {setting.logical_partitions} groups with a buffer of {c} and "
            f"{setting.pinned} pinned; choose numbers that divide each other, or no groups"
        )
    if setting.pinned >= c and c < p:
        raise PlanError(
            f"{setting.pinned} pinned partitions leave no room in a buffer of {c}; pin fewer, or choose a larger buffer"
        )
    return size


DISPERSED = Order(
    name="dispersed",
    meaning="nodes: each partition comes in once an epoch, in the place of a random one",
    colour="#1f6f66",
    needs="any buffer of 2 or more; a place for others beside pinned partitions",
    traverse=dispersed,
    trains="nodes",
    carries=True,
)


def sequential(setting: Setting, rng: np.random.Generator) -> Traversal:
    p, c, trained = setting.num_partitions, setting.capacity, setting.pinned
    if trained < 1:
        raise PlanError("the order sequential needs the partitions of the training nodes pinned; pin 1 or more")
    if trained > c:
        raise PlanError(
            f"the training nodes lie in {trained} partitions and the buffer holds {c}; "
            "choose the order dispersed, or a larger buffer"
        )
    others = trained + rng.choice(p - trained, c - trained, replace=False)
    state = np.concatenate([np.arange(trained), others]).astype(np.int32)
    return Traversal(p, (state,), (np.repeat(np.arange(trained, dtype=np.int32), 2).reshape(-1, 2),))


SEQUENTIAL = Order(
    name="sequential",
    meaning="nodes: partitions with training nodes stay, the rest of the buffer is drawn anew each epoch",
    colour="#2a9d8f",
    needs="training nodes with the first ids, in no more partitions than the buffer holds",
    traverse=sequential,
    trains="nodes",
)
