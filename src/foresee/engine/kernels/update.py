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
from foresee.engine.kernels.steps import LANES, kind_of, parameters_of, step_row
from foresee.engine.kernels.threads import ONE_THREAD, POSITIONS_MIN, Threads
from foresee.engine.optimizers import Optimizer
from foresee.errors import UsageError
from foresee.store.contract import Rows

Float32 = NDArray[np.float32]
Int32 = NDArray[np.int32]

AHEAD = 8
"""Rows between asking for a row of the cache and changing it."""
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
        _sum(chosen, gradients, order.gradient_rows, order.starts, order.divisors, out, begin, end)

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
    chosen = np.arange(len(slots), dtype=np.int32) if positions is None else positions
    check_slots("positions", chosen, len(slots))

    def kernel(begin: int, end: int) -> None:
        _apply(
            kind, parameters, cache.values, cache.state, cache.versions, version, slots, chosen, sums, begin, end
        )  # fmt: skip

    threads.run(kernel, threads.split(len(chosen)))


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
    total = np.empty((1, values.shape[1]), np.float32)
    lanes = np.empty(LANES, np.float32)
    for i in range(begin, end):
        if i + AHEAD < end:
            later = chosen[i + AHEAD] if len(chosen) else i + AHEAD
            prefetch_row_for_writing(values, unique[later])
            prefetch_row_for_writing(state, unique[later])
        p = chosen[i] if len(chosen) else i
        slot = unique[p]
        first, last = starts[p], starts[p + 1]
        if first + GRADIENTS_AHEAD < len(gradient_rows):
            prefetch_row(gradients, gradient_rows[first + GRADIENTS_AHEAD])
        versions[slot] = version
        if last - first == 1 and len(divisors) == 0:
            step_row(kind, parameters, values, state, slot, gradients, gradient_rows[first], lanes)
        else:
            _sum_position(gradients, gradient_rows, divisors, first, last, total, 0)
            step_row(kind, parameters, values, state, slot, total, 0, lanes)


@njit(nogil=True, cache=True, error_model="numpy")
def _sum(
    chosen: Any, gradients: Any, gradient_rows: Any, starts: Any, divisors: Any, out: Any, begin: int, end: int
) -> None:
    for i in range(begin, end):
        p = chosen[i] if len(chosen) else i
        first = starts[p]
        if first + GRADIENTS_AHEAD < len(gradient_rows):
            prefetch_row(gradients, gradient_rows[first + GRADIENTS_AHEAD])
        _sum_position(gradients, gradient_rows, divisors, first, starts[p + 1], out, i)


@njit(nogil=True, cache=True, error_model="numpy")
def _sum_position(
    gradients: Any, gradient_rows: Any, divisors: Any, first: int, last: int, out: Any, row: int
) -> None:
    """`out[row]` = the gradients `first` to `last`, added from left to right."""
    width = gradients.shape[1]
    _start_sum(gradients, gradient_rows, divisors, first, last, out, row)
    for k in range(first + 1, last):
        if k + GRADIENTS_AHEAD < len(gradient_rows):
            prefetch_row(gradients, gradient_rows[k + GRADIENTS_AHEAD])
        source = gradient_rows[k]
        if len(divisors):
            divisor = divisors[source]
            for d in range(width):
                out[row, d] += gradients[source, d] / divisor
        else:
            for d in range(width):
                out[row, d] += gradients[source, d]


@njit(nogil=True, cache=True, error_model="numpy")
def _start_sum(
    gradients: Any, gradient_rows: Any, divisors: Any, first: int, last: int, out: Any, row: int
) -> None:
    # Begins with the first gradient and not with zeros, so that -0.0 alone stays -0.0 as in a row that is not summed.
    width = gradients.shape[1]
    if first == last:
        for d in range(width):
            out[row, d] = np.float32(0)
        return
    source = gradient_rows[first]
    if len(divisors):
        divisor = divisors[source]
        for d in range(width):
            out[row, d] = gradients[source, d] / divisor
    else:
        for d in range(width):
            out[row, d] = gradients[source, d]


@njit(nogil=True, cache=True, error_model="numpy")
def _apply(
    kind: int,
    parameters: Any,
    values: Any,
    state: Any,
    versions: Any,
    version: int,
    slots: Any,
    chosen: Any,
    sums: Any,
    begin: int,
    end: int,
) -> None:
    lanes = np.empty(LANES, np.float32)
    for i in range(begin, end):
        if i + AHEAD < end:
            prefetch_row_for_writing(values, slots[chosen[i + AHEAD]])
            prefetch_row_for_writing(state, slots[chosen[i + AHEAD]])
            prefetch_row(sums, chosen[i + AHEAD])
        slot = slots[chosen[i]]
        versions[slot] = version
        step_row(kind, parameters, values, state, slot, sums, chosen[i], lanes)
