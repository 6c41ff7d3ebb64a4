"""The step of an optimiser as an argument of a kernel, which is compiled for it.

In: an optimiser. Out: its parameters as an array, and a `Step`: a value of no bytes whose numba type names the
optimiser's step. A kernel that is called with it gets `step_rows` compiled into its loop, as if it stood there.

The type is text: where the step is defined, and a digest of that file. So numba keeps the kernel of every optimiser on
disk, finds it again in the next process, and compiles anew when the optimiser's file has changed. A step that comes
from no file is another one in every process.
"""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit, types
from numba.extending import NativeValue, models, overload, register_model, typeof_impl, unbox
from numpy.typing import NDArray

from foresee.engine.kernels.values import HalfRows, read_row, write_row
from foresee.engine.kernels.vector import copy_row
from foresee.store.halves import row_key

if TYPE_CHECKING:
    from foresee.engine.optimizers.contract import Optimizer

_COMPILED: dict[str, Any] = {}
"""By identity: a type holds text only, as it is written to disk beside the kernel."""


class StepType(types.Type):  # type: ignore[misc]
    """What numba sees of a `Step`."""

    def __init__(self, identity: str, in_place: bool) -> None:
        self.identity, self.in_place = identity, in_place
        super().__init__(name=f"RowStep({identity}{', in place' if in_place else ''})")


class Step:
    """Which step a kernel is compiled for."""

    def __init__(self, identity: str, in_place: bool) -> None:
        self.type = StepType(identity, in_place)


register_model(StepType)(models.OpaqueModel)


@typeof_impl.register(Step)
def _typeof(step: Step, context: object) -> StepType:
    return step.type


@unbox(StepType)
def _unbox(step_type: StepType, step: Any, c: Any) -> NativeValue:
    return NativeValue(c.context.get_dummy_value())


def step_of(optimizer: Optimizer) -> Step:
    """The step of an optimiser, for kernels."""
    return _step(type(optimizer).step_rows, getattr(type(optimizer), "in_place", False))


def parameters_of(optimizer: Optimizer) -> NDArray[np.float64]:
    """Its fields in their order. The steps round them to float32 where they want to."""
    return np.array([getattr(optimizer, name) for name in _numbers(type(optimizer))], np.float64)


def decay_of(optimizer: Optimizer) -> float:
    """What part of a row is added to its gradient; an optimiser that has no such field adds nothing."""
    return float(getattr(optimizer, "weight_decay", 0.0))


@cache
def _numbers(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind)]


@cache
def _step(function: Callable[..., None], in_place: bool) -> Step:
    identity = f"{function.__module__}.{function.__qualname__}.{_digest(function)}"
    _COMPILED[identity] = njit(nogil=True, inline="always", error_model="numpy")(function)
    return Step(identity, in_place)


def _digest(function: Callable[..., None]) -> str:
    """Of the file that a function stands in: what it uses beside its own lines is mostly there."""
    try:
        return hashlib.sha256(Path(inspect.getfile(function)).read_bytes()).hexdigest()[:16]
    except (OSError, TypeError):
        return uuid.uuid4().hex[:16]


def step_rows(step: Step, parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
    """One step on row `slots[i]` of values and state with `sums[i]`, for the first `num_rows` i; inside kernels."""
    raise NotImplementedError("only kernels call it")


@overload(step_rows, inline="always")
def _step_rows(
    step: Any, parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: Any
) -> Callable[..., None]:
    compiled = _COMPILED[step.identity]

    def implementation(
        step: Any, parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: Any
    ) -> None:
        compiled(parameters, values, state, slots, sums, num_rows)

    return implementation


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

    def on_halves(
        form: Any, scratch: Any, row_of_slot: Any, step: Any, parameters: Any, values: Any, state: Any, slots: Any,
        sums: Any, decay: Any, num_rows: Any,
    ) -> None:  # fmt: skip
        if decay != 0:
            for i in range(num_rows):
                read_row(form, scratch[0], i, values, slots[i])
                for d in range(sums.shape[1]):
                    sums[i, d] += decay * scratch[0][i, d]
        step_rows(step, parameters, HalfRows(form, values, row_of_slot), state, slots, sums, num_rows)

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

    if isinstance(form, types.NoneType):
        return in_place
    return on_halves if step.in_place else beside
