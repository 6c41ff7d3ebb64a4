"""The peer: TorchRec, the same model and batches, rows sharded row-wise over both trainers' hosts (gloo, no TLS)."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from shaped.log import DIM, LEARNING_RATE, NUM_TRAINERS, Log, make_log, make_model, own_share
from shaped.sides import join, leave, time_steps

PORT = 29501


class Whole(nn.Module):
    """Embeddings and dense half in one module, as TorchRec wants it."""

    def __init__(self, log: Log, names: list[str], width: int) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=size, feature_names=[name])
            for name, size in zip(names, log.table_sizes, strict=True)
        ]
        self.ebc = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
        self.dlrm = make_model(log, width)

    def forward(self, dense: Tensor, ids: Any) -> Tensor:
        pooled = self.ebc(ids).values().view(len(dense), -1, DIM)
        logits: Tensor = self.dlrm(dense, pooled)
        return logits


def train_torchrec(arguments: argparse.Namespace) -> None:
    """A trainer's process; trainer 0 prints what a step took."""
    join(arguments.rank, PORT)
    log = make_log(arguments)
    names = [f"C{i}" for i in range(len(log.table_sizes))]
    whole, sharder = Whole(log, names, arguments.width), EmbeddingBagCollectionSharder()
    apply_optimizer_in_backward(torch.optim.Adagrad, whole.ebc.parameters(), {"lr": LEARNING_RATE})
    plan = construct_module_sharding_plan(
        whole.ebc, {name: row_wise() for name in names}, sharder, local_size=1, world_size=NUM_TRAINERS,
        device_type="cpu",
    )  # fmt: skip
    model = DistributedModelParallel(
        whole, device=torch.device("cpu"), plan=ShardingPlan({"ebc": plan}), sharders=[sharder]
    )
    dense_parameters = [value for name, value in model.named_parameters() if "dlrm" in name]
    optimizer, loss = torch.optim.Adam(dense_parameters, fused=True), nn.BCEWithLogitsLoss()
    offsets = np.concatenate([[0], np.cumsum(log.table_sizes)[:-1]])

    def steps() -> Iterator[None]:
        for batch in log.batches:
            own = own_share(batch, arguments.rank)
            ids = torch.from_numpy((own.rows.reshape(own.num_samples, -1) - offsets).T.copy().reshape(-1))
            lengths = torch.ones(len(ids), dtype=torch.int32)
            lookups = KeyedJaggedTensor(keys=names, values=ids, lengths=lengths)
            loss(model(torch.from_numpy(own.dense), lookups), torch.from_numpy(own.labels)).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    leave(arguments.rank, [time_steps(steps(), 2, arguments.torchrec_steps).seconds])
