"""Does a run with its plan, cache and store end with the bytes of a run without any of them? Trains both and compares.

In: the configuration of a run over a log (`verify`) or over a graph (`verify_graph`), and a number of steps. Out: a
`Verification`: how many bytes of touched rows (values, state, versions) and dense weights were compared, and how many
differ. One side has no cache and its rows in memory; the other is as the configuration says, in a temporary folder.
Never reads or writes the run's own folder, so it works on a run in any state: not begun, under way, interrupted,
finished. If bytes differ, the side in memory is trained again: a model whose own arithmetic differs from run to run
says nothing about the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresee.arrays import Int64
from foresee.data.click_log import ClickLog
from foresee.engine.header import groups_for, make_header, row_groups
from foresee.engine.planned_step import Advance, Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.errors import PlanError
from foresee.graph import build as graph_build
from foresee.graph.config import GraphConfig
from foresee.graph.task import forward, objective_of
from foresee.io.machine import scratch_folder
from foresee.io.units import counted
from foresee.plan.record import Counters, Header, Record
from foresee.plan.row_groups import numbering_of
from foresee.run import build
from foresee.run.callbacks import Callback, MoveRate, StepResult
from foresee.run.config import RunConfig
from foresee.run.dense_state import DenseHalf
from foresee.run.group import Alone
from foresee.run.loop import Objective, clip_of, train_steps
from foresee.run.tasks import tasks_of
from foresee.run.torch_settings import NOT_DETERMINISTIC, torch_settings
from foresee.store.contract import Rows, Store
from foresee.store.registry import MEMORY
from foresee.store.row_groups import groups_of
from foresee.tools.forecast import FirstSteps, demand_of, first_steps

ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the comparison found."""

    num_steps: int
    num_rows: int
    """Rows that the steps touched; all were compared."""
    num_bytes: int
    """Compared on each side, dense weights included."""
    num_differing: int
    """Bytes that differ. 0, or something is wrong with us."""
    first_difference: str | None
    """Where the first one is, in words."""
    counters: Counters = field(default_factory=Counters)
    """What the side with the plan moved."""
    is_deterministic: bool = True
    """False: the side in memory, trained again, gave other bytes too. Only tried if bytes differ."""

    @property
    def equal(self) -> bool:
        return self.num_differing == 0

    def in_words(self) -> str:
        """Return what was found, for a person."""
        if self.equal:
            return f"all {self.num_bytes:,} bytes are equal after {counted(self.num_steps, 'step')}"
        found = f"{self.num_differing:,} of {self.num_bytes:,} bytes differ, the first in {self.first_difference}"
        return found if self.is_deterministic else f"{found}\n{NOT_DETERMINISTIC}"


@dataclass(frozen=True, slots=True)
class Trained:
    """One side after its last step."""

    store: Store
    weights: Mapping[str, Tensor]
    counters: Counters = field(default_factory=Counters)


Side = Callable[[], AbstractContextManager[Trained]]
"""Trains one side; its tables are open until the context ends."""


def verify(config: RunConfig, *, num_steps: int, advance: Advance | None = None) -> Verification:
    """Train the first steps without and with the plan, each in one process, and compare every byte."""
    config = _in_one_process(config)
    log = build.open_log(config)
    stream = first_steps(build.train_stream(config, log), num_steps)
    demand = demand_of(stream.batches())
    in_memory = config.model_copy(update={"tables": config.tables.model_copy(update={"store": MEMORY.name})})

    @contextmanager
    def plain() -> Iterator[Trained]:
        with build.open_tables(in_memory, log) as tables:
            yield _train(config, log, _plain_run(config, log, stream, tables, demand.largest_batch), advance)

    with scratch_folder() as folder, torch_settings(config.train.num_threads):
        as_it_is = _elsewhere(config, folder)

        @contextmanager
        def planned() -> Iterator[Trained]:
            with build.open_tables(as_it_is, log) as tables:
                yield _train(config, log, _planned_run(config, log, stream, tables), advance)

        return _verified(plain, planned, demand.rows, stream.num_steps)


