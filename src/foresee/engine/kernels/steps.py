"""One optimiser step on one row: the arithmetic, in float32, in a fixed order.

In: an optimiser as a number and an array of its parameters, the cache arrays, a slot, and a row of summed gradient.
Out: the row's values and state, changed in place. Each operation is rounded on its own (no fused multiply-add, no
reordering), so `torch_kernels` can repeat it exactly. Formulas: `optimizers`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad

SGD_KIND, ADAGRAD_KIND, ROWWISE_ADAGRAD_KIND, LAZY_ADAM_KIND = 0, 1, 2, 3

LANES = 16
"""Partial sums of a row's squares: element d goes to lane d % LANES, then lanes are added in halves."""


def kind_of(optimizer: Optimizer) -> int:
    """The optimiser as the kernels know it."""
    kinds = {SGD: SGD_KIND, Adagrad: ADAGRAD_KIND, RowwiseAdagrad: ROWWISE_ADAGRAD_KIND, LazyAdam: LAZY_ADAM_KIND}
    return kinds[type(optimizer)]


def parameters_of(optimizer: Optimizer) -> NDArray[np.float64]:
    """lr, eps, beta1, beta2; what an optimiser does not have is 0. The kernels round them to float32."""
    fields = ("lr", "eps", "beta1", "beta2")
    return np.array([getattr(optimizer, field, 0.0) for field in fields], np.float64)


@njit(nogil=True, cache=True, error_model="numpy")
def step_row(
    kind: int, parameters: Any, values: Any, state: Any, slot: int, gradients: Any, row: int, lanes: Any
) -> None:
    """One step on `values[slot]`, `state[slot]` with `gradients[row]`. `lanes` is scratch for LANES float32."""
    if kind == ROWWISE_ADAGRAD_KIND:
        _rowwise_adagrad(parameters, values, state, slot, gradients, row, lanes)
    elif kind == SGD_KIND:
        _sgd(parameters, values, slot, gradients, row)
    elif kind == ADAGRAD_KIND:
        _adagrad(parameters, values, state, slot, gradients, row)
    else:
        _lazy_adam(parameters, values, state, slot, gradients, row)


@njit(nogil=True, cache=True, error_model="numpy")
def _sgd(parameters: Any, values: Any, slot: int, gradients: Any, row: int) -> None:
    lr = np.float32(parameters[0])
    for d in range(values.shape[1]):
        values[slot, d] -= lr * gradients[row, d]


@njit(nogil=True, cache=True, error_model="numpy")
def _adagrad(parameters: Any, values: Any, state: Any, slot: int, gradients: Any, row: int) -> None:
    lr, eps = np.float32(parameters[0]), np.float32(parameters[1])
    for d in range(values.shape[1]):
        gradient = gradients[row, d]
        total = state[slot, d] + gradient * gradient
        state[slot, d] = total
        values[slot, d] -= lr * gradient / (np.sqrt(total) + eps)


@njit(nogil=True, cache=True, error_model="numpy")
def _rowwise_adagrad(
    parameters: Any, values: Any, state: Any, slot: int, gradients: Any, row: int, lanes: Any
) -> None:
    lr, eps = np.float32(parameters[0]), np.float32(parameters[1])
    width = values.shape[1]
    total = state[slot, 0] + _sum_of_squares(gradients, row, lanes) / np.float32(width)
    state[slot, 0] = total
    rate = lr / (np.sqrt(total) + eps)
    for d in range(width):
        values[slot, d] -= rate * gradients[row, d]


@njit(nogil=True, cache=True, error_model="numpy")
def _sum_of_squares(gradients: Any, row: int, lanes: Any) -> Any:
    # One running sum would wait for each addition in turn; independent lanes are as exact and several times faster.
    width = gradients.shape[1]
    whole = width - width % LANES
    for lane in range(LANES):
        lanes[lane] = np.float32(0)
    for block in range(0, whole, LANES):
        for lane in range(LANES):
            gradient = gradients[row, block + lane]
            lanes[lane] += gradient * gradient
    for d in range(whole, width):
        lanes[d - whole] += gradients[row, d] * gradients[row, d]
    half = LANES // 2
    while half > 0:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True, error_model="numpy")
def _lazy_adam(parameters: Any, values: Any, state: Any, slot: int, gradients: Any, row: int) -> None:
    lr, eps, beta1, beta2 = parameters[0], np.float32(parameters[1]), parameters[2], parameters[3]
    width = values.shape[1]
    count = state[slot, 2 * width] + np.float32(1)
    state[slot, 2 * width] = count
    rate = np.float32(lr / (1.0 - power(beta1, int(count))))
    root = np.float32(math.sqrt(1.0 - power(beta2, int(count))))
    keep1, take1 = np.float32(beta1), np.float32(1.0 - beta1)
    keep2, take2 = np.float32(beta2), np.float32(1.0 - beta2)
    for d in range(width):
        gradient = gradients[row, d]
        first = keep1 * state[slot, d] + take1 * gradient
        second = keep2 * state[slot, width + d] + take2 * gradient * gradient
        state[slot, d] = first
        state[slot, width + d] = second
        values[slot, d] -= rate * first / (np.sqrt(second) / root + eps)


@njit(nogil=True, cache=True)
def power(base: float, exponent: int) -> float:
    """base^exponent by squaring: the same float64 on every machine, whatever its mathematics library."""
    result = 1.0
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
