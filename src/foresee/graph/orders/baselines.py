"""`row_major`: buckets row by row, each row from the left: the simplest order, and one that moves much."""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, from_buckets, without_twins


def row_major_buckets(num_partitions: int) -> Int32:
    """[p * p, 2]"""
    return np.stack(np.divmod(np.arange(num_partitions**2), num_partitions), axis=1).astype(np.int32)


def row_major(setting: Setting, rng: np.random.Generator) -> Traversal:
    return from_buckets(setting.num_partitions, setting.capacity, row_major_buckets(setting.num_partitions))


ROW_MAJOR = Order(
    name="row_major",
    meaning="buckets row by row",
    colour="#b0b0b0",
    needs="any buffer of 2 or more",
    traverse=row_major,
)


def inside_out_buckets(num_partitions: int, rng: np.random.Generator) -> Int32:
    """[p * p, 2]"""
    layers = [_layer(layer, num_partitions, rng) for layer in range(num_partitions - 1, -1, -1)]
    return np.concatenate(layers).astype(np.int32)


def inside_out(setting: Setting, rng: np.random.Generator) -> Traversal:
    return from_buckets(setting.num_partitions, setting.capacity, inside_out_buckets(setting.num_partitions, rng))


def _layer(layer: int, num_partitions: int, rng: np.random.Generator) -> Int32:
    others = rng.permutation(np.arange(layer, num_partitions))
    pairs = np.stack([np.full(len(others), layer), others], axis=1).astype(np.int32)
    both = np.stack([pairs, pairs[:, ::-1]], axis=1)
    turned = rng.random(len(others)) < 0.5
    both[turned] = both[turned, ::-1]
    return without_twins(both)


INSIDE_OUT = Order(
    name="inside_out",
    meaning="PyTorch-BigGraph's layers, from the last partition to the first",
    colour="#7a5195",
    needs="any buffer of 2 or more; its authors use 2",
    traverse=inside_out,
)


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
