"""One optimiser step on each of some rows: the arithmetic, in float32, in a fixed order.

In: an optimiser as a number and an array of its parameters, the cache arrays, slots and summed gradients.
Out: the rows' values and state, changed in place. Each operation is rounded on its own (no fused multiply-add, no
reordering), so `torch_kernels` can repeat it exactly. Formulas: `optimizers`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.engine.kernels.vector import subtract_scaled_row, sum_of_squares
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad

SGD_KIND, ADAGRAD_KIND, ROWWISE_ADAGRAD_KIND, LAZY_ADAM_KIND = 0, 1, 2, 3


def kind_of(optimizer: Optimizer) -> int:
    """The optimiser as the kernels know it."""
    kinds = {SGD: SGD_KIND, Adagrad: ADAGRAD_KIND, RowwiseAdagrad: ROWWISE_ADAGRAD_KIND, LazyAdam: LAZY_ADAM_KIND}
    return kinds[type(optimizer)]


def parameters_of(optimizer: Optimizer) -> NDArray[np.float64]:
    """lr, eps, beta1, beta2; what an optimiser does not have is 0. The kernels round them to float32."""
    fields = ("lr", "eps", "beta1", "beta2")
    return np.array([getattr(optimizer, field, 0.0) for field in fields], np.float64)


@njit(nogil=True, inline="always", error_model="numpy")
def step_rows(kind: int, parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
    """One step on row `slots[i]` of values and state with `sums[i]`, for the first `num_rows` i."""
    if kind == ROWWISE_ADAGRAD_KIND:
        _rowwise_adagrad(parameters, values, state, slots, sums, num_rows)
    elif kind == SGD_KIND:
        _sgd(parameters, values, slots, sums, num_rows)
    elif kind == ADAGRAD_KIND:
        _adagrad(parameters, values, state, slots, sums, num_rows)
    else:
        _lazy_adam(parameters, values, state, slots, sums, num_rows)


@njit(nogil=True, inline="always", error_model="numpy")
def _sgd(parameters: Any, values: Any, slots: Any, sums: Any, num_rows: int) -> None:
    lr = np.float32(parameters[0])
    for i in range(num_rows):
        subtract_scaled_row(values, slots[i], lr, sums, i)


@njit(nogil=True, inline="always", error_model="numpy")
def _adagrad(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
    lr, eps = np.float32(parameters[0]), np.float32(parameters[1])
    for i in range(num_rows):
        slot = slots[i]
        for d in range(values.shape[1]):
            total = state[slot, d] + sums[i, d] * sums[i, d]
            state[slot, d] = total
            values[slot, d] -= lr * sums[i, d] / (np.sqrt(total) + eps)


@njit(nogil=True, inline="always", error_model="numpy")
def _rowwise_adagrad(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
    lr, eps = np.float32(parameters[0]), np.float32(parameters[1])
    for i in range(num_rows):
        slot = slots[i]
        total = state[slot, 0] + sum_of_squares(sums, i) / np.float32(values.shape[1])
        state[slot, 0] = total
        subtract_scaled_row(values, slot, lr / (np.sqrt(total) + eps), sums, i)


@njit(nogil=True, inline="always", error_model="numpy")
def _lazy_adam(parameters: Any, values: Any, state: Any, slots: Any, sums: Any, num_rows: int) -> None:
    lr, eps, beta1, beta2 = parameters[0], np.float32(parameters[1]), parameters[2], parameters[3]
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
