"""`sequential`, for node classification: partitions with training nodes stay, the rest of the buffer is drawn anew.

`foresee graph prepare` gives training nodes the first ids, so they fill the first partitions: these are pinned. There
is one state, and nothing moves inside an epoch.
"""

from __future__ import annotations

import numpy as np

from foresee.errors import PlanError
from foresee.graph.orders.order import Order, Setting
from foresee.graph.orders.traversal import Traversal


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


ORDER = Order(
    name="sequential",
    meaning="nodes: partitions with training nodes stay, the rest of the buffer is drawn anew each epoch",
    colour="#2a9d8f",
    needs="training nodes with the first ids, in no more partitions than the buffer holds",
    traverse=sequential,
    trains="nodes",
)
