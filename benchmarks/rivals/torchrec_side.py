"""TorchRec on one process: a fused collection of tables in host memory. FBGEMM updates rows inside backward."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

from foresee import ClickLog
from foresee.data import Batch
from rivals.case import EPS, LEARNING_RATE, Case
from rivals.training import Trainer, auc_of, first_rows, local_ids, rows_of_tables, valid_batches


class Side:
    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, cache_share: float) -> None:
        logging.getLogger("torch.fx._symbolic_trace").setLevel(logging.ERROR)  # a remark on TorchRec's own code
        self.log, self.trainer, self.shape = log, trainer, (-1, log.num_features, case.row_width)
        self.names = [feature.name for feature in log.features]
        tables = [
            EmbeddingBagConfig(
                name=it.table, embedding_dim=case.row_width, num_embeddings=it.num_rows, feature_names=[it.name]
            )
            for it in log.features
        ]
        self.bags: Any = FusedEmbeddingBagCollection(
            tables=tables, optimizer_type=torch.optim.Adagrad, optimizer_kwargs={"lr": LEARNING_RATE, "eps": EPS},
            device=torch.device("cpu"),
        )  # fmt: skip
        with torch.no_grad():
            for name, rows in rows_of_tables(log, first_rows(case, log)).items():
                self.bags.embedding_bags[name].weight.copy_(rows)
        self.inputs = [
            (torch.from_numpy(it.dense), self.lookups(it), torch.from_numpy(it.labels)) for it in trainer.batches
        ]

    def lookups(self, batch: Batch) -> Any:
        """Feature by feature, as TorchRec wants them."""
        ids = torch.from_numpy(np.ascontiguousarray(local_ids(self.log, batch).T).reshape(-1))
        return KeyedJaggedTensor(keys=self.names, values=ids, lengths=torch.ones(len(ids), dtype=torch.int32))

    def look_up(self, lookups: Any) -> Tensor:
        pooled: Tensor = self.bags(lookups).values().view(self.shape)
        return pooled

    def steps(self) -> Generator[None, None, None]:
        for dense, lookups, labels in self.inputs:
            self.trainer.step(dense, self.look_up(lookups), labels)
            yield

    def auc(self) -> float:
        model = self.trainer.model
        return auc_of(
            (model(torch.from_numpy(batch.dense), self.look_up(self.lookups(batch))), batch)
            for batch in valid_batches(self.log)
        )
