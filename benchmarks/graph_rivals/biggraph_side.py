"""PyTorch-BigGraph: its model and its `Trainer`, edges of a batch in chunks of which each has its negatives.

Its way to chunks smaller than the uniform negatives is to have the chunk's own ends among them: 100 of the batch and
400 uniform ones are 500 for each edge, with fewer rows to gather than ours. Rows learn by its row-wise Adagrad, which
has one number of state for each. Hogwild processes are for several cores; here all sides have one thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torchbiggraph.config import EntitySchema, RelationSchema
from torchbiggraph.edgelist import EdgeList
from torchbiggraph.entitylist import EntityList
from torchbiggraph.model import DiagonalDynamicOperator, DotComparator, MultiRelationEmbedder
from torchbiggraph.row_adagrad import RowAdagrad
from torchbiggraph.train import Trainer
from torchbiggraph.types import Side as Which

from graph_rivals.work import LEARNING_RATE, Edges, Work


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        self._edges, self._work, self._rng = edges, work, np.random.default_rng(0)
        per_chunk = work.batch_size // work.num_chunks
        relation = RelationSchema(name="all", lhs="node", rhs="node", operator="diagonal")
        self._model = MultiRelationEmbedder(
            work.dim, [relation], {"node": EntitySchema(num_partitions=1)}, num_batch_negs=per_chunk,
            num_uniform_negs=work.num_negatives - per_chunk, disable_lhs_negs=False, disable_rhs_negs=False,
            lhs_operators=[DiagonalDynamicOperator(work.dim, edges.num_relations)],
            rhs_operators=[DiagonalDynamicOperator(work.dim, edges.num_relations)],
            comparator=DotComparator(), num_dynamic_rels=edges.num_relations,
        )  # fmt: skip
        weights = nn.Parameter(nn.init.xavier_uniform_(torch.empty(edges.num_nodes, work.dim)))
        dense = torch.optim.Adagrad(self._model.parameters(), lr=LEARNING_RATE)
        for which in (Which.LHS, Which.RHS):
            self._model.set_embeddings("node", weights, which)
        self._trainer = Trainer(dense, "softmax", 0.1, [relation])
        self._trainer.entity_optimizers["node", 0] = RowAdagrad([weights], lr=LEARNING_RATE)

    def train(self, num_steps: int) -> float:
        total = 0.0
        for batch in self._edges.batches(num_steps, self._work, self._rng):
            heads, relations, tails = (column.contiguous() for column in batch.unbind(1))
            edges = EdgeList(EntityList.from_tensor(heads), EntityList.from_tensor(tails), relations)
            total += self._trainer.process_one_batch(self._model, edges).metrics["loss"] / len(batch) / 2
        return total / num_steps
