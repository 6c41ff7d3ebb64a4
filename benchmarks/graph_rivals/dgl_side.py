"""DGL: its `NodeEmbedding` with `SparseAdagrad`, all rows of a step gathered by one lookup; the decoder is a person's.

The scores are products of a chunk's edges with its negatives, as DGL-KE has them, by torch.
"""

from __future__ import annotations

from pathlib import Path

import dgl
import numpy as np
import torch
from torch import Tensor, nn

from graph_rivals.work import LEARNING_RATE, Edges, Work


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        self._edges, self._work, self._rng = edges, work, np.random.default_rng(0)
        self._nodes = dgl.nn.NodeEmbedding(edges.num_nodes, work.dim, "nodes", init_func=_glorot)
        self._relations = nn.ParameterList([torch.ones(edges.num_relations, work.dim) for _ in range(2)])
        self._rows = dgl.optim.SparseAdagrad([self._nodes], lr=LEARNING_RATE)
        self._dense = torch.optim.Adagrad(self._relations, lr=LEARNING_RATE)

    def train(self, num_steps: int) -> float:
        total = 0.0
        for batch in self._edges.batches(num_steps, self._work, self._rng):
            loss = self._loss(batch)
            self._rows.zero_grad()  # or the step below takes the gradients of all steps before, too
            loss.backward()  # type: ignore[no-untyped-call]
            self._rows.step()
            self._dense.step()
            self._dense.zero_grad()
            total += loss.item() / len(batch) / 2
        return total / num_steps

    def _loss(self, batch: Tensor) -> Tensor:
        work, num = self._work, len(batch)
        heads, relations, tails = batch.unbind(1)
        wrong = torch.randint(self._edges.num_nodes, (2 * work.num_chunks * work.num_negatives,))
        rows = self._nodes(torch.cat([heads, tails, wrong]))
        heads, tails, wrong_tails, wrong_heads = rows.split([num, num, len(wrong) // 2, len(wrong) // 2])
        return self._side(heads, relations, tails, wrong_tails, 0) + self._side(tails, relations, heads, wrong_heads, 1)

    def _side(self, known: Tensor, relations: Tensor, wanted: Tensor, wrong: Tensor, side: int) -> Tensor:
        query = known * nn.functional.embedding(relations, self._relations[side])
        positive = (query * wanted).sum(-1)
        chunks = self._work.num_chunks
        negative = query.view(chunks, -1, self._work.dim) @ wrong.view(chunks, -1, self._work.dim).transpose(1, 2)
        scores = torch.cat([positive.view(-1, 1), negative.view(len(positive), -1)], 1)
        return nn.functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long), reduction="sum")


def _glorot(values: Tensor) -> Tensor:
    return nn.init.xavier_uniform_(values)
