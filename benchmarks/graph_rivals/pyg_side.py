"""PyTorch Geometric: its DistMult scores each edge with its own negatives.

Its `loss` has one negative for each edge; here its `forward` is asked for 500 at either side, broadcast over edges.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.nn.kge import DistMult

from graph_rivals.work import LEARNING_RATE, Edges, Work


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        self._edges, self._work, self._rng = edges, work, np.random.default_rng(0)
        self._model = DistMult(edges.num_nodes, edges.num_relations, work.dim)
        nn.init.ones_(self._model.rel_emb.weight)
        self._optimizer = torch.optim.Adagrad(self._model.parameters(), lr=LEARNING_RATE)

    def train(self, num_steps: int) -> float:
        total = 0.0
        for batch in self._edges.batches(num_steps, self._work, self._rng):
            self._optimizer.zero_grad()
            loss = self._loss(*(column.unsqueeze(1) for column in batch.unbind(1)))
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            total += loss.item() / len(batch) / 2
        return total / num_steps

    def _loss(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        wrong = torch.randint(self._edges.num_nodes, (2, len(heads), self._work.num_negatives))
        positive = self._model(heads, relations, tails)
        sides = self._model(heads, relations, wrong[0]), self._model(wrong[1], relations, tails)
        costs = [nn.functional.softplus(side.logsumexp(1) - positive[:, 0]).sum() for side in sides]
        return costs[0] + costs[1]
