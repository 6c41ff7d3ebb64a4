"""What every side of the comparison trains: the same edges, model, negatives and rate, on as many threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

LEARNING_RATE = 0.1
"""Of Adagrad, on rows of nodes and on relations."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """DistMult with relations for each side, softmax over shared negatives."""

    dim: int = 50
    batch_size: int = 1000
    num_chunks: int = 10
    num_negatives: int = 500
    """Of each edge and side; the edges of a chunk share them."""
    threads: int = 1


@dataclass(frozen=True)
class Edges:
    """The train split, in memory."""

    array: Tensor  # [edges, 3]: head, relation, tail
    num_nodes: int
    num_relations: int

    def batches(self, num_steps: int, work: Work, rng: np.random.Generator) -> Iterator[Tensor]:
        """In random order, as every side but ours is given them; an epoch ends with the last whole batch."""
        order = torch.from_numpy(rng.permutation(len(self.array)))
        for step in range(num_steps):
            yield self.array[order[step * work.batch_size : (step + 1) * work.batch_size]]


class Side(Protocol):
    """Trains; made outside the clock."""

    def train(self, num_steps: int) -> float:
        """So many steps of an epoch from fresh embeddings or those of before; the mean loss of an edge and side."""
        ...
