"""A model that fails in one worker only, for the tests of the launcher."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn


class FailsInWorkerOne(nn.Module):
    """Sound when it is made; in worker 1 its third forward raises."""

    def __init__(self, log: Any, dim: int) -> None:
        super().__init__()
        self.dim, self._calls = dim, 0
        self.weights = nn.Linear(dim, 1)

    def forward(self, dense: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        if os.environ.get("RANK") == "1" and self._calls == 3:
            raise ValueError("the third forward of worker 1 fails, as it should")
        scores: torch.Tensor = self.weights(embeddings.sum(dim=1))
        return scores.squeeze(1)
