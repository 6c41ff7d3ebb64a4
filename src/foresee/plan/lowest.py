"""The places of the lowest ranks, and among equals the first places.

`numpy.argpartition` takes whichever equals it meets first, which differs from processor to processor; a plan must be
the same wherever it is made.
"""

from __future__ import annotations

import numpy as np

from foresee.plan.record import Int64


def lowest(ranks: Int64, number: int) -> Int64:
    """Ascending places of so many of the lowest ranks, of which there must be as many."""
    bound = np.partition(ranks, number - 1)[number - 1]
    chosen = ranks < bound
    chosen[np.flatnonzero(ranks == bound)[: number - int(np.count_nonzero(chosen))]] = True
    return np.flatnonzero(chosen)
