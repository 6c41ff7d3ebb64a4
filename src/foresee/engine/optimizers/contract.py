"""The contract of a row optimiser: what one step does to one row, on the CPU and on any other device.

In: a frozen dataclass whose fields are the optimiser's numbers. Out: how many float32 of state a row keeps, the step as
numba compiles it into the fused kernels (`step_rows`) and the same step in torch operations (`step_tensors`).

All of them are exact on rows: a step changes the rows that its batch touches and no other, once, with the row's
gradient summed over all its lookups. The state lives with the row and travels with it, and all zeros is the right state
of a row that was never updated. Nothing may depend on the slot or other rows. Both steps round every operation on its
own and in the same order, so that on a CPU they give the same bytes.

A learning rate is a number, or a function of the step such as a `Schedule`. It is asked for the step that an update
belongs to, whoever applies it and when, so caches, workers and restarts change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar, get_args, runtime_checkable

from foresee.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from torch import Tensor

FLOAT32_TINY = 1.1754944e-38
"""The smallest normal float32: an eps below it would be rounded to nothing in the kernels."""

Rate = float | Callable[[int], float]
"""A learning rate, or one for each step, counted from 0 over all epochs and restarts."""
Shape = Literal["constant", "step", "cosine"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning rate by step: it rises to `lr` in a straight line, then stays, falls in stairs, or along a cosine.

    Args:
        lr: The rate after the warm-up.
        shape: What follows the warm-up: constant, step or cosine.
        warmup_steps: Steps of the rise; the first one has 1 / warmup_steps of the rate.
        steps: For step, after how many steps the rate falls each time; for cosine, the length of the fall.
        gamma: What the rate is multiplied with at each stair.
        floor: The rate of a cosine at its end and ever after.

    Raises:
        ConfigError: A number that gives no rate.
    """

    lr: float
    shape: Shape = "constant"
    warmup_steps: int = 0
    steps: int | None = None
    gamma: float = 0.1
    floor: float = 0.0

    def __post_init__(self) -> None:
        for name in ("lr", "gamma", "floor"):
            check_lr(f"a schedule ({name})", getattr(self, name))
        if self.shape not in get_args(Shape):
            raise ConfigError(f"schedule {self.shape!r} is not known; choose one of {', '.join(get_args(Shape))}")
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps={self.warmup_steps} of a schedule is below 0; give 0 for none")
        if self.shape != "constant" and (self.steps is None or self.steps < 1):
            raise ConfigError(f"a {self.shape} schedule needs steps of at least 1, got {self.steps}")

    def __call__(self, step: int) -> float:
        """The rate of a step."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        since = step - self.warmup_steps
        if self.shape == "step":
            return float(self.lr * self.gamma ** (since // (self.steps or 1)))
        if self.shape == "cosine":
            done = min(1.0, since / (self.steps or 1))
            return self.floor + (self.lr - self.floor) * (1.0 + math.cos(math.pi * done)) / 2.0
        return self.lr


Kind = TypeVar("Kind")


def at_step(optimizer: Kind, step: int) -> Kind:
    """The optimiser with the rate that it has in a step; itself where that does not move."""
    moving = {name: rate for name in numbers_of(optimizer) if callable(rate := getattr(optimizer, name))}
    if not moving:
        return optimizer
    return replace(optimizer, **{name: rate_at(rate, step) for name, rate in moving.items()})  # type: ignore[type-var]


def rate_at(lr: Rate, step: int) -> float:
    """The number of a step; refuses one that a person's own function should not have given."""
    if not callable(lr):
        return lr
    rate = float(lr(step))
    if not (math.isfinite(rate) and rate >= 0):
        raise ConfigError(f"the learning rate of step {step} is {rate}; let the schedule give finite numbers from 0 up")
    return rate


@runtime_checkable
class Optimizer(Protocol):
    """How rows learn: a frozen dataclass of numbers with two forms of one step.

    Attributes:
        name: What run files and table folders call it.
        elementwise: Each value moves by its own gradient and state alone; tables narrower than a row need that.
        lr: The learning rate, which every optimiser has; its other fields are numbers of its own.

    A class whose step hands `values` on to `kernels.values.subtract_scaled` and looks at them in no other way may say
    so by `in_place = True`: rows of two bytes are then changed where they lie. Any other gets them as float32.
    """

    name: ClassVar[str]
    elementwise: ClassVar[bool]

    @property
    def lr(self) -> Rate:
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


def check_lr(name: str, lr: Rate) -> None:
    """Refuses a learning rate that is negative or no number; one that moves is looked at step by step."""
    if not callable(lr) and not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"the learning rate lr={lr} of {name} cannot be used; give a finite number of 0 or more")


def number_of(lr: Rate) -> float:
    """The rate of an optimiser that stands at a step (`at_step`)."""
    if callable(lr):
        raise UsageError("this learning rate moves with the step; ask at_step(optimizer, step) for the one of a step")
    return lr


def check_eps(name: str, eps: float) -> None:
    """Refuses an eps that would be nothing as a float32."""
    if not (math.isfinite(eps) and eps >= FLOAT32_TINY):
        raise ConfigError(f"eps={eps} of {name} cannot be used; give a finite number of at least {FLOAT32_TINY}")


def rounded_sqrt(squares: Tensor) -> Tensor:
    """Rounded correctly, as the processor's instruction does; torch's float32 root on the CPU may be one bit off."""
    return squares.double().sqrt().float() if squares.device.type == "cpu" else squares.sqrt()
