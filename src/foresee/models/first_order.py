"""The linear part of a model: a bias, a weight for each dense feature, a weight for each id.

In: dense [samples, dense features] and the ids' weights [samples, features], which are a column of their rows, so that
they are fetched, updated and stored with the embedding. Out: one number for each sample.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FirstOrder(nn.Module):
    """Starts at zero, as a linear model may: nothing has to be told apart."""

    def __init__(self, num_dense: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))
        # Not nn.Linear: it warns about zero inputs, and logs without dense features are ordinary.
        self.dense_weights = nn.Parameter(torch.zeros(num_dense))

    def forward(self, dense: Tensor, weights: Tensor) -> Tensor:  # -> [samples]
        return self.bias + dense @ self.dense_weights + weights.sum(dim=1)
