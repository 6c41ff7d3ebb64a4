"""The row optimisers: what one step does to one row.

In: the learning rate and the other numbers of an optimiser. Out: its name and how many float32 of state it keeps with
each row. The arithmetic is documented here and carried out in `kernels` (numba) and `torch_kernels` (any device).

All of them are exact on rows: a step changes the rows that its batch touches and no other, once, with the row's
gradient summed over all its lookups. The state lives with the row and travels with it, and all zeros is the right state
of a row that was never updated. Nothing here may depend on the slot, the step number or other rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from foresee.errors import ConfigError

FLOAT32_TINY = 1.1754944e-38
"""The smallest normal float32: an eps below it would be rounded to nothing in the kernels."""


@dataclass(frozen=True, kw_only=True)
class SGD:
    """`value -= lr * gradient`."""

    name: ClassVar[str] = "sgd"

    lr: float
    """Learning rate."""

    def __post_init__(self) -> None:
        _check_lr(self.name, self.lr)

    def state_width(self, width: int) -> int:
        """No state."""
        return 0


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """`state += gradient²; value -= lr * gradient / (sqrt(state) + eps)`, element by element."""

    name: ClassVar[str] = "adagrad"

    lr: float
    """Learning rate."""
    eps: float = 1e-8
    """Keeps the division finite."""

    def __post_init__(self) -> None:
        _check_lr(self.name, self.lr)
        _check_eps(self.name, self.eps)

    def state_width(self, width: int) -> int:
        """One sum of squares for each value."""
        return width


@dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad:
    """`state += mean(gradient²); value -= lr / (sqrt(state) + eps) * gradient`, one state for the whole row."""

    name: ClassVar[str] = "rowwise_adagrad"

    lr: float
    """Learning rate."""
    eps: float = 1e-8
    """Keeps the division finite."""

    def __post_init__(self) -> None:
        _check_lr(self.name, self.lr)
        _check_eps(self.name, self.eps)

    def state_width(self, width: int) -> int:
        """One sum of mean squares."""
        return 1


@dataclass(frozen=True, kw_only=True)
class LazyAdam:
    """Adam that moves only the rows of the batch; the moments of other rows wait, and so does their step count.

    `count += 1`
    `first = beta1 * first + (1 - beta1) * gradient`
    `second = beta2 * second + (1 - beta2) * gradient²`
    `value -= lr / (1 - beta1^count) * first / (sqrt(second) / sqrt(1 - beta2^count) + eps)`

    `count` is the number of steps that touched this row, so the bias correction is right for rows that are seen rarely.
    """

    name: ClassVar[str] = "lazy_adam"

    lr: float
    """Learning rate."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Keeps the division finite."""

    def __post_init__(self) -> None:
        _check_lr(self.name, self.lr)
        _check_eps(self.name, self.eps)
        _check_beta(self.name, "beta1", self.beta1)
        _check_beta(self.name, "beta2", self.beta2)

    def state_width(self, width: int) -> int:
        """The first moments, the second moments, the count."""
        return 2 * width + 1


Optimizer = SGD | Adagrad | RowwiseAdagrad | LazyAdam

OPTIMIZERS: dict[str, type[SGD] | type[Adagrad] | type[RowwiseAdagrad] | type[LazyAdam]] = {
    SGD.name: SGD,
    Adagrad.name: Adagrad,
    RowwiseAdagrad.name: RowwiseAdagrad,
    LazyAdam.name: LazyAdam,
}


def check_row_optimizer(optimizer: object) -> None:
    """Refuses what cannot update rows, such as an optimiser of torch."""
    if not isinstance(optimizer, tuple(OPTIMIZERS.values())):
        kind = optimizer if isinstance(optimizer, type) else type(optimizer)
        raise ConfigError(
            f"optimizer is {kind.__module__}.{kind.__qualname__}, which cannot update rows of tables; give one of "
            f"{', '.join(f'foresee.{it.__name__}(lr=...)' for it in OPTIMIZERS.values())}"
        )


def _check_lr(name: str, lr: float) -> None:
    if not (math.isfinite(lr) and lr >= 0):
        raise ConfigError(f"the learning rate lr={lr} of {name} cannot be used; give a finite number of 0 or more")


def _check_eps(name: str, eps: float) -> None:
    if not (math.isfinite(eps) and eps >= FLOAT32_TINY):
        raise ConfigError(f"eps={eps} of {name} cannot be used; give a finite number of at least {FLOAT32_TINY}")


def _check_beta(name: str, field: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise ConfigError(f"{field}={beta} of {name} cannot be used; give a number from 0 up to, but not including, 1")
