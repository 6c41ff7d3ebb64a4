"""The data of `before.py` and `after.py` for TorchRec: its configurations, and batches with KeyedJaggedTensors.

Clicks are made up here; in your project this is what you have already. Films are looked up twice, as what was shown and
as the history of what was seen before, and histories are of any length, none included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor, PoolingType

NUM_DENSE, BATCH_SIZE, NUM_STEPS = 2, 256, 60
CONFIGS = [
    EmbeddingBagConfig(name="users", embedding_dim=16, num_embeddings=5_000, feature_names=["user"]),
    EmbeddingBagConfig(
        name="films", embedding_dim=16, num_embeddings=2_000, feature_names=["shown", "seen"], pooling=PoolingType.MEAN
    ),
]


@dataclass
class Batch:
    """As torchrec.datasets.utils.Batch has it."""

    dense_features: Tensor
    sparse_features: KeyedJaggedTensor
    labels: Tensor


def batches() -> Iterator[Batch]:
    """So many batches, the same every time."""
    draw = torch.Generator().manual_seed(7)
    taste = torch.randn(2_000, generator=draw)
    for _ in range(NUM_STEPS):
        users = (torch.rand(BATCH_SIZE, generator=draw) ** 3 * 5_000).long()
        shown = (torch.rand(BATCH_SIZE, generator=draw) ** 3 * 2_000).long()
        lengths = torch.randint(0, 6, (BATCH_SIZE,), generator=draw)
        seen = (torch.rand(int(lengths.sum()), generator=draw) ** 3 * 2_000).long()
        one_each = torch.ones(BATCH_SIZE, dtype=torch.int64)
        yield Batch(
            torch.randn(BATCH_SIZE, NUM_DENSE, generator=draw),
            KeyedJaggedTensor(
                keys=["user", "shown", "seen"],
                values=torch.cat([users, shown, seen]),
                lengths=torch.cat([one_each, one_each, lengths]),
            ),
            (torch.rand(BATCH_SIZE, generator=draw) < torch.sigmoid(taste[shown])).float(),
        )
