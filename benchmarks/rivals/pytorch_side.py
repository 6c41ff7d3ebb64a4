"""Plain PyTorch: all tables in one nn.EmbeddingBag with sparse gradients, and torch's Adagrad."""

from __future__ import annotations

import warnings
from collections.abc import Generator

import torch
from torch import Tensor, nn

from foresee import ClickLog
from rivals.case import EPS, LEARNING_RATE, Case
from rivals.training import Trainer, auc_of, first_rows, valid_batches


class Side:
    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, cache_share: float) -> None:
        warnings.filterwarnings("ignore", message="Sparse invariant checks")  # of torch's own Adagrad
        self.log, self.trainer, self.shape = log, trainer, (-1, log.num_features, case.row_width)
        self.bag = nn.EmbeddingBag.from_pretrained(first_rows(case, log), freeze=False, mode="sum", sparse=True)
        self.adagrad = torch.optim.Adagrad(self.bag.parameters(), lr=LEARNING_RATE, eps=EPS)
        self.inputs = [tuple(map(torch.from_numpy, (it.dense, it.rows, it.labels))) for it in trainer.batches]

    def look_up(self, rows: Tensor) -> Tensor:
        pooled: Tensor = self.bag(rows.view(-1, 1)).view(self.shape)
        return pooled

    def steps(self) -> Generator[None, None, None]:
        for dense, rows, labels in self.inputs:
            self.trainer.step(dense, self.look_up(rows), labels)
            self.adagrad.step()
            self.adagrad.zero_grad()
            yield

    def auc(self) -> float:
        model = self.trainer.model
        return auc_of(
            (model(torch.from_numpy(batch.dense), self.look_up(torch.from_numpy(batch.rows))), batch)
            for batch in valid_batches(self.log)
        )
