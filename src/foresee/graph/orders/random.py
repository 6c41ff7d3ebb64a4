"""`random`: every edge with equal chance at any time, as in memory.

There is one state with all partitions. Out of core it is trained by planned rows instead of whole partitions.
"""

from __future__ import annotations

import numpy as np

from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal, in_first_state


def random(setting: Setting, rng: np.random.Generator) -> Traversal:
    return in_first_state(setting.num_partitions, [np.arange(setting.num_partitions, dtype=np.int32)])


ORDER = Order(
    name="random",
    meaning="edges of the whole graph in random order, as in memory",
    colour="#555555",
    needs="memory for all rows, or planned rows as the unit of transfer",
    traverse=random,
    carries=True,
)
