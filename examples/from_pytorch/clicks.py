"""The data of `before.py` and `after.py`: clicks on films, made up here. In your project this is what you have already.

Ids come as nn.EmbeddingBag takes them: for each feature a tensor of ids and a tensor of where each sample's bag starts.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

TABLES = {"user": 5_000, "film": 2_000, "genre": 20}
DIM, NUM_DENSE, BATCH_SIZE = 16, 2, 256
NUM_TRAIN, NUM_VALID = 20_000, 4_000

Bags = dict[str, tuple[Tensor, Tensor]]


def batches(split: str, epoch: int = 0) -> Iterator[tuple[Tensor, Bags, Tensor]]:
    """(dense features, bags of ids, labels); train batches are in another order each epoch."""
    dense, users, films, genres, labels = _samples()
    order = torch.arange(NUM_TRAIN, NUM_TRAIN + NUM_VALID)
    if split == "train":
        order = torch.randperm(NUM_TRAIN, generator=torch.Generator().manual_seed(epoch))
    for first in range(0, len(order), BATCH_SIZE):
        picked = order[first : first + BATCH_SIZE]
        one_each = torch.arange(len(picked))
        ids = {
            "user": (users[picked], one_each),
            "film": (films[picked], one_each),
            "genre": (genres[picked].reshape(-1), 2 * one_each),  # two genres a film
        }
        yield dense[picked], ids, labels[picked]


def _samples() -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The whole log: who saw what, and who clicked."""
    draw = torch.Generator().manual_seed(7)
    num = NUM_TRAIN + NUM_VALID
    dense = torch.randn(num, NUM_DENSE, generator=draw)
    users = (torch.rand(num, generator=draw) ** 3 * TABLES["user"]).long()  # few users have most of the clicks
    films = (torch.rand(num, generator=draw) ** 3 * TABLES["film"]).long()
    genres = torch.stack([films % TABLES["genre"], films * 7 % TABLES["genre"]], dim=1)
    taste = {name: torch.randn(rows, generator=draw) for name, rows in TABLES.items()}
    logits = taste["user"][users] + taste["film"][films] + taste["genre"][genres].mean(dim=1) + dense[:, 0]
    return dense, users, films, genres, (torch.rand(num, generator=draw) < torch.sigmoid(logits)).float()


def auc(scores: Tensor, labels: Tensor) -> float:
    """How often a click has a higher score than a non-click."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    clicks = labels.sum()
    return float((ranks[labels == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks)))
