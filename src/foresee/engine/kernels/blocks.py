"""The optimiser step on a block of rows whose gradients are summed: in place, or beside it where values are halves.

In: the slots of a block and its sums. Out: values and state after one step. Rows of float32 are changed where they are.
Halves are turned to float32 in memory of a few rows that stays in the nearest cache, stepped there by the same step,
and rounded on the way back, with the bits of row and version: nothing is rounded between two operations of a step.
An optimiser never sees which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from foresee.base.halves import row_key
from foresee.engine.kernels.steps import step_rows
from foresee.engine.kernels.values import read_row, write_row
from foresee.engine.kernels.vector import copy_row


def scratch_for(form: Any, sums: Any, state: Any) -> Any:
    """Memory for the rows of a block and their state; inside kernels."""
    raise NotImplementedError("only kernels call it")


@overload(scratch_for, inline="always")
def _scratch_for(form: Any, sums: Any, state: Any) -> Callable[..., Any]:
    def nothing(form: Any, sums: Any, state: Any) -> Any:
        return 0

    def memory(form: Any, sums: Any, state: Any) -> Any:
        rows = len(sums)
        return (
            np.empty((rows, sums.shape[1]), np.float32),
            np.empty((rows, state.shape[1]), np.float32),
            np.arange(rows).astype(np.int32),
        )

    return nothing if isinstance(form, types.NoneType) else memory


def step_block(
    form: Any, scratch: Any, row_of_slot: Any, step: Any, parameters: Any, values: Any, state: Any, slots: Any,
    sums: Any, decay: Any, num_rows: int,
) -> None:  # fmt: skip
    """Weight decay and one step on row `slots[i]` with `sums[i]`, for the first `num_rows` i; inside kernels."""
    raise NotImplementedError("only kernels call it")


@overload(step_block, inline="always")
def _step_block(
    form: Any, scratch: Any, row_of_slot: Any, step: Any, parameters: Any, values: Any, state: Any, slots: Any,
    sums: Any, decay: Any, num_rows: Any,
) -> Callable[..., None]:  # fmt: skip
    def in_place(
        form: Any, scratch: Any, row_of_slot: Any, step: Any, parameters: Any, values: Any, state: Any, slots: Any,
        sums: Any, decay: Any, num_rows: Any,
    ) -> None:  # fmt: skip
        if decay != 0:
            for i in range(num_rows):
                for d in range(sums.shape[1]):
                    sums[i, d] += decay * values[slots[i], d]
        step_rows(step, parameters, values, state, slots, sums, num_rows)

    def beside(
        form: Any, scratch: Any, row_of_slot: Any, step: Any, parameters: Any, values: Any, state: Any, slots: Any,
        sums: Any, decay: Any, num_rows: Any,
    ) -> None:  # fmt: skip
        wide, its_state, counting = scratch
        for i in range(num_rows):
            read_row(form, wide, i, values, slots[i])
            copy_row(its_state, i, state, slots[i])
        if decay != 0:
            for i in range(num_rows):
                for d in range(sums.shape[1]):
                    sums[i, d] += decay * wide[i, d]
        step_rows(step, parameters, wide, its_state, counting, sums, num_rows)
        for i in range(num_rows):
            write_row(form, values, slots[i], wide, i, row_key(form.key, row_of_slot[slots[i]]))
            copy_row(state, slots[i], its_state, i)

    return in_place if isinstance(form, types.NoneType) else beside