def verify_graph(config: GraphConfig, folder: Path, *, num_steps: int | None = None) -> Verification:
    """Train the first steps of a run over a graph twice and compare every row and weight.

    The tables of the side with the plan are made in `folder`, which is empty.
    """
    graph = graph_build.open_graph(config)
    chosen = graph_build.choose_order(config, graph)
    whole = graph_build.train_stream(config, graph, chosen)
    stream: Any = _GraphSteps(whole, min(num_steps or whole.num_steps, whole.num_steps))
    header = replace(graph_build.plan_header(config, graph, whole, chosen), num_steps=stream.num_steps)
    plain = make_header(stream, planner="none", cache_rows=stream.num_rows, read_only=header.options.read_only)
    plain = replace(plain, options=replace(plain.options, staleness=header.options.staleness))
    in_memory = config.model_copy(update={"tables": config.tables.model_copy(update={"store": MEMORY.name})})
    with torch_settings(config.train.num_threads) as num_threads:

        @contextmanager
        def side(tables_as: GraphConfig, planned: Header) -> Iterator[Trained]:
            with graph_build.new_tables(tables_as, graph, folder) as tables:
                model = graph_build.build_model(config, graph)
                half = DenseHalf.of(config, model, stream.num_steps)
                run = Run(stream, tables, planned, Pooling.of([False]), num_threads=num_threads)
                callbacks, objective = [MoveRate(half.schedule)], objective_of(config)
                train_steps(run, half.optimizer, Alone(model, forward), callbacks, objective=objective)
                yield Trained(tables.store, model.state_dict(), run.counters)

        rows = np.arange(stream.num_rows)
        return _verified(lambda: side(in_memory, plain), lambda: side(config, header), rows, stream.num_steps)


class _GraphSteps(FirstSteps):
    """The first steps of a graph's stream, named so in errors."""

    source = "graph"


def _verified(plain: Side, planned: Side, rows: Int64, num_steps: int) -> Verification:
    with plain() as without:
        with planned() as with_plan:
            found = compare(without, with_plan, rows, num_steps=num_steps)
        if found.equal:
            return found
        with plain() as repeated:
            same = compare(without, repeated, rows, num_steps=num_steps).equal
        return replace(found, is_deterministic=same)


def _elsewhere(config: RunConfig, folder: Path) -> RunConfig:
    """The same run with nothing in its folder yet: commits and checkpoints of the real one belong to other tables."""
    tables = config.tables.model_copy(update={"folder": None})
    return config.model_copy(update={"run": folder, "tables": tables})


def _in_one_process(config: RunConfig) -> RunConfig:
    """The plan of one worker, who trains all samples: a plan for several carried out by one would train a share."""
    return config.model_copy(update={"distributed": config.distributed.model_copy(update={"workers": 1, "servers": 0})})


def compare(left: Trained, right: Trained, rows: Int64, *, num_steps: int) -> Verification:
    """Compares these rows of two stores, and two sets of weights, byte by byte."""
    differences = _Differences()
    for one, other, wanted, labels in _groups(left.store, right.store, rows):
        for begin in range(0, len(wanted), ROWS_AT_ONCE):
            some, named = wanted[begin : begin + ROWS_AT_ONCE], labels[begin : begin + ROWS_AT_ONCE]
            mine, theirs = Rows.empty(len(some), one.layout), Rows.empty(len(some), other.layout)
            one.read(some, mine)
            other.read(some, theirs)
            for name in ("values", "state", "versions"):
                differences.add(f"{name} of row", named, getattr(mine, name), getattr(theirs, name))
    if left.weights.keys() != right.weights.keys():
        raise PlanError("the two models have different weights; build both from one configuration")
    for name, weight in left.weights.items():
        both = (_bytes_of(weight), _bytes_of(right.weights[name]))
        differences.add(f"dense weights {name}, byte", np.arange(len(both[0])), *both)
    return Verification(
        num_steps=num_steps,
        num_rows=len(rows),
        num_bytes=differences.num_bytes,
        num_differing=differences.num_differing,
        first_difference=differences.first,
        counters=right.counters,
    )


