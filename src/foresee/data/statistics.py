"""Mean and deviation of dense columns in one pass, and the transforms that use them.

In: raw numbers of the train split, chunk by chunk. Out: what a prepared log says about the column, and float32 values.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from foresee.data.batch import Float32
from foresee.data.columns import Dense
from foresee.data.schema import DenseFeature

Float64 = NDArray[np.float64]


class DenseStatistics:
    """Mean and variance of one column, merged chunk by chunk (Chan, Golub and LeVeque), so that they stay exact."""

    def __init__(self, column: Dense) -> None:
        self._column = column
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, values: Float64) -> None:
        if self._column.transform != "standard" or not len(values):
            return
        mean, total = float(values.mean()), self._count + len(values)
        apart = mean - self._mean
        self._squares += float(((values - mean) ** 2).sum()) + apart * apart * self._count * len(values) / total
        self._mean += apart * len(values) / total
        self._count = total

    def feature(self) -> DenseFeature:
        """The column as the prepared log describes it. A constant column gets deviation 1."""
        deviation = math.sqrt(self._squares / self._count) if self._count else 1.0
        return DenseFeature(
            name=self._column.name,
            transform=self._column.transform,
            missing=self._column.missing,
            mean=self._mean,
            deviation=deviation or 1.0,
            missing_markers=self._column.missing_markers,
        )


def transform(values: Float64, feature: DenseFeature) -> Float32:
    """Raw numbers as a model sees them."""
    if feature.transform == "log1p":
        values = np.log1p(np.maximum(values, 0.0))
    elif feature.transform == "standard":
        values = (values - feature.mean) / feature.deviation
    return values.astype(np.float32)
