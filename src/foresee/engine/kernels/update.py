"""Gradients in, rows changed: the sum over lookups and the optimiser step.

In: the gradient of each lookup (or bag) and the `LookupOrder` of the step. Out: the cache rows after one optimiser step
each, with their version set; or only the sums, to be sent to the rows' owner; or the step from given sums. Each row is
visited once, its gradients are added in lookup order, and the result does not depend on slots or threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.engine.kernels.check import check_matrix, check_rows, check_slots
from foresee.engine.kernels.order import LookupOrder
from foresee.engine.kernels.prefetch import prefetch_row, prefetch_row_for_writing
from foresee.engine.kernels.steps import kind_of, parameters_of, step_rows
from foresee.engine.kernels.threads import ONE_THREAD, POSITIONS_MIN, Threads
from foresee.engine.kernels.vector import add_row, copy_row
from foresee.engine.optimizers import Optimizer
from foresee.errors import UsageError
from foresee.store.contract import Rows

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

BLOCK = 8
"""Rows that are asked for together: enough to keep the memory busy, few enough to stay in the nearest cache."""
GRADIENTS_AHEAD = 16
"""Lookups between asking for a row of gradient and adding it."""


def update_rows(
    optimizer: Optimizer,
    cache: Rows,
    unique: Int32,
    gradients: Float32,
    order: LookupOrder,
    *,
    version: int,
    positions: Int32 | None = None,
    threads: Threads = ONE_THREAD,
) -> None:
    """Sums `gradients` [lookups or bags, width] by row and steps the rows at slots `unique`, in one pass.

    `version` (step + 1) becomes the version of each row. `positions` restricts it to some positions of `unique`.
    """
    width = _check_cache(optimizer, cache)
    check_slots("unique", unique, len(cache))
    _check_order(order, len(unique), gradients, width)
    kind, parameters = kind_of(optimizer), parameters_of(optimizer)
    chosen, bounds = _chosen(positions, order, threads)

    def kernel(begin: int, end: int) -> None:
        _update(
            kind, parameters, cache.values, cache.state, cache.versions, version,
            unique, chosen, gradients, order.gradient_rows, order.starts, order.divisors, begin, end,
        )  # fmt: skip

    threads.run(kernel, bounds)


def sum_gradients(
    gradients: Float32,
    order: LookupOrder,
    out: Float32,
    *,
    positions: Int32 | None = None,
    threads: Threads = ONE_THREAD,
) -> None:
    """`out[i]` = sum of the gradients of position i of `unique`, or of `positions[i]` where given."""
    width = gradients.shape[1]
    _check_order(order, order.num_unique, gradients, width)
    chosen, bounds = _chosen(positions, order, threads)
    check_matrix("out", out, bounds[-1], width)

    def kernel(begin: int, end: int) -> None:
        _sum(chosen, gradients, order.gradient_rows, order.starts, order.divisors, out, begin, end, 0)

    threads.run(kernel, bounds)


def apply_rows(
    optimizer: Optimizer,
    cache: Rows,
    slots: Int32,
    sums: Float32,
    *,
    version: int,
    positions: Int32 | None = None,
    threads: Threads = ONE_THREAD,
) -> None:
    """Steps the row at `slots[i]` with `sums[i]`, for all i or for the i in `positions`. Slots must be distinct."""
    width = _check_cache(optimizer, cache)
    check_slots("slots", slots, len(cache))
    check_matrix("sums", sums, len(slots), width)
    kind, parameters = kind_of(optimizer), parameters_of(optimizer)
    if positions is not None:
        check_slots("positions", positions, len(slots))
        slots, sums = slots[positions], sums[positions]

    def kernel(begin: int, end: int) -> None:
        _apply(kind, parameters, cache.values, cache.state, cache.versions, version, slots, sums, begin, end)

    threads.run(kernel, threads.split(len(slots)))


def _check_cache(optimizer: Optimizer, cache: Rows) -> int:
    width = int(cache.values.shape[1])
    check_rows("cache", cache, width=width, state_width=optimizer.state_width(width))
    return width


def _check_order(order: LookupOrder, num_unique: int, gradients: Float32, width: int) -> None:
    if order.num_unique != num_unique:
        raise UsageError(
            f"the lookups were ordered for {order.num_unique} rows, but unique has {num_unique}; "
            "use the order of the same record"
        )
    check_matrix("gradients", gradients, len(order.divisors) or len(gradients), width)
    check_slots("order.gradient_rows", order.gradient_rows, len(gradients))


def _chosen(positions: Int32 | None, order: LookupOrder, threads: Threads) -> tuple[Int32, list[int]]:
    """The positions to work on (empty: all of them), and their ranges for the threads."""
    if positions is not None:
        check_slots("positions", positions, order.num_unique)
        if len(positions):
            return positions, threads.split(len(positions))
        return positions, [0, 0]
    num_ranges = max(1, min(threads.num_threads, order.num_unique // POSITIONS_MIN))
    if num_ranges == 1:
        return np.empty(0, np.int32), [0, order.num_unique]
    # A row costs about as much as a lookup. Hot rows come first, so equal numbers of rows would not be equal work.
    cost = order.starts + np.arange(order.num_unique + 1, dtype=np.int64)
    targets = [int(cost[-1]) * i // num_ranges for i in range(num_ranges + 1)]
    return np.empty(0, np.int32), [int(bound) for bound in np.searchsorted(cost, targets)]


@njit(nogil=True, cache=True, error_model="numpy")
def _update(
    kind: int,
    parameters: Any,
    values: Any,
    state: Any,
    versions: Any,
    version: int,
    unique: Any,
    chosen: Any,
    gradients: Any,
    gradient_rows: Any,
    starts: Any,
    divisors: Any,
    begin: int,
    end: int,
) -> None:
    # Block by block: while the gradients of a block are added up in the nearest cache, its rows arrive from memory.
    slots = np.empty(BLOCK, np.int32)
    sums = np.empty((BLOCK, values.shape[1]), np.float32)
    for block in range(begin, end, BLOCK):
        size = min(BLOCK, end - block)
        for i in range(size):
            slots[i] = unique[chosen[block + i] if len(chosen) else block + i]
            prefetch_row_for_writing(values, slots[i])
            prefetch_row_for_writing(state, slots[i])
        _sum(chosen, gradients, gradient_rows, starts, divisors, sums, block, block + size, block)
        step_rows(kind, parameters, values, state, slots, sums, 0, size)
        for i in range(size):
            versions[slots[i]] = version


@njit(nogil=True, cache=True, error_model="numpy")
def _sum(
    chosen: Any,
    gradients: Any,
    gradient_rows: Any,
    starts: Any,
    divisors: Any,
    out: Any,
    begin: int,
    end: int,
    origin: int,
) -> None:
    """`out[i - origin]` = the gradients of the i-th chosen position, added from left to right."""
    width = gradients.shape[1]
    quotient = np.empty((1, width), np.float32)
    for i in range(begin, end):
        position = chosen[i] if len(chosen) else i
        row = i - origin
        first, last = starts[position], starts[position + 1]
        for k in range(first, last):
            if k + GRADIENTS_AHEAD < len(gradient_rows):
                prefetch_row(gradients, gradient_rows[k + GRADIENTS_AHEAD])
            source = gradient_rows[k]
            divisor = divisors[source] if len(divisors) else np.float32(1)
            if divisor != 1:
                for d in range(width):
                    quotient[0, d] = gradients[source, d] / divisor
            # Begins with the first gradient, not with zeros, so that a lone -0.0 stays what it is.
            if k == first and divisor == 1:
                copy_row(out, row, gradients, source)
            elif k == first:
                copy_row(out, row, quotient, 0)
            elif divisor == 1:
                add_row(out, row, gradients, source)
            else:
                add_row(out, row, quotient, 0)
        if first == last:
            for d in range(width):
                out[row, d] = np.float32(0)


@njit(nogil=True, cache=True, error_model="numpy")
def _apply(
    kind: int,
    parameters: Any,
    values: Any,
    state: Any,
    versions: Any,
    version: int,
    slots: Any,
    sums: Any,
    begin: int,
    end: int,
) -> None:
    for block in range(begin, end, BLOCK):
        block_end = min(block + BLOCK, end)
        for i in range(block, block_end):
            prefetch_row_for_writing(values, slots[i])
            prefetch_row_for_writing(state, slots[i])
            versions[slots[i]] = version
        step_rows(kind, parameters, values, state, slots, sums, block, block_end)
