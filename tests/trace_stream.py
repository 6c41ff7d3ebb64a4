"""Batches from a trace that a test made up: no log, no file, any rows.

In: for each step the rows of each sample, one for each feature. Out: a `BatchStream`, and everything around it that a
`Run` needs. Labels follow from the step and the sample alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from foresee.data.batch import Batch
from foresee.engine.header import make_header
from foresee.engine.optimizers import Adagrad, Optimizer
from foresee.engine.planned_step import Pooling, accesses_of
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.plan import make_planner, plan
from foresee.plan.record import Accesses, Header, Record
from foresee.store.contract import Store
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore

Trace = Sequence[Sequence[Sequence[int]]]  # [steps][samples][features]

OPTIMIZER = Adagrad(lr=0.5)
WIDTH = 2


class TraceStream:
    """A stream of batches, every bag of one row."""

    def __init__(self, trace: Trace, num_rows: int) -> None:
        self._batches = [_batch(step, samples) for step, samples in enumerate(trace)]
        self._num_rows = num_rows

    @property
    def num_steps(self) -> int:
        return len(self._batches)

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def num_features(self) -> int:
        return self._batches[0].num_features

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"".join(batch.rows.tobytes() for batch in self._batches)).hexdigest()

    @property
    def accesses(self) -> list[Accesses]:
        return [accesses_of(batch) for batch in self._batches]

    @property
    def largest_batch(self) -> int:
        """Distinct rows of the largest batch."""
        return max(len(np.unique(batch.rows)) for batch in self._batches)

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        yield from self._batches[first_step:]


def random_stream(
    seed: int, *, num_rows: int = 24, num_steps: int = 24, num_samples: int = 3, num_features: int = 2
) -> TraceStream:
    """Few rows and many steps, so that rows leave and come back all the time; skewed, so that some stay."""
    rng = np.random.default_rng(seed)
    rows = (rng.random((num_steps, num_samples, num_features)) ** 2 * num_rows).astype(int)
    return TraceStream(rows.tolist(), num_rows)


def header_of(
    stream: TraceStream, *, planner: str = "lookahead", cache_rows: int | None = None, first_step: int = 0,
    window_steps: int | None = None, fetch_ahead_steps: int = 1000,
) -> Header:  # fmt: skip
    """A header whose guards are those of the data: fetches may run as far ahead as the rows allow."""
    return make_header(
        stream, planner=planner, cache_rows=cache_rows or stream.largest_batch, first_step=first_step,
        window_steps=window_steps, fetch_ahead_steps=fetch_ahead_steps, remember_versions=True,
    )  # fmt: skip


def records_of(stream: TraceStream, header: Header) -> list[Record]:
    """The whole plan, made before training."""
    trace = stream.accesses[header.first_step :]
    return list(plan(make_planner(header, lambda num_steps: trace[:num_steps]), trace))


def store_for(stream: TraceStream, optimizer: Optimizer = OPTIMIZER) -> MemoryStore:
    return MemoryStore(layout_of(stream.num_rows, optimizer))


def layout_of(num_rows: int, optimizer: Optimizer = OPTIMIZER) -> Layout:
    return Layout(
        tables=(Table("rows", num_rows),), width=WIDTH, state_width=optimizer.state_width(WIDTH),
        optimizer=optimizer.name, init_scale=0.5,
    )  # fmt: skip


def run_of(
    stream: TraceStream, header: Header, store: Store, records: Iterable[Record] | None = None,
    optimizer: Optimizer = OPTIMIZER,
) -> Run:  # fmt: skip
    pooling = Pooling.of([False] * stream.num_features)
    return Run(stream, Tables(store, optimizer), header, pooling, records=records)


def _batch(step: int, samples: Sequence[Sequence[int]]) -> Batch:
    rows = np.array(samples, np.int64)  # [samples, features]
    labels = ((np.arange(len(samples)) + step) % 2).astype(np.float32)
    return Batch(step, np.zeros((len(samples), 0), np.float32), labels, rows.reshape(-1), None, rows.shape[1])
