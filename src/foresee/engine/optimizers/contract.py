"""The contract of a row optimiser: what one step does to one row, on the CPU and on any other device.

In: a frozen dataclass whose fields are the optimiser's numbers. Out: how many float32 of state a row keeps, the step as
numba compiles it into the fused kernels (`step_rows`) and the same step in torch operations (`step_tensors`).

All of them are exact on rows: a step changes the rows that its batch touches and no other, once, with the row's
gradient summed over all its lookups. The state lives with the row and travels with it, and all zeros is the right state
of a row that was never updated. Nothing may depend on the slot, the step number or other rows. Both steps round every
operation on its own and in the same order, so that on a CPU they give the same bytes.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from foresee.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

FLOAT32_TINY = 1.1754944e-38
"""The smallest normal float32: an eps below it would be rounded to nothing in the kernels."""


@runtime_checkable
class Optimizer(Protocol):
    """How rows learn: a frozen dataclass of numbers with two forms of one step.

    Attributes:
        name: What run files and table folders call it.
        elementwise: Each value moves by its own gradient and state alone; tables narrower than a row need that.
        lr: The learning rate, which every optimiser has; its other fields are numbers of its own.
    """

    name: ClassVar[str]
    elementwise: ClassVar[bool]

    @property
    def lr(self) -> float:
        """Learning rate."""
        ...

    def state_width(self, width: int) -> int:
        """float32 of state that a row of this width keeps."""
        ...

    @staticmethod
    def step_rows(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
        """One step on row `slots[i]` of values and state with `sums[i]`, for the first `num_rows` i, in place.

        A plain function that numba can compile; it becomes part of the update kernel. All arrays are float32 but
        `parameters`, the fields of the dataclass in their order as float64, and `slots`, int32.

        Args:
            parameters: [fields].
            values: [capacity, width], the values of all rows in the cache.
            state: [capacity, state_width], their state.
            slots: [at least num_rows], where the rows are; distinct.
            sums: [at least num_rows, width], the summed gradient of each.
            num_rows: How many.
        """
        ...

    def step_tensors(self, values: Tensor, state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The same step in torch operations, on tensors of any device; changes none of its arguments.

        Args:
            values: [rows, width], the values of some rows.
            state: [rows, state_width], their state.
            sums: [rows, width], the summed gradient of each.

        Returns:
            The values and the state after the step.
        """
        ...


def numbers_of(optimizer: object) -> list[str]:
    """The names of its fields, in their order."""
    return [field.name for field in fields(optimizer)] if is_dataclass(optimizer) else []


def is_row_optimizer(optimizer: object) -> bool:
    """Whether it keeps the contract, as far as its names tell."""
    return is_dataclass(optimizer) and not isinstance(optimizer, type) and isinstance(optimizer, Optimizer)


def check_lr(name: str, lr: float) -> None:
    """Refuses a learning rate that is negative or no number."""
    if not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"the learning rate lr={lr} of {name} cannot be used; give a finite number of 0 or more")


def check_eps(name: str, eps: float) -> None:
    """Refuses an eps that would be nothing as a float32."""
    if not (math.isfinite(eps) and eps >= FLOAT32_TINY):
        raise ConfigError(f"eps={eps} of {name} cannot be used; give a finite number of at least {FLOAT32_TINY}")


def rounded_sqrt(squares: Tensor) -> Tensor:
    """Rounded correctly, as the processor's instruction does; torch's float32 root on the CPU may be one bit off."""
    return squares.double().sqrt().float() if squares.device.type == "cpu" else squares.sqrt()
