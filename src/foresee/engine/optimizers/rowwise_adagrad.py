"""Row-wise Adagrad: one sum of mean squared gradients for a whole row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from foresee.engine.kernels.values import subtract_scaled
from foresee.engine.kernels.vector import LANES, sum_of_squares
from foresee.engine.optimizers.contract import Rate, check_eps, check_lr, number_of, rounded_sqrt

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad:
    """`state += mean(gradient²); value -= lr / (sqrt(state) + eps) * gradient`, one state for the whole row.

    Args:
        lr: Learning rate: a number, or a function of the step such as a `Schedule`.
        eps: Keeps the division finite.
        weight_decay: Part of a row that is added to its gradient whenever a step touches the row.
    """

    name: ClassVar[str] = "rowwise_adagrad"
    elementwise: ClassVar[bool] = False
    in_place: ClassVar[bool] = True

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
        """One sum of mean squares."""
        return 1

    @staticmethod
    def step_rows(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
        """The step in the fused kernels."""
        lr, eps = np.float32(parameters[0]), np.float32(parameters[1])
        for i in range(num_rows):
            slot = slots[i]
            total = state[slot, 0] + sum_of_squares(sums, i) / np.float32(sums.shape[1])
            state[slot, 0] = total
            subtract_scaled(values, slot, lr / (np.sqrt(total) + eps), sums, i)

    def step_tensors(self, values: Tensor, state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The step in torch operations."""
        # A tensor over a number, or a number over a tensor, is a reciprocal and a product to torch: rounded twice.
        state = state + _sums_of_squares(sums) / state.new_full(state.shape, sums.shape[1])
        rates = state.new_full(state.shape, number_of(self.lr)) / (rounded_sqrt(state) + self.eps)
        return values - rates * sums, state


def _sums_of_squares(sums: Tensor) -> Tensor:
    """[rows, 1], added in the lanes of `kernels.vector.sum_of_squares`."""
    squares = sums * sums
    whole = squares.shape[1] // LANES * LANES
    lanes = squares.new_zeros(len(squares), LANES)
    for d in range(0, whole, LANES):
        lanes = lanes + squares[:, d : d + LANES]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    rest = squares.new_zeros(len(squares), 1)
    for d in range(whole, squares.shape[1]):
        rest = rest + squares[:, d : d + 1]
    return lanes + rest
