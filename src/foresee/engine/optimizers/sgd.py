"""Plain gradient descent on rows: no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from foresee.engine.kernels.values import subtract_scaled
from foresee.engine.optimizers.contract import Rate, check_lr, number_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SGD:
    """`value -= lr * gradient`.

    Args:
        lr: Learning rate: a number, or a function of the step such as a `Schedule`.
        weight_decay: Part of a row that is added to its gradient whenever a step touches the row.
    """

    name: ClassVar[str] = "sgd"
    elementwise: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    lr: Rate
    """Learning rate."""
    weight_decay: float = 0.0
    """Part of a row that is added to its gradient, in the steps that touch the row and in no others."""

    def __post_init__(self) -> None:
        check_lr(self.name, self.lr)
        check_lr(f"{self.name} (weight_decay)", self.weight_decay)

    def state_width(self, width: int) -> int:
        """No state."""
        return 0

    @staticmethod
    def step_rows(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
        """The step in the fused kernels."""
        lr = np.float32(parameters[0])
        for i in range(num_rows):
            subtract_scaled(values, slots[i], lr, sums, i)

    def step_tensors(self, values: Tensor, state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The step in torch operations."""
        return values - sums * number_of(self.lr), state
