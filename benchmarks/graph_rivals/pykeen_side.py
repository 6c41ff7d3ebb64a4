"""PyKEEN: its DistMult in its training loop with drawn negatives. It has none that edges share, so each has its own."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from pykeen.losses import InfoNCELoss
from pykeen.models import DistMult
from pykeen.training import SLCWATrainingLoop
from pykeen.triples import CoreTriplesFactory

from graph_rivals.work import LEARNING_RATE, Edges, Work

logging.getLogger("pykeen").setLevel(logging.ERROR)


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        self._edges, self._work, self._rng = edges, work, np.random.default_rng(0)
        self._model = DistMult(
            triples_factory=self._some(1), embedding_dim=work.dim, loss=InfoNCELoss(margin=0.0), regularizer=None,
            random_seed=0,
        )  # fmt: skip
        self._optimizer = torch.optim.Adagrad(self._model.parameters(), lr=LEARNING_RATE)

    def train(self, num_steps: int) -> float:
        triples = self._some(num_steps)
        loop = SLCWATrainingLoop(
            model=self._model, triples_factory=triples, optimizer=self._optimizer,
            negative_sampler_kwargs={"num_negs_per_pos": 2 * self._work.num_negatives},
        )  # fmt: skip
        losses = loop.train(triples, num_epochs=1, batch_size=self._work.batch_size, use_tqdm=False)
        return float(np.mean(losses or [np.nan]))

    def _some(self, num_steps: int) -> CoreTriplesFactory:
        """The edges of so many steps, as PyKEEN holds them."""
        found = torch.cat(list(self._edges.batches(num_steps, self._work, self._rng)))
        return CoreTriplesFactory(found, self._edges.num_nodes, self._edges.num_relations)
