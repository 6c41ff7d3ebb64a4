"""Adagrad on rows: a sum of squared gradients for each value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from foresee.engine.optimizers.contract import Rate, check_eps, check_lr, number_of, rounded_sqrt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Adagrad:
    """`state += gradient²; value -= lr * gradient / (sqrt(state) + eps)`, element by element.

    Args:
        lr: Learning rate: a number, or a function of the step such as a `Schedule`.
        eps: Keeps the division finite.
        weight_decay: Part of a row that is added to its gradient whenever a step touches the row.
    """

    name: ClassVar[str] = "adagrad"
    elementwise: ClassVar[bool] = True

    lr: Rate
    """Learning rate."""
    eps: float = 1e-8
    """Keeps the division finite."""
    weight_decay: float = 0.0
    """Part of a row that is added to its gradient, in the steps that touch the row and in no others."""

    def __post_init__(self) -> None:
        check_lr(self.name, self.lr)
        check_lr(f"{self.name} (weight_decay)", self.weight_decay)
        check_eps(self.name, self.eps)

    def state_width(self, width: int) -> int:
        """One sum of squares for each value."""
        return width

    @staticmethod
    def step_rows(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
        """The step in the fused kernels."""
        lr, eps = np.float32(parameters[0]), np.float32(parameters[1])
        for i in range(num_rows):
            slot = slots[i]
            for d in range(values.shape[1]):
                total = state[slot, d] + sums[i, d] * sums[i, d]
                state[slot, d] = total
                values[slot, d] -= lr * sums[i, d] / (np.sqrt(total) + eps)

    def step_tensors(self, values: Tensor, state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The step in torch operations."""
        state = state + sums * sums
        return values - sums * number_of(self.lr) / (rounded_sqrt(state) + self.eps), state
