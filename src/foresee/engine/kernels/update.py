"""Gradients in, rows changed: the sum over lookups and the optimiser step.

In: the gradient of each lookup (or bag) and the `LookupOrder` of the step. Out: the cache rows after one optimiser step
each, with their version set; or only the sums, to be sent to the rows' owner; or the step from given sums. Each row is
visited once, its gradients are added in lookup order, and the result does not depend on slots or threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from foresee.arrays import Float32, Int32, Int64
from foresee.engine.kernels.check import ONE_THREAD, Threads, check_matrix, check_rows, check_slots
from foresee.engine.kernels.order import LookupOrder
from foresee.engine.kernels.steps import Step, decay_of, parameters_of, scratch_for, step_block, step_of
from foresee.engine.kernels.values import Form, at_version, width_for
from foresee.engine.kernels.vector import add_row, copy_row
from foresee.errors import UsageError
from foresee.prefetch import prefetch_read, prefetch_row, prefetch_row_for_writing, prefetch_write
from foresee.store.contract import Rows

if TYPE_CHECKING:
    from foresee.engine.optimizers.contract import Optimizer

NOBODY: Int64 = np.empty(0, np.int64)
BLOCK = 8
"""Rows that are summed, then stepped: few enough to stay in the nearest cache."""
AHEAD = 16
"""Lookups between asking for a row of gradient and adding it."""
ROWS_AHEAD = 2 * BLOCK
"""Rows between asking for a row and changing it: while a block is computed, the next two arrive from memory."""


def update_rows(
    optimizer: Optimizer,
    cache: Rows,
    unique: Int32,
    gradients: Float32,
    order: LookupOrder,
    *,
    version: int,
    positions: Int32 | None = None,
    divisor: int = 1,
    form: Form = None,
    row_of_slot: Int64 = NOBODY,
    threads: Threads = ONE_THREAD,
) -> None:
    """Sums `gradients` [lookups or bags, width] by row and steps the rows at slots `unique`, in one pass.

    `version` (step + 1) becomes the version of each row. `positions` restricts it to some positions of `unique`. Sums
    are divided by `divisor` before the step. Values of two bytes have a `form`, and are rounded with the bits of the
    row that `row_of_slot` has in the slot.
    """
    width = width_for(form, cache.values, gradients)
    check_rows("cache", cache, width=int(cache.values.shape[1]), state_width=optimizer.state_width(width))
    check_slots("unique", unique, len(cache))
    _check_order(order, len(unique), gradients, width)
    divided = _divide(gradients, order)
    step, parameters = step_of(optimizer), parameters_of(optimizer)
    decay = np.float32(decay_of(optimizer))
    chosen, bounds = _chosen(positions, order, threads)
    form = at_version(form, version)
    if form is None:
        row_of_slot = NOBODY
    elif len(row_of_slot) != len(cache):
        raise UsageError(
            f"the rows of {len(row_of_slot)} slots are known, the cache has {len(cache)}; give all of them"
        )

    def kernel(begin: int, end: int) -> None:
        _update(
            form, row_of_slot, step, parameters, cache.values, cache.state, cache.versions, version,
            unique, chosen, divided, order.gradient_rows, order.starts, np.float32(divisor), decay, begin, end,
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
    width = int(gradients.shape[1])
    _check_order(order, order.num_unique, gradients, width)
    divided = _divide(gradients, order)
    chosen, bounds = _chosen(positions, order, threads)
    check_matrix("out", out, bounds[-1], width)

    def kernel(begin: int, end: int) -> None:
        _sum(chosen, divided, order.gradient_rows, order.starts, out, begin, end)

    threads.run(kernel, bounds)


def apply_rows(
    optimizer: Optimizer,
    cache: Rows,
    slots: Int32,
    sums: Float32,
    *,
    version: int,
    positions: Int32 | None = None,
    form: Form = None,
    row_of_slot: Int64 = NOBODY,
    threads: Threads = ONE_THREAD,
) -> None:
    """Steps the row at `slots[i]` with `sums[i]`, for all i or for the i in `positions`. Slots must be distinct."""
    counting = np.arange(len(slots) + 1, dtype=np.int32)
    each_its_own = LookupOrder(counting[:-1], counting, np.empty(0, np.float32))
    update_rows(
        optimizer, cache, slots, sums, each_its_own, version=version, positions=positions, form=form,
        row_of_slot=row_of_slot, threads=threads,
    )  # fmt: skip


def _check_order(order: LookupOrder, num_unique: int, gradients: Float32, width: int) -> None:
    if order.num_unique != num_unique:
        raise UsageError(
            f"the lookups were ordered for {order.num_unique} rows, but there are {num_unique} slots; "
            "use the order of the same record"
        )
    check_matrix("gradients", gradients, len(order.divisors) or len(gradients), width)
    check_slots("order.gradient_rows", order.gradient_rows, len(gradients))


def _divide(gradients: Float32, order: LookupOrder) -> Float32:
    """Mean pooling gives each row of a bag its share of the bag's gradient."""
    return gradients / order.divisors[:, np.newaxis] if len(order.divisors) else gradients


