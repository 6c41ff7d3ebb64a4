"""What all configurations train on, the model, and how a store, a cache and a planner are timed by themselves.

The log is synthetic: 26 tables of Criteo's sizes, scaled down, Zipf-distributed correlated ids, rows of 64 with
row-wise Adagrad. Dense features and labels are noise, as only time counts.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foresee.data import Batch, criteo_table_sizes, synthetic_rows
from foresee.engine.cache import SlotCache
from foresee.engine.header import make_header
from foresee.engine.kernels import Threads
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.planned_step import Pooling, planned_records
from foresee.engine.tables import layout_for
from foresee.models import DLRM, LogShape
from foresee.models.contract import Embeddings
from foresee.plan.count import Volumes, measure
from foresee.plan.record import Evict, Fetch, Header, Record
from foresee.store.contract import Rows, Store
from foresee.store.layout import Layout, Table
from foresee.testing.traces import MemoryStream

DIM, NUM_DENSE, HIDDEN = 64, 13, 64
OPTIMIZER = RowwiseAdagrad(lr=0.05)
PROBED_ROWS = (1_000, 6_000)
KEPT = 8
"""Rows on their way that a probe keeps, as a run does: memory that is used again at once is quicker than any run's."""
BLOCK_STEPS = 4


@dataclass(frozen=True)
class Scene:
    """A log in memory."""

    stream: MemoryStream
    table_sizes: tuple[int, ...]
    batches: Sequence[Batch]

    @classmethod
    def make(cls, *, batch_size: int, num_steps: int, table_scale: float = 0.02, repeated: int = 1) -> Scene:
        """So many steps; `repeated`: the same ones several times over."""
        sizes, rng = criteo_table_sizes(table_scale), np.random.default_rng(0)
        drawn = list(synthetic_rows(batch_size=batch_size, num_batches=num_steps, table_sizes=sizes))
        batches = [
            Batch(
                step=step,
                dense=rng.standard_normal((batch_size, NUM_DENSE), np.float32),
                labels=(rng.random(batch_size) < 0.3).astype(np.float32),
                rows=ids.reshape(-1),
                bag_offsets=None,
                num_features=len(sizes),
            )
            for step, ids in enumerate(drawn * repeated)
        ]
        return cls(MemoryStream(batches, num_rows=sum(sizes)), sizes, batches)

    @property
    def tables(self) -> list[Table]:
        return [Table(f"C{i}", size) for i, size in enumerate(self.table_sizes)]

    @property
    def layout(self) -> Layout:
        return layout_for(self, DIM, OPTIMIZER, 0, 0.05)

    @property
    def pooling(self) -> Pooling:
        return Pooling.of([False] * len(self.table_sizes))

    @cached_property
    def touched(self) -> NDArray[np.int64]:
        """All rows of the log, ascending."""
        return np.unique(np.concatenate([batch.rows for batch in self.batches]))

    @cached_property
    def shuffled(self) -> NDArray[np.int64]:
        """The same, in any order."""
        return np.random.default_rng(1).permutation(self.touched)

    @property
    def largest_batch(self) -> int:
        return max(len(np.unique(batch.rows)) for batch in self.batches)


def make_model(scene: Scene) -> DLRM:
    torch.manual_seed(0)
    shape = LogShape(num_dense=NUM_DENSE, num_features=len(scene.table_sizes))
    return DLRM(shape, DIM, bottom=(HIDDEN,), top=(HIDDEN,))


