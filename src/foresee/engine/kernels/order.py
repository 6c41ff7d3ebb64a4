"""Which gradients belong to which row.

In: a record's `inverse` and the bags of its batch. Out: a `LookupOrder`: the rows of the incoming gradient, grouped by
position in `unique` and in lookup order within each group. A counting sort, linear in the lookups; it depends on the
plan and the batch only, so it can be made ahead of the step. Never reorders within a group: the order of additions is
part of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from foresee.arrays import Bool, Float32, Int32
from foresee.engine.kernels.check import check_bags, check_slots
from foresee.errors import UsageError


@dataclass(frozen=True, slots=True)
class LookupOrder:
    """Position p of `unique` gets the gradients `gradient_rows[starts[p]:starts[p + 1]]`, in this order."""

    gradient_rows: Int32  # [lookups]: a row of the incoming gradient, that is a lookup or a bag
    starts: Int32  # [unique + 1]
    divisors: Float32  # [bags]: by what the gradient of a bag is divided (mean pooling); empty if by nothing

    @property
    def num_unique(self) -> int:
        return len(self.starts) - 1


def order_lookups(
    inverse: Int32, num_unique: int, *, bag_offsets: Int32 | None = None, mean: Bool | None = None
) -> LookupOrder:
    """Groups the lookups of one step by row. Without `bag_offsets` every lookup has its own row of gradient."""
    check_slots("inverse", inverse, num_unique)
    if bag_offsets is not None:
        mean = np.zeros(1, np.bool_) if mean is None else mean
        check_bags(bag_offsets, mean, len(inverse))
    gradient_rows = np.empty(len(inverse), np.int32)
    starts = np.zeros(num_unique + 1, np.int32)
    untouched = _order(inverse, gradient_rows, starts)
    if untouched >= 0:
        raise UsageError(
            f"no lookup needs position {untouched} of the {num_unique} unique rows; use the inverse of the same record"
        )
    if bag_offsets is None or mean is None:
        return LookupOrder(gradient_rows, starts, np.empty(0, np.float32))
    sizes = np.diff(bag_offsets)
    bag_of_lookup = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return LookupOrder(bag_of_lookup[gradient_rows], starts, _divisors(sizes, mean))


def _divisors(sizes: Int32, mean: Bool) -> Float32:
    if not mean.any():
        return np.empty(0, np.float32)
    divided = np.tile(mean, len(sizes) // len(mean)) & (sizes > 0)
    return np.where(divided, sizes, 1).astype(np.float32)


@njit(nogil=True, cache=True)
def _order(inverse: Any, gradient_rows: Any, starts: Any) -> int:
    """Fills both arrays; returns a position that no lookup needs, or -1. `starts` must be zeros."""
    num_unique = len(starts) - 1
    for k in range(len(inverse)):
        starts[inverse[k]] += 1
    untouched = -1
    total = 0
    for p in range(num_unique):
        count = starts[p]
        if count == 0:
            untouched = p
        starts[p] = total
        total += count
    for k in range(len(inverse)):
        p = inverse[k]
        gradient_rows[starts[p]] = k
        starts[p] += 1
    # Filling has moved each start to the next position's: move them back.
    for p in range(num_unique, 0, -1):
        starts[p] = starts[p - 1]
    starts[0] = 0
    return untouched