def _chosen(positions: Int32 | None, order: LookupOrder, threads: Threads) -> tuple[Int32, list[int]]:
    """The positions to work on (empty: all of them), and their ranges for the threads."""
    if positions is not None:
        check_slots("positions", positions, order.num_unique)
        return positions, threads.split(len(positions))
    everything = np.empty(0, np.int32)
    num_ranges = len(threads.split(order.num_unique)) - 1
    if num_ranges == 1:
        return everything, [0, order.num_unique]
    # A row costs about as much as a lookup. Hot rows come first, so equal numbers of rows would not be equal work.
    cost = order.starts + np.arange(order.num_unique + 1, dtype=np.int64)
    targets = [int(cost[-1]) * i // num_ranges for i in range(num_ranges + 1)]
    return everything, [int(bound) for bound in np.searchsorted(cost, targets)]


@njit(nogil=True, cache=True, error_model="numpy")
def _update(
    form: Any,
    row_of_slot: Any,
    step: Step,
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
    divisor: Any,
    decay: Any,
    begin: int,
    end: int,
) -> None:
    # Block by block, the sums in the nearest cache; rows of later blocks arrive from memory meanwhile.
    # The loop over lookups stands here and in _sum: as a function it would cost more than it does.
    slots = np.empty(BLOCK, np.int32)
    sums = np.empty((BLOCK, gradients.shape[1]), np.float32)
    scratch = scratch_for(form, sums, state)
    for block in range(begin, end, BLOCK):
        size = min(BLOCK, end - block)
        for i in range(size):
            position = chosen[block + i] if len(chosen) else block + i
            slot = unique[position]
            slots[i] = slot
            versions[slot] = version
            if block + i + ROWS_AHEAD < end:
                later = block + i + ROWS_AHEAD
                coming = unique[chosen[later] if len(chosen) else later]
                prefetch_row_for_writing(values, coming)
                prefetch_row_for_writing(state, coming)
                prefetch_write(versions, coming)
                if len(row_of_slot):
                    prefetch_read(row_of_slot, coming)
            for k in range(starts[position], starts[position + 1]):
                if k + AHEAD < len(gradient_rows):
                    prefetch_row(gradients, gradient_rows[k + AHEAD])
                if k == starts[position]:  # not 0 + gradient: a lone -0.0 stays what it is
                    copy_row(sums, i, gradients, gradient_rows[k])
                else:
                    add_row(sums, i, gradients, gradient_rows[k])
            if divisor != 1:
                for d in range(sums.shape[1]):
                    sums[i, d] /= divisor
        step_block(form, scratch, row_of_slot, step, parameters, values, state, slots, sums, decay, size)


@njit(nogil=True, cache=True, error_model="numpy")
def _sum(chosen: Any, gradients: Any, gradient_rows: Any, starts: Any, out: Any, begin: int, end: int) -> None:
    for i in range(begin, end):
        position = chosen[i] if len(chosen) else i
        for k in range(starts[position], starts[position + 1]):
            if k + AHEAD < len(gradient_rows):
                prefetch_row(gradients, gradient_rows[k + AHEAD])
            if k == starts[position]:
                copy_row(out, i, gradients, gradient_rows[k])
            else:
                add_row(out, i, gradients, gradient_rows[k])
