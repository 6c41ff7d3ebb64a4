"""`inside_out`: PyTorch-BigGraph's order, in layers from the last partition to the first.

Layer k has the buckets (k, j) and (j, k) with j >= k: all that is left to train with partition k when the layers above
it are done. Inside a layer the order is random, but (j, k) and (k, j) follow each other.
"""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, from_buckets, without_twins


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


ORDER = Order(
    name="inside_out",
    meaning="PyTorch-BigGraph's layers, from the last partition to the first",
    colour="#7a5195",
    needs="any buffer of 2 or more; its authors use 2",
    traverse=inside_out,
)
