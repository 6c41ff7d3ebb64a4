"""Foresee, with the loop of its README: tables in memory, planned while training."""

from __future__ import annotations

from collections.abc import Generator

from foresee import Adagrad, ClickLog, Tables
from foresee.engine.header import make_header
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.run.evaluation import evaluate
from foresee.testing.traces import MemoryStream
from rivals.case import EPS, LEARNING_RATE, THREADS, Case
from rivals.training import Trainer, known


class Side:
    def __init__(self, case: Case, log: ClickLog, trainer: Trainer, cache_share: float) -> None:
        self.log, self.trainer = log, trainer
        self.tables = Tables.in_memory(log, dim=case.row_width, optimizer=Adagrad(lr=LEARNING_RATE, eps=EPS))
        stream = MemoryStream(trainer.batches, num_rows=log.num_rows)
        header = make_header(stream, planner="lookahead", cache_rows=max(1, int(log.num_rows * cache_share)))
        self.run = Run(stream, self.tables, header, Pooling.of(log.mean_features), num_threads=THREADS)

    def steps(self) -> Generator[None, None, None]:
        for step in self.run:
            self.trainer.step(step.dense, step.embeddings, step.labels)
            step.update()
            yield

    def auc(self) -> float:
        return known(evaluate(self.trainer.model, self.tables.store, self.log).auc)