class Trainee:
    """The dense half."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()

    def step(self, dense: torch.Tensor, embeddings: Embeddings, labels: torch.Tensor) -> None:
        self.loss(self.model(dense, embeddings), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Taken(NamedTuple):
    """What a step took."""

    seconds: float
    thread_seconds: float
    """Processor time of the training thread, which other work on the machine hardly changes."""


def time_steps(steps: Iterator[None], warmup: int, timed: int) -> Taken:
    """The median over blocks of a few steps, so that what else the machine does counts less."""
    for _ in range(warmup):
        next(steps)
    blocks = []
    for _ in range(timed // BLOCK_STEPS):
        begun, thread_begun = time.perf_counter(), time.thread_time()
        for _ in range(BLOCK_STEPS):
            next(steps)
        spent = time.perf_counter() - begun, time.thread_time() - thread_begun
        blocks.append([seconds / BLOCK_STEPS for seconds in spent])
    return Taken(*(statistics.median(column) for column in zip(*blocks, strict=True)))


@dataclass(frozen=True)
class Part:
    """Some steps of the log, planned before any clock starts."""

    header: Header
    records: list[Record]
    volumes: Volumes


def plan_part(
    scene: Scene, *, planner: str, cache_share: float, first_step: int, num_steps: int, num_workers: int = 1
) -> Part:
    """`cache_share` of the rows that these steps touch, for each worker; at least what their largest batch needs."""
    batches = scene.batches[first_step : first_step + num_steps]
    distinct = [np.unique(batch.rows) for batch in batches]
    touched = len(np.unique(np.concatenate(distinct)))
    cache_rows = max(max(map(len, distinct)), int(cache_share * touched))
    header = replace(
        make_header(
            scene.stream, planner="lookahead" if planner == "owner" else planner, cache_rows=cache_rows,
            first_step=first_step, num_workers=num_workers,
            placement="location_aware" if planner == "lookahead" else "contiguous",
        ),
        num_steps=num_steps,
    )  # fmt: skip
    records = list(planned_records(scene.stream, header))
    return Part(header, records, measure(records, num_workers))


def slope(
    seconds_of: Callable[[int], float], turns: int = 5, probed: tuple[int, int] = PROBED_ROWS
) -> tuple[float, float]:
    """(seconds of nothing, seconds of each row) from timing few and many rows in turn."""
    few, many = probed
    pairs = [(seconds_of(few), seconds_of(many)) for _ in range(turns)]
    low, high = (statistics.median(column) for column in zip(*pairs, strict=True))
    each = max(0.0, (high - low) / (many - few))
    return max(0.0, low - few * each), each


def store_speeds(
    store: Store, shuffled: NDArray[np.int64], turns: int = 5, probed: tuple[int, int] = PROBED_ROWS
) -> tuple[float, float, float]:
    """(request, read of a row, write of a row) in seconds, for rows that come in any order."""
    rng = np.random.default_rng(1)

    def rows(count: int) -> NDArray[np.int64]:
        begin = int(rng.integers(len(shuffled) - count))
        return shuffled[begin : begin + count]

    def read(count: int) -> float:
        chosen, out = rows(count), Rows.empty(count, store.layout)
        kept.append(out)
        begun = time.perf_counter()
        store.read(chosen, out)
        return time.perf_counter() - begun

    def write(count: int) -> float:
        chosen, source = sources[count].pop()
        begun = time.perf_counter()
        store.write(chosen, source)
        return time.perf_counter() - begun

    kept = deque[Rows](maxlen=KEPT)
    asked, read_row = slope(read, turns, probed)
    sources: dict[int, list[tuple[NDArray[np.int64], Rows]]] = {count: [] for count in probed}
    for count in sources:
        for _ in range(turns):
            chosen, source = rows(count), Rows.empty(count, store.layout)
            store.read(chosen, source)
            sources[count].append((chosen, source))
    _, write_row = slope(write, turns, probed)
    return asked, read_row, write_row


def cache_row_seconds(scene: Scene) -> float:
    """A row into a slot, or out of one: the mean of both."""
    layout, capacity = scene.layout, 4 * PROBED_ROWS[-1]
    with Threads(1) as threads:
        cache = SlotCache(layout, OPTIMIZER, capacity_rows=capacity, threads=threads)
        slots = np.random.default_rng(2).permutation(capacity).astype(np.int32)
        kept = deque[Rows](maxlen=2 * KEPT)

        def seconds_of(count: int) -> float:
            chosen, ids, versions = slots[:count], np.arange(count), np.zeros(count, np.int32)
            staging = Rows.empty(count, layout)
            staging.versions[:] = 0
            begun = time.perf_counter()
            cache.fill(Fetch(ids, chosen, versions), staging)
            taken = cache.take(Evict(chosen, ids, versions))
            seconds = (time.perf_counter() - begun) / 2
            kept.extend((staging, taken))
            return seconds

        return slope(seconds_of)[1]
