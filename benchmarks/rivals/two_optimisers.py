"""Adagrad for rows and Adam for the rest, as one optimiser: libraries that hold a whole model ask for one.

Their tables have dense gradients. Adagrad leaves a row with a gradient of zero as it is, so the outcome is that of
sparse gradients, at the cost of a pass over all tables in each step. torch's fused kernel is the fastest it has for it.
"""

from __future__ import annotations

import torch
from torch import nn

from rivals.case import EPS, LEARNING_RATE
from rivals.training import adam_of


class TwoOptimisers:
    def __init__(self, model: nn.Module, tables: list[nn.Parameter]) -> None:
        held = {id(table) for table in tables}
        self.adagrad = torch.optim.Adagrad(tables, lr=LEARNING_RATE, eps=EPS, fused=True)
        self.adam = adam_of([it for it in model.parameters() if id(it) not in held])

    def zero_grad(self) -> None:
        self.adagrad.zero_grad()
        self.adam.zero_grad()

    def step(self) -> None:
        self.adagrad.step()
        self.adam.step()
