"""Adam on rows, each with a step count of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numba import njit

from foresee.engine.optimizers.contract import Rate, check_eps, check_lr, number_of, rounded_sqrt
from foresee.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

COUNT_BITS = 25
"""A count of steps kept as float32 ends at 2^24."""


@dataclass(frozen=True, kw_only=True)
class LazyAdam:
    """Adam that moves only the rows of the batch; the moments of other rows wait, and so does their step count.

    `count += 1`
    `first = beta1 * first + (1 - beta1) * gradient`
    `second = beta2 * second + (1 - beta2) * gradient²`
    `value -= lr / (1 - beta1^count) * first / (sqrt(second) / sqrt(1 - beta2^count) + eps)`

    `count` is the number of steps that touched this row, so the bias correction is right for rows that are seen rarely.

    Args:
        lr: Learning rate: a number, or a function of the step such as a `Schedule`.
        beta1: Decay of the mean of gradients.
        beta2: Decay of the mean of squared gradients.
        eps: Keeps the division finite.
        weight_decay: Part of a row that is added to its gradient whenever a step touches the row.
    """

    name: ClassVar[str] = "lazy_adam"
    elementwise: ClassVar[bool] = True

    lr: Rate
    """Learning rate."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.999
    """Decay of the mean of squared gradients."""
    eps: float = 1e-8
    """Keeps the division finite."""
    weight_decay: float = 0.0
    """Part of a row that is added to its gradient, in the steps that touch the row and in no others."""

    def __post_init__(self) -> None:
        check_lr(self.name, self.lr)
        check_lr(f"{self.name} (weight_decay)", self.weight_decay)
        check_eps(self.name, self.eps)
        _check_beta(self.name, "beta1", self.beta1)
        _check_beta(self.name, "beta2", self.beta2)

    def state_width(self, width: int) -> int:
        """The first moments, the second moments, the count."""
        return 2 * width + 1

    @staticmethod
    def step_rows(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
        """The step in the fused kernels."""
        lr, beta1, beta2, eps = parameters[0], parameters[1], parameters[2], np.float32(parameters[3])
        keep1, take1 = np.float32(beta1), np.float32(1.0 - beta1)
        keep2, take2 = np.float32(beta2), np.float32(1.0 - beta2)
        width = values.shape[1]
        for i in range(num_rows):
            slot = slots[i]
            count = state[slot, 2 * width] + np.float32(1)
            state[slot, 2 * width] = count
            rate = np.float32(lr / (1.0 - _power(beta1, int(count))))
            root = np.float32(math.sqrt(1.0 - _power(beta2, int(count))))
            for d in range(width):
                first = keep1 * state[slot, d] + take1 * sums[i, d]
                second = keep2 * state[slot, width + d] + take2 * sums[i, d] * sums[i, d]
                state[slot, d] = first
                state[slot, width + d] = second
                values[slot, d] -= rate * first / (np.sqrt(second) / root + eps)

    def step_tensors(self, values: Tensor, state: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """The step in torch operations."""
        import torch

        width = values.shape[1]
        count = state[:, 2 * width :] + 1.0
        bias1 = 1.0 - _powers(self.beta1, count)
        bias2 = 1.0 - _powers(self.beta2, count)
        rates = (torch.full_like(bias1, number_of(self.lr)) / bias1).float()
        roots = bias2.sqrt().float()
        first = state[:, :width] * self.beta1 + sums * (1.0 - self.beta1)
        second = state[:, width : 2 * width] * self.beta2 + sums * (1.0 - self.beta2) * sums
        values = values - rates * first / (rounded_sqrt(second) / roots + self.eps)
        return values, torch.cat([first, second, count], dim=1)


@njit(nogil=True)
def _power(base: float, exponent: int) -> float:
    # By squaring: the same float64 on every machine, whatever its mathematics library.
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def _powers(base: float, counts: Tensor) -> Tensor:
    """base^count in float64, by the multiplications of `_power`."""
    exponents, result = counts.long(), counts.new_ones(counts.shape).double()
    for bit in range(COUNT_BITS):
        result = (result * base).where((exponents >> bit & 1).bool(), result)
        base *= base
    return result


def _check_beta(name: str, field: str, beta: float) -> None:
    if not 0 <= beta < 1:
        raise ConfigError(f"{field}={beta} of {name} cannot be used; give a number from 0 up to, but not including, 1")
