"""Does a run over a graph end with the bytes of one without plan, cache or disk? Trains both and compares.

In: a configuration and a number of steps. Out: a `Verdict`: bytes compared, bytes that differ, and the first place. The
plain run has every row in memory and asks for each step's rows anew; the other has the configuration's store, in a
folder of its own, its cache, planner and unit. Both train the same batches: order, negatives and neighbours are drawn
from seeds. Values, optimiser state and version of every row are compared, and every weight of the model. If bytes
differ, the plain run is repeated: a model whose own arithmetic differs from run to run says nothing about the plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from foresee.engine.header import make_header
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.graph.task import forward, objective_of
from foresee.io.units import counted
from foresee.plan.record import Counters, Header
from foresee.run.callbacks import MoveRate
from foresee.run.dense_state import DenseHalf
from foresee.run.group import Alone
from foresee.run.loop import train_steps
from foresee.run.torch_settings import NOT_DETERMINISTIC, torch_settings
from foresee.store.contract import Store, scan


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of a comparison."""

    num_steps: int
    num_bytes: int
    num_differing: int
    first: str | None
    """Where the first difference is."""
    counters: Counters
    """What the run with its cache moved."""
    is_deterministic: bool = True
    """False: the plain run, repeated, gave other bytes too. Only tried if bytes differ."""

    def in_words(self) -> str:
        """What was found, for a person."""
        if self.num_differing:
            found = f"{self.num_differing:,} of {self.num_bytes:,} bytes differ, the first in {self.first}"
            return found if self.is_deterministic else f"{found}\n{NOT_DETERMINISTIC}"
        return f"all {self.num_bytes:,} bytes are equal after {counted(self.num_steps, 'step')}"


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """A stream that ends early."""

    stream: Any
    num_steps: int
    source = "graph"

    @property
    def num_rows(self) -> int:
        return int(self.stream.num_rows)

    @property
    def digest(self) -> str:
        return str(self.stream.digest)

    def batches(self, first_step: int = 0) -> Iterator[Any]:
        return islice(self.stream.batches(first_step), self.num_steps - first_step)


def verify(config: GraphConfig, folder: Path, *, num_steps: int | None = None) -> Verdict:
    """Trains the first steps twice; the tables of the run with its cache are made in `folder`, which is empty."""
    graph = build.open_graph(config)
    chosen = build.choose_order(config, graph)
    stream = build.train_stream(config, graph, chosen)
    first = FirstSteps(stream, min(num_steps or stream.num_steps, stream.num_steps))
    header = replace(build.plan_header(config, graph, stream, chosen), num_steps=first.num_steps)
    plain = make_header(first, planner="none", cache_rows=first.num_rows, read_only=header.options.read_only)
    plain = replace(plain, options=replace(plain.options, staleness=header.options.staleness))
    plainly = config.model_copy(update={"tables": config.tables.model_copy(update={"store": "memory"})})
    with (
        torch_settings(config.train.num_threads) as num_threads,
        build.new_tables(plainly, graph, folder) as left,
    ):
        weights, _ = learned(config, graph, first, left, plain, num_threads)
        with build.new_tables(config, graph, folder) as right:
            others, counters = learned(config, graph, first, right, header, num_threads)
            num_bytes, num_differing, where = _differences(left.store, right.store, weights, others)
        is_deterministic = True
        if num_differing:
            with build.new_tables(plainly, graph, folder) as again:
                repeated, _ = learned(config, graph, first, again, plain, num_threads)
                is_deterministic = not _differences(left.store, again.store, weights, repeated)[1]
    return Verdict(
        num_steps=first.num_steps, num_bytes=num_bytes, num_differing=num_differing, first=where, counters=counters,
        is_deterministic=is_deterministic,
    )  # fmt: skip


def learned(
    config: GraphConfig, graph: Any, stream: Any, tables: Tables, header: Header, num_threads: int
) -> tuple[dict[str, Tensor], Counters]:
    """Trains all of a stream into the tables, with nothing beside the loop but the schedule; the weights after it."""
    model = build.build_model(config, graph)
    half = DenseHalf.of(config, model, stream.num_steps)
    run = Run(stream, tables, header, Pooling.of([False]), num_threads=num_threads)
    train_steps(run, half.optimizer, Alone(model, forward), [MoveRate(half.schedule)], objective=objective_of(config))
    return model.state_dict(), run.counters


def _differences(
    left: Store, right: Store, weights: dict[str, Tensor], others: dict[str, Tensor]
) -> tuple[int, int, str | None]:
    pairs = [(f"weight {name}", weights[name].numpy(), others[name].numpy()) for name in weights]
    num_bytes, num_differing, first = 0, 0, None
    for what, one, other in (*pairs, *_rows(left, right)):
        differ = np.frombuffer(one.tobytes(), np.uint8) != np.frombuffer(other.tobytes(), np.uint8)
        num_bytes, num_differing = num_bytes + len(differ), num_differing + int(differ.sum())
        first = what if first is None and differ.any() else first
    return num_bytes, num_differing, first


def _rows(left: Store, right: Store) -> Iterator[tuple[str, Any, Any]]:
    """Values, states and versions of both stores, some rows at a time."""
    for (ids, mine), (_, theirs) in zip(scan(left), scan(right), strict=True):
        for name in ("values", "state", "versions"):
            yield f"the {name} of rows {ids[0]:,} on", getattr(mine, name), getattr(theirs, name)