def _groups(left: Store, right: Store, rows: Int64) -> Iterator[tuple[Store, Store, Int64, Int64]]:
    """Of each row group the two stores, the rows as it numbers them, and as the log does."""
    if not left.layout.widths:
        yield left, right, rows, rows
        return
    groups, local = numbering_of(row_groups(left.layout)).of_rows(rows)
    for number, (one, other) in enumerate(zip(groups_of(left), groups_of(right), strict=True)):
        yield one, other, local[groups == number], rows[groups == number]


class _Differences:
    """Counts bytes, and remembers the first that differs."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_differing = 0
        self.first: str | None = None

    def add(self, what: str, labels: Int64, left: NDArray[np.generic], right: NDArray[np.generic]) -> None:
        """Two arrays of equal shape with one label for each of their first dimension."""
        self.num_bytes += left.nbytes
        if not left.nbytes:
            return
        # Bytes and not numbers: two NaNs are equal if they are the same bits, and -0.0 is not 0.0.
        differ = _bytes(left).reshape(len(left), -1) != _bytes(right).reshape(len(right), -1)
        self.num_differing += int(np.count_nonzero(differ))
        if self.first is None and differ.any():
            self.first = f"{what} {labels[int(np.argmax(differ.any(axis=1)))]}"


def _bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def _bytes_of(weight: Tensor) -> NDArray[np.uint8]:
    return _bytes(weight.detach().cpu().contiguous().view(-1).numpy())


def _plain_run(config: RunConfig, log: ClickLog, stream: FirstSteps, tables: Tables, cache_rows: int) -> Run:
    # Of several widths every row has a slot: no plan, no eviction, and nothing to divide.
    slots = stream.num_rows if tables.layout.widths else cache_rows
    header = make_header(stream, planner="none", cache_rows=slots, groups=groups_for(tables.layout, stream))
    return _run(config, log, stream, tables, header, None)


def _planned_run(config: RunConfig, log: ClickLog, stream: FirstSteps, tables: Tables) -> Run:
    whole = build.train_stream(config, log)
    saved, header = build.saved_plan(config, whole), build.plan_header(config, log, whole)
    if saved is not None:
        build.check_alone(saved, header)
        # Not proved: what a wrong plan does to the bytes is what is found here.
        return _run(config, log, stream, tables, saved.header, islice(saved.records(), stream.num_steps))
    return _run(config, log, stream, tables, replace(header, num_steps=stream.num_steps), None)


def _run(
    config: RunConfig,
    log: ClickLog,
    stream: FirstSteps,
    tables: Tables,
    header: Header,
    records: Iterable[Record] | None,
) -> Run:
    device, num_threads = build.training_device(config), torch.get_num_threads()
    pooling = log.pooling
    return Run(stream, tables, header, pooling, records=records, device=device, num_threads=num_threads)


def _train(config: RunConfig, log: ClickLog, run: Run, advance: Advance | None) -> Trained:
    """The loop of training, with nothing beside it but the schedule."""
    model = build.build_model(config, log)
    half = DenseHalf.of(config, model, build.train_stream(config, log).num_steps)
    objective = Objective.of(tasks_of(config.tasks, log))
    callbacks: list[Callback] = [MoveRate(half.schedule), _Advancing(advance)]
    group, clip = Alone(model, precision=config.train.precision), clip_of(config.train.clip_norm, model)
    train_steps(run, half.optimizer, group, callbacks, objective=objective, clip=clip)
    return Trained(run.tables.store, model.state_dict(), run.counters)


class _Advancing:
    """Says that a step is done, to whoever shows it."""

    def __init__(self, advance: Advance | None) -> None:
        self._advance = advance

    def after(self, done: StepResult) -> None:
        if self._advance is not None:
            self._advance()
