"""What all sides share: batches, the values they start from, the dense half with its optimiser, and the score.

A side is a class named `Side` with `steps()`, which trains one batch each time it is asked for the next, and `auc()`,
which scores the valid split. A side may use its library's own model; it copies the values of the one here first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foresee import SGD, ClickLog
from foresee.data import Batch
from foresee.engine.tables import layout_for
from foresee.models import DLRM, DeepFM
from foresee.run.metrics import MetricsAccumulator
from foresee.store.kernels import initial_values
from rivals.case import Case


class Runs(Protocol):
    """A side."""

    def steps(self) -> Generator[None, None, None]: ...

    def auc(self) -> float: ...


class Trainer:
    """The dense half, the same for all, and the batches."""

    def __init__(self, case: Case, log: ClickLog) -> None:
        torch.manual_seed(0)
        self.model = deepfm(case, log) if case.model == "deepfm" else dlrm(case, log)
        self.adam = adam_of([it for it in self.model.parameters() if it.requires_grad])
        self.loss = nn.BCEWithLogitsLoss()
        stream = log.batches(batch_size=case.batch_size, epochs=case.epochs)
        self.batches = list(islice(stream.batches(), case.num_steps))

    def step(self, dense: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        """Forward and backward; the dense part is updated."""
        self.loss(self.model(dense, embeddings), labels).backward()
        self.adam.step()
        self.adam.zero_grad()


def dlrm(case: Case, log: ClickLog) -> nn.Module:
    return DLRM(log, case.dim, bottom=case.bottom, top=case.top)


def deepfm(case: Case, log: ClickLog) -> DeepFM:
    """The DeepFM that every library can make: pairs of categorical features only, and one bias.

    Ours has vectors for the dense features as well, so that they take part in pairs, and a bias in the first order
    besides that of the deep part. Both stay as zero as they are set here: then all sides train the same function.
    """
    model = DeepFM(log, case.dim, deep=case.top)
    for parameter in (model.dense_vectors, model.first_order.bias):
        nn.init.zeros_(parameter)
        parameter.requires_grad_(False)
    return model


def adam_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, fused=True)


def first_rows(case: Case, log: ClickLog) -> Tensor:
    """What the rows of all sides start from."""
    layout = layout_for(log, case.row_width, SGD(lr=0.0), 0, 0.05)
    return torch.from_numpy(initial_values(layout, np.arange(layout.num_rows)))


def rows_of_tables(log: ClickLog, rows: Tensor) -> dict[str, Tensor]:
    """The same rows, table by table."""
    starts = log.table_offsets
    return {table.name: rows[starts[table.name] : starts[table.name] + table.num_rows] for table in log.tables}


def local_ids(log: ClickLog, batch: Batch) -> NDArray[np.int64]:  # -> [samples, features]
    """Counted from zero in each table, as libraries with a module for each table want them."""
    starts = np.array([log.table_offsets[feature.table] for feature in log.features])
    local: NDArray[np.int64] = batch.rows.reshape(batch.num_samples, -1) - starts
    return local


def valid_batches(log: ClickLog) -> Iterator[Batch]:
    return log.batches(batch_size=4096, split="valid", shuffle=False, drop_last=False).batches()


def auc_of(scored: Iterator[tuple[Tensor, Batch]]) -> float:
    """Of logits and the batches they are for."""
    metrics = MetricsAccumulator()
    with torch.no_grad():
        for logits, batch in scored:
            metrics.add(logits.numpy(), batch.labels)
    return known(metrics.result().auc)


def known(auc: float | None) -> float:
    assert auc is not None, "the valid split has clicks and others"
    return auc
