"""`row_major`: buckets row by row, each row from the left: the simplest order, and one that moves much."""

from __future__ import annotations

import numpy as np

from foresee.arrays import Int32
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, from_buckets


def row_major_buckets(num_partitions: int) -> Int32:
    """[p * p, 2]"""
    return np.stack(np.divmod(np.arange(num_partitions**2), num_partitions), axis=1).astype(np.int32)


def row_major(setting: Setting, rng: np.random.Generator) -> Traversal:
    return from_buckets(setting.num_partitions, setting.capacity, row_major_buckets(setting.num_partitions))


ORDER = Order(
    name="row_major",
    meaning="buckets row by row",
    colour="#b0b0b0",
    needs="any buffer of 2 or more",
    traverse=row_major,
)
