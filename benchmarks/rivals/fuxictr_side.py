"""FuxiCTR: a DeepFM of its layers, trained by its own `train_step`, on batches that are ready.

Its package brings layers and a base class; models are in its repository, to be copied. So the model is put together
here, as the base class wants it. `train_step` clips gradients by their norm, as no other side does: at the library's
own bound, which this training never reaches. Each id is looked up in two tables: one of embeddings, one of weights of
the first order.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import FeatureEmbedding, InnerProductInteraction, LogisticRegression, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch import Tensor, nn

from foresee import ClickLog
from foresee.data import Batch
from foresee.models import DeepFM as OurDeepFM
from rivals.case import Case
from rivals.training import Trainer, auc_of, first_rows, local_ids, rows_of_tables, valid_batches
from rivals.two_optimisers import TwoOptimisers

LABEL, GRADIENT_NORM_MAX = "label", 10.0


class DeepFM(BaseModel):  # type: ignore[misc]  # the library has no types
    def __init__(self, feature_map: Any, numbers: list[str], ids: list[str], case: Case) -> None:
        super().__init__(feature_map, verbose=0, model_root=".", metrics=["AUC"])
        self.numbers = numbers
        self.embedding = FeatureEmbedding(feature_map, case.dim, required_feature_columns=ids)
        self.first_order = LogisticRegression(feature_map, use_bias=False)
        self.pairs = InnerProductInteraction(len(ids), output="product_sum")
        self.deep = MLP_Block(len(numbers) + len(ids) * case.dim, hidden_units=list(case.top), output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features = self.get_inputs(inputs)
        vectors = self.embedding(features)  # [samples, features, dim]
        numbers = torch.stack([features[name] for name in self.numbers], dim=1)
        deep = self.deep(torch.cat((numbers, vectors.flatten(1)), dim=1))
        logits = self.first_order(features) + self.pairs(vectors) + deep
        return {"y_pred": self.output_activation(logits)}


class Side:
    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, cache_share: float) -> None:
        self.log = log
        self.numbers = [f"number {i}" for i in range(log.num_dense)]
        ids = [feature.name for feature in log.features]
        self.model: Any = DeepFM(feature_map(log, self.numbers), self.numbers, ids, case)
        self.copy_from(case, trainer.model)
        self.model.compile("adam", "binary_crossentropy", lr=0.001)
        tables = [layers[name].weight for layers in self.tables() for name in ids]
        self.model.optimizer = TwoOptimisers(self.model, tables)
        self.model._max_gradient_norm = GRADIENT_NORM_MAX  # what its `fit` sets before the first step
        self.inputs = [self.input_of(it) for it in trainer.batches]

    def tables(self) -> tuple[Any, Any]:
        """By feature: the embeddings, and the weights of the first order."""
        first_order = self.model.first_order.embedding_layer
        return self.model.embedding.embedding_layer.embedding_layers, first_order.embedding_layer.embedding_layers

    @torch.no_grad()
    def copy_from(self, case: Case, ours: nn.Module) -> None:
        """Start from the values all sides start from."""
        assert isinstance(ours, OurDeepFM)
        rows = rows_of_tables(self.log, first_rows(case, self.log))
        vectors, weights = self.tables()
        for feature in self.log.features:
            vectors[feature.name].weight.copy_(rows[feature.table][:, : case.dim])
            weights[feature.name].weight.copy_(rows[feature.table][:, case.dim :])
        for name in self.numbers:
            nn.init.zeros_(weights[name].weight)
        self.model.deep.mlp.load_state_dict(ours.deep.state_dict())

    def input_of(self, batch: Batch) -> dict[str, Tensor]:
        dense, ids = torch.from_numpy(batch.dense), torch.from_numpy(local_ids(self.log, batch))
        inputs = {name: dense[:, i].contiguous() for i, name in enumerate(self.numbers)}
        inputs |= {feature.name: ids[:, i].contiguous() for i, feature in enumerate(self.log.features)}
        return {**inputs, LABEL: torch.from_numpy(batch.labels)}

    def steps(self) -> Generator[None, None, None]:
        for inputs in self.inputs:
            self.model.train_step(inputs)
            yield

    def auc(self) -> float:
        def logits(batch: Batch) -> Tensor:
            scores: Tensor = self.model(self.input_of(batch))["y_pred"]
            return scores.squeeze(1).logit()

        return auc_of((logits(batch), batch) for batch in valid_batches(self.log))


def feature_map(log: ClickLog, numbers: list[str]) -> Any:
    made = FeatureMap("peers", ".")
    made.labels = [LABEL]
    made.features.update({name: {"source": "", "type": "numeric"} for name in numbers})
    made.features.update(
        {it.name: {"source": "", "type": "categorical", "vocab_size": it.num_rows} for it in log.features}
    )
    made.num_fields = made.get_num_fields()
    return made
