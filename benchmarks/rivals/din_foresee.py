"""Foresee's DIN, with the loop of docs/sequences.md: films in memory, planned while training."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from torch import nn

from foresee import Adagrad, Batches, Tables, steps
from rivals.case import EPS, LEARNING_RATE, THREADS
from rivals.training import adam_of
from rivals.watched import Case, Films, Samples, auc_of, bags_of, first_values

READ_AHEAD_STEPS = 8
"""Little, so that the planner works in the turns that are timed, not in the one before them."""


class Side:
    def __init__(self, case: Case, films: Films) -> None:
        self.case, self.films, self.bags = case, films, bags_of(case, films)
        _, self.model = first_values(case, films)
        self.adam, self.loss = adam_of(list(self.model.parameters())), nn.BCEWithLogitsLoss()
        optimizer = Adagrad(lr=LEARNING_RATE, eps=EPS)
        self.tables = Tables.in_memory(self.bags, dim=case.dim, optimizer=optimizer)
        self.items = [(None, ids_of(it), it.labels) for it in case.batches(films)]

    def steps(self) -> Generator[None, None, None]:
        source = Batches(self.bags, self.items, read_ahead_steps=READ_AHEAD_STEPS)
        for step in steps(source, self.tables, cache_rows=self.films.num_films, num_threads=THREADS):
            self.loss(self.logits(self.bags.keyed(step)), step.labels).backward()
            self.adam.step()
            self.adam.zero_grad()
            step.update()
            yield

    def logits(self, found: Any) -> Any:
        history = found["history"]
        return self.model(found["candidate"].values(), history.values(), history.lengths())

    def auc(self) -> float:
        return auc_of(
            (self.logits(self.bags.look_up_keyed(self.tables, ids_of(samples))), samples)
            for samples in self.case.held_out(self.films)
        )


def ids_of(samples: Samples) -> dict[str, Any]:
    return {
        "candidate": samples.candidate,
        "history": (samples.history, np.cumsum(samples.lengths) - samples.lengths),
    }
