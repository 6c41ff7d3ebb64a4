"""FuxiCTR's DIN, put together of its layers as its model zoo has it, trained by its own `train_step`.

Its package brings layers and a base class; models are in its repository, to be copied. Gradients of tables are dense.
`train_step` clips gradients by their norm: at the library's own bound, which this training does not reach.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from fuxictr.features import FeatureMap
from fuxictr.pytorch.layers import DIN_Attention, FeatureEmbeddingDict, MLP_Block
from fuxictr.pytorch.models import BaseModel
from torch import Tensor

from rivals.two_optimisers import TwoOptimisers
from rivals.watched import Case, Films, Samples, auc_of, first_values

LABEL, GRADIENT_NORM_MAX = "label", 10.0


class DIN(BaseModel):  # type: ignore[misc]  # the library has no types
    def __init__(self, feature_map: Any, case: Case) -> None:
        super().__init__(feature_map, verbose=0, model_root=".", metrics=["AUC"])
        self.embedding = FeatureEmbeddingDict(feature_map, case.dim)
        self.attention = DIN_Attention(case.dim, attention_units=list(case.attention), hidden_activations="ReLU")
        self.dnn = MLP_Block(2 * case.dim, hidden_units=list(case.deep), output_dim=1)

    def forward(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        features = self.get_inputs(inputs)
        vectors = self.embedding(features)
        mask = features["history"].long() != 0  # padding_idx is 0
        interest = self.attention(vectors["candidate"], vectors["history"], mask)
        logits = self.dnn(torch.cat([vectors["candidate"], interest], dim=-1))
        return {"y_pred": self.output_activation(logits)}


class Side:
    def __init__(self, case: Case, films: Films) -> None:
        self.case, self.films = case, films
        self.model: Any = DIN(feature_map(case, films), case)
        self.copy_first_values()
        self.model.compile("adam", "binary_crossentropy", lr=0.001)
        self.model.optimizer = TwoOptimisers(self.model, [self.table])
        self.model._max_gradient_norm = GRADIENT_NORM_MAX  # what its `fit` sets before the first step
        self.inputs = [self.input_of(it) for it in case.batches(films)]

    @property
    def table(self) -> Any:
        return self.model.embedding.embedding_layers["candidate"].weight

    @torch.no_grad()
    def copy_first_values(self) -> None:
        rows, ours = first_values(self.case, self.films)
        self.table[1:] = rows[1:]
        layers = [it for it in self.model.attention.attention_layer.mlp if isinstance(it, torch.nn.Linear)]
        own = [ours.first, *(it for it in ours.attention if isinstance(it, torch.nn.Linear))]  # type: ignore[union-attr]
        for theirs, layer in zip(layers, own, strict=True):
            theirs.load_state_dict(layer.state_dict())
        self.model.dnn.mlp.load_state_dict(ours.deep.state_dict())

    def input_of(self, samples: Samples) -> dict[str, Tensor]:
        return {
            "candidate": torch.from_numpy(samples.candidate),
            "history": torch.from_numpy(samples.padded(self.case.length)),
            LABEL: torch.from_numpy(samples.labels),
        }

    def steps(self) -> Generator[None, None, None]:
        for inputs in self.inputs:
            self.model.train_step(inputs)
            yield

    def auc(self) -> float:
        def logits(samples: Samples) -> Tensor:
            scores: Tensor = self.model(self.input_of(samples))["y_pred"]
            return scores.squeeze(1).logit()

        return auc_of((logits(samples), samples) for samples in self.case.held_out(self.films))


def feature_map(case: Case, films: Films) -> Any:
    made = FeatureMap("sequences", ".")
    made.labels = [LABEL]
    table = {"source": "", "vocab_size": films.num_films, "padding_idx": 0}
    made.features["candidate"] = {**table, "type": "categorical"}
    made.features["history"] = {**table, "type": "sequence", "max_len": case.length, "share_embedding": "candidate"}
    made.num_fields = made.get_num_fields()
    return made
