"""`hilbert` and `hilbert_symmetric`: buckets along Hilbert's curve, whose neighbours share a partition.

For a p that is no power of two the curve is that of the next one, and what lies outside is left out. The symmetric
order trains (j, i) right after (i, j), which needs the same two partitions.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, from_buckets, without_twins


def hilbert_buckets(num_partitions: int) -> Int32:
    """[p * p, 2]"""
    side = 1 << (num_partitions - 1).bit_length()
    source, target = _curve(side)
    inside = (source < num_partitions) & (target < num_partitions)
    return np.stack([source[inside], target[inside]], axis=1).astype(np.int32)


def hilbert_symmetric_buckets(num_partitions: int) -> Int32:
    """[p * p, 2]"""
    along = hilbert_buckets(num_partitions)
    low, high = along.min(axis=1), along.max(axis=1)
    _, first = np.unique(low.astype(np.int64) * num_partitions + high, return_index=True)
    met = along[np.sort(first)]
    return without_twins(np.stack([met, met[:, ::-1]], axis=1))


def hilbert(setting: Setting, rng: np.random.Generator) -> Traversal:
    return from_buckets(setting.num_partitions, setting.capacity, hilbert_buckets(setting.num_partitions))


def hilbert_symmetric(setting: Setting, rng: np.random.Generator) -> Traversal:
    return from_buckets(setting.num_partitions, setting.capacity, hilbert_symmetric_buckets(setting.num_partitions))


def _curve(side: int) -> tuple[Int64, Int64]:
    """Where the curve through a square of this side, a power of two, is at each of its side * side places."""
    place = np.arange(side * side)
    x, y = np.zeros_like(place), np.zeros_like(place)
    size = 1
    while size < side:
        right, up = (place // 2) & 1, (place ^ (place // 2)) & 1
        turned = up == 0
        flipped = turned & (right == 1)
        x, y = np.where(flipped, size - 1 - x, x), np.where(flipped, size - 1 - y, y)
        x, y = np.where(turned, y, x), np.where(turned, x, y)
        x, y = x + size * right, y + size * up
        place = place // 4
        size *= 2
    return x, y


HILBERT = Order(
    name="hilbert",
    meaning="buckets along Hilbert's curve",
    colour="#c9a227",
    needs="any buffer of 2 or more",
    traverse=hilbert,
)
HILBERT_SYMMETRIC = Order(
    name="hilbert_symmetric",
    meaning="buckets along Hilbert's curve, (j, i) right after (i, j)",
    colour="#8f7a1a",
    needs="any buffer of 2 or more",
    traverse=hilbert_symmetric,
)
