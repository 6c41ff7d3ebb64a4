"""What all sides train on, and the dense half they share.

The log is the sample of Criteo's display log in $FORESEE_DATA or ../shared/data: 8,000 impressions, 26 columns,
shuffled anew in every epoch; what is critical follows from any two consecutive batches. Without it, or with `--log
synthetic`, ids are drawn from tables of 3 % of Criteo's sizes; there, twice as many rows are critical.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foresee.data import Batch, criteo_table_sizes, synthetic_rows
from foresee.engine.exchange.dense import Sums, shared
from foresee.models import DLRM, LogShape
from foresee.models.contract import Embeddings

DIM = 64
NUM_DENSE = 13
NUM_TRAINERS = 2
CRITEO = (
    Path(os.environ.get("FORESEE_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
    / "criteo"
    / "criteo_kaggle_union.tsv"
)
SYNTHETIC_SCALE = 0.03
LEARNING_RATE = 0.05


@dataclass
class Log:
    """What all sides train on."""

    batches: list[Batch]
    table_sizes: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.table_sizes)


def table_sizes(name: str) -> tuple[int, ...]:
    return criteo_table_sizes(SYNTHETIC_SCALE) if name == "synthetic" else _criteo()[1]


def make_log(arguments: argparse.Namespace) -> Log:
    """Enough global batches for all turns; dense features and labels are noise, as only time counts."""
    size, rng = arguments.batch_size * NUM_TRAINERS, np.random.default_rng(0)
    sizes = table_sizes(arguments.log)
    steps = arguments.turns * (arguments.warmup_steps + arguments.timed_steps + 2 * arguments.nocache_steps)
    ids = _synthetic_batches(size, sizes) if arguments.log == "synthetic" else _criteo_batches(size)
    batches = [
        Batch(
            step=step,
            dense=rng.standard_normal((size, NUM_DENSE), np.float32),
            labels=(rng.random(size) < 0.3).astype(np.float32),
            rows=next(ids).reshape(-1),
            bag_offsets=None,
            num_features=len(sizes),
        )
        for step in range(steps + arguments.tail_steps)
    ]
    return Log(batches, sizes)


def _synthetic_batches(size: int, sizes: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
    return synthetic_rows(batch_size=size, num_batches=1 << 20, table_sizes=sizes)


def _criteo_batches(size: int) -> Iterator[NDArray[np.int64]]:
    """Epoch after epoch, each in a new order; what does not fill a batch is left out."""
    ids, rng = _criteo()[0], np.random.default_rng(1)
    while True:
        order = rng.permutation(len(ids))
        for begin in range(0, len(ids) - size + 1, size):
            yield ids[order[begin : begin + size]]


def _criteo() -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Row ids [samples, 26], and the distinct values of each column; an empty cell is a value like any other."""
    names = [f"c{number}" for number in range(40)]
    display = pa.csv.read_csv(
        CRITEO,
        read_options=pa.csv.ReadOptions(column_names=names),
        parse_options=pa.csv.ParseOptions(delimiter="\t"),
        convert_options=pa.csv.ConvertOptions(column_types={name: pa.string() for name in names}),
    )
    columns = [c.combine_chunks().dictionary_encode(null_encoding="encode") for c in display.columns[14:]]
    sizes = tuple(len(column.dictionary) for column in columns)
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return np.stack([np.asarray(column.indices, np.int64) for column in columns], axis=1) + offsets, sizes


def own_share(batch: Batch, rank: int) -> Batch:
    size = batch.num_samples // NUM_TRAINERS
    return batch.part(np.arange(rank * size, (rank + 1) * size, dtype=np.int32))


def make_model(log: Log, width: int) -> DLRM:
    torch.manual_seed(0)
    shape = LogShape(num_dense=NUM_DENSE, num_features=len(log.table_sizes))
    return DLRM(shape, DIM, bottom=(width, width // 2), top=(width, width // 2))


class Trainee:
    """The dense side, the same for all; gradients are averaged over the link."""

    def __init__(self, log: Log, width: int) -> None:
        model = make_model(log, width)
        self.sums = Sums()
        self.model = shared(model, self.sums)
        self.optimizer = torch.optim.Adam(model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()

    def step(self, dense: Tensor, embeddings: Embeddings, labels: Tensor) -> None:
        self.loss(self.model(dense, embeddings), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
