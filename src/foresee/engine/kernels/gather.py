"""Rows out of the cache, in the order of the lookups.

In: the values of the cache [capacity, width], a record's `unique` and `inverse`. Out: one row for each lookup, or one
for each bag of lookups (their sum or mean, added in lookup order; an empty bag gives zeros). Never searches: where each
row lies was decided by the plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.engine.kernels.check import check_bags, check_matrix, check_slots
from foresee.engine.kernels.prefetch import prefetch_row
from foresee.engine.kernels.threads import ONE_THREAD, Threads
from foresee.engine.kernels.vector import add_row, copy_row

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]
Bool = NDArray[np.bool_]

AHEAD = 12
"""Lookups between asking for a row and reading it: enough to hide the memory, few enough to stay in cache."""


def gather(values: Float32, unique: Int32, inverse: Int32, out: Float32, *, threads: Threads = ONE_THREAD) -> None:
    """`out[k] = values[unique[inverse[k]]]`; out is [lookups, width]."""
    check_slots("unique", unique, len(values))
    check_slots("inverse", inverse, len(unique))
    check_matrix("out", out, len(inverse), values.shape[1])
    threads.run(lambda begin, end: _gather(values, unique, inverse, out, begin, end), threads.split(len(inverse)))


def gather_bags(
    values: Float32,
    unique: Int32,
    inverse: Int32,
    bag_offsets: Int32,
    mean: Bool,
    out: Float32,
    *,
    threads: Threads = ONE_THREAD,
) -> None:
    """`out[b]` = sum of the rows of bag b, divided by their number where `mean[b % features]`; out is [bags, width]."""
    check_slots("unique", unique, len(values))
    check_slots("inverse", inverse, len(unique))
    check_bags(bag_offsets, mean, len(inverse))
    check_matrix("out", out, len(bag_offsets) - 1, values.shape[1])

    def kernel(begin: int, end: int) -> None:
        _gather_bags(values, unique, inverse, bag_offsets, mean, out, begin, end)

    threads.run(kernel, threads.split(len(bag_offsets) - 1))


@njit(nogil=True, cache=True, error_model="numpy")
def _gather(values: Any, unique: Any, inverse: Any, out: Any, begin: int, end: int) -> None:
    for k in range(begin, end):
        if k + AHEAD < end:
            prefetch_row(values, unique[inverse[k + AHEAD]])
        copy_row(out, k, values, unique[inverse[k]])


@njit(nogil=True, cache=True, error_model="numpy")
def _gather_bags(
    values: Any, unique: Any, inverse: Any, bag_offsets: Any, mean: Any, out: Any, begin: int, end: int
) -> None:
    width = values.shape[1]
    last = bag_offsets[end]
    for b in range(begin, end):
        for d in range(width):
            out[b, d] = np.float32(0)
        for k in range(bag_offsets[b], bag_offsets[b + 1]):
            if k + AHEAD < last:
                prefetch_row(values, unique[inverse[k + AHEAD]])
            add_row(out, b, values, unique[inverse[k]])
        size = bag_offsets[b + 1] - bag_offsets[b]
        if size > 1 and mean[b % len(mean)]:
            for d in range(width):
                out[b, d] /= np.float32(size)
