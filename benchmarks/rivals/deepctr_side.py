"""DeepCTR-Torch: its own DeepFM, trained as its `fit` does, on batches that are ready.

Its `fit` cannot be stopped between turns and collates samples one by one, so the loop is written out here; penalties
are off, as on all sides. It wants ids and numbers side by side as floats, and looks each id up in two tables: one of
embeddings, one of weights of the first order.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresee import ClickLog
from foresee.data import Batch
from foresee.models import DeepFM as OurDeepFM
from rivals.case import Case
from rivals.training import Trainer, auc_of, first_rows, local_ids, rows_of_tables, valid_batches
from rivals.two_optimisers import TwoOptimisers

# Imported, the library asks the package index on a thread whether it is the newest: a benchmark must not reach for the
# network. It gets an answer that says nothing.
silent: Any = SimpleNamespace(get=lambda _: SimpleNamespace(status_code=None), codes=SimpleNamespace(ok=200))
sys.modules["requests"] = silent

from deepctr_torch.inputs import DenseFeat, SparseFeat  # noqa: E402
from deepctr_torch.models import DeepFM  # noqa: E402


class Side:
    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, cache_share: float) -> None:
        self.log = log
        sparse = [SparseFeat(it.name, it.num_rows, embedding_dim=case.dim) for it in log.features]
        columns = [*sparse, *(DenseFeat(f"number {i}") for i in range(log.num_dense))]
        self.model: Any = DeepFM(columns, columns, dnn_hidden_units=case.top, l2_reg_linear=0, l2_reg_embedding=0)
        self.copy_from(case, trainer.model)
        tables = [*self.model.embedding_dict.parameters(), *self.model.linear_model.embedding_dict.parameters()]
        self.optimiser = TwoOptimisers(self.model, tables)
        self.inputs = [(self.input_of(it), torch.from_numpy(it.labels)) for it in trainer.batches]

    @torch.no_grad()
    def copy_from(self, case: Case, ours: nn.Module) -> None:
        """Start from the values all sides start from."""
        assert isinstance(ours, OurDeepFM)
        tables = rows_of_tables(self.log, first_rows(case, self.log))
        for feature in self.log.features:
            self.model.embedding_dict[feature.name].weight.copy_(tables[feature.table][:, : case.dim])
            self.model.linear_model.embedding_dict[feature.name].weight.copy_(tables[feature.table][:, case.dim :])
        *hidden, last = [it for it in ours.deep if isinstance(it, nn.Linear)]
        for theirs, layer in zip(self.model.dnn.linears, hidden, strict=True):
            # Embeddings first, then numbers: we have it the other way round.
            turned = layer is hidden[0]
            theirs.weight.copy_(layer.weight.roll(-self.log.num_dense, dims=1) if turned else layer.weight)
            theirs.bias.copy_(layer.bias)
        self.model.dnn_linear.weight.copy_(last.weight)
        self.model.out.bias.copy_(last.bias)
        nn.init.zeros_(self.model.linear_model.weight)

    def input_of(self, batch: Batch) -> Tensor:
        return torch.from_numpy(np.hstack((local_ids(self.log, batch).astype(np.float32), batch.dense)))

    def steps(self) -> Generator[None, None, None]:
        loss = nn.BCELoss()
        for inputs, labels in self.inputs:
            self.optimiser.zero_grad()
            loss(self.model(inputs).squeeze(1), labels).backward()
            self.optimiser.step()
            yield

    def auc(self) -> float:
        return auc_of((self.model(self.input_of(batch)).squeeze(1).logit(), batch) for batch in valid_batches(self.log))
