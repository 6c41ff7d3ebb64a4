"""What a simulated run computes: a small random trace, its plans by the real planners, and the result it must have.

In: a seed. Out: a `Case`, which many schedules share. Values are small whole numbers, so sums are exact and the result
is that of plain synchronous training, whatever the number of workers (`Reference`). One column is different: its
gradients are numbers whose float32 sum depends on the order, so a sum in another order than that of the workers shows.

`SimulatedCache` has the engine's own bookkeeping of slots and does with numpy what `engine.cache.SlotCache` does with
kernels, as far as the exchange between workers and a flush need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foresee.arrays import Float32, Int32, Int64
from foresee.engine.cache import SlotTable
from foresee.engine.exchange.schedule import ExchangeSchedule
from foresee.plan import make_planner, plan
from foresee.plan.check_step import rows_of
from foresee.plan.placement import PLACEMENTS
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Evict, Fetch, Header, PlannerOptions, Record
from foresee.plan.registry import BUILT_IN
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table

EXACT, ORDERED = 0, 1
"""Columns of a row's values: a whole number that training depends on, and the last sum of numbers in worker order."""
WIDTH, STATE_WIDTH = 2, 1
ORDERED_GRADIENTS = (16777216.0, 1.0, -16777216.0, 3.0, 0.5)
"""Their sums in float32 depend on the order: 2^24 + 1 is 2^24."""
ALONE = (*(policy.name for policy in BUILT_IN if policy.alone), "window")
TOGETHER = ("none", "lookahead", "lookahead")


@dataclass(frozen=True, slots=True)
class Task:
    """A record with what a simulated trainer needs beside it."""

    record: Record
    schedule: ExchangeSchedule
    rows: Int64
    """Of `record.unique`."""
    keys: NDArray[np.float64]
    """For each lookup a number that its gradient depends on."""
    ordered: Float32
    """For each of `record.unique` the sum of this worker's ordered gradients."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The records from one first step on."""

    first_step: int
    tasks: list[list[Task]]  # [steps][workers]
    ordered: list[Float32]  # [steps][rows]: what the sum over workers must be


@dataclass(frozen=True, slots=True)
class Reference:
    """Every row after so many steps of plain synchronous training, and the dense half."""

    values: list[Float32]  # [steps + 1][rows], the exact column
    state: list[Float32]
    versions: list[Int32]
    dense: list[int]


@dataclass
class Case:
    """One run to be simulated."""

    seed: int
    num_workers: int
    num_servers: int
    planner: str
    header: Header
    layout: Layout
    trace: list[Accesses]
    reference: Reference
    forgetful: bool = False
    """The planner knows no version of a row that is fetched, as of rows that left its window long ago: then a read is
    guarded by what all workers have applied."""
    _plans: dict[int, Plan] = field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return len(self.trace)

    def plan(self, first_step: int) -> Plan:
        if first_step not in self._plans:
            self._plans[first_step] = _plan(self, first_step)
        return self._plans[first_step]


def step_rows(
    values: Float32, state: Float32, versions: Int32, at: NDArray[np.integer], sums: Float32, version: int
) -> None:
    """The optimiser: the new value depends on value, state and gradient, so that losing any of them shows."""
    state[at, 0] += sums[:, EXACT]
    values[at, EXACT] += sums[:, EXACT] + state[at, 0] % 3
    values[at, ORDERED] = sums[:, ORDERED]
    versions[at] = version


def gradients(values: Float32, keys: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each lookup, from the value that was read: whole numbers from -5 to 5."""
    return (values * 3.0 + keys) % 11.0 - 5.0


def make_case(seed: int) -> Case:
    rng = Random(seed)
    num_workers, num_servers = rng.choice((1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 4)), rng.choice((1, 1, 1, 2, 2, 2, 3))
    num_steps, num_rows = rng.randint(4, 6), rng.randint(5, 10)
    num_samples, num_lookups = num_workers * rng.randint(1, 2 if num_workers < 3 else 1), rng.randint(1, 3)
    skew = rng.choice((1.0, 2.0))
    trace = [_accesses(rng, num_samples, num_lookups, num_rows, skew) for _ in range(num_steps)]
    planner = rng.choice(ALONE if num_workers == 1 else TOGETHER)
    window = 2 if planner == "window" else None
    most = max(
        len(np.unique(np.concatenate([accesses.rows for accesses in trace[step : step + (window or 0) + 1]])))
        for step in range(num_steps)
    )
    header = Header(
        planner="lookahead" if planner == "window" else planner,
        options=PlannerOptions(
            remember_versions=bool(rng.randint(0, 1)),
            window_steps=window,
            placement=rng.choice(tuple(PLACEMENTS)),
        ),
        num_workers=num_workers,
        capacity_rows=min(num_rows, most + rng.randint(0, 3)) if planner != "none" else num_rows,
        num_rows=num_rows,
        first_step=0,
        num_steps=num_steps,
        fetch_ahead_steps=rng.choice([0, 1, 2, 3, 4, 6, 8]),
        stream_digest="simulation",
    )
    layout = Layout(
        tables=(Table("rows", num_rows),), width=WIDTH, state_width=STATE_WIDTH, optimizer="sum", init_scale=0.0
    )
    return Case(
        seed=seed, num_workers=num_workers, num_servers=num_servers, planner=planner, header=header, layout=layout,
        trace=trace, reference=_reference(trace, num_rows), forgetful=rng.random() < 0.4,
    )  # fmt: skip


def _accesses(rng: Random, num_samples: int, num_lookups: int, num_rows: int, skew: float) -> Accesses:
    rows = [int(rng.random() ** skew * num_rows) for _ in range(num_samples * num_lookups)]
    offsets = np.arange(0, len(rows) + 1, num_lookups, dtype=np.int32)
    return Accesses(np.array(rows, np.int64), offsets)


def _keys(step: int, samples: Int32, num_lookups: int) -> NDArray[np.float64]:
    sample = np.repeat(samples.astype(np.int64), num_lookups)
    position = np.tile(np.arange(num_lookups), len(samples))
    return (step * 5 + sample * 7 + position * 3).astype(np.float64)


def _num_lookups(accesses: Accesses) -> int:
    return len(accesses.rows) // accesses.num_samples


def _reference(trace: list[Accesses], num_rows: int) -> Reference:
    values, state = np.zeros((num_rows, WIDTH), np.float32), np.zeros((num_rows, STATE_WIDTH), np.float32)
    versions, dense = np.zeros(num_rows, np.int32), 0
    reference = Reference([values[:, EXACT].copy()], [state[:, 0].copy()], [versions.copy()], [0])
    for step, accesses in enumerate(trace):
        keys = _keys(step, np.arange(accesses.num_samples, dtype=np.int32), _num_lookups(accesses))
        each = gradients(values[accesses.rows, EXACT], keys)
        rows, inverse = np.unique(accesses.rows, return_inverse=True)
        sums = np.zeros((len(rows), WIDTH), np.float32)
        sums[:, EXACT] = np.bincount(inverse, weights=each, minlength=len(rows))
        step_rows(values, state, versions, rows, sums, step + 1)
        dense += int(each.sum()) + step
        reference.values.append(values[:, EXACT].copy())
        reference.state.append(state[:, 0].copy())
        reference.versions.append(versions.copy())
        reference.dense.append(dense)
    return reference


def _plan(case: Case, first_step: int) -> Plan:
    trace = case.trace[first_step:]
    header = replace(case.header, first_step=first_step, num_steps=len(trace))
    records = list(plan(make_planner(header, lambda steps: trace[:steps]), trace)) if trace else []
    if case.forgetful:
        records = [_without_versions(record) for record in records]
    tasks, ordered = [], []
    for begin in range(0, len(records), case.num_workers):
        together = records[begin : begin + case.num_workers]
        accesses = trace[together[0].step - first_step]
        step = [_task(record, accesses, case.num_workers) for record in together]
        tasks.append(step)
        ordered.append(_ordered_sum(step, case.header.num_rows))
    return Plan(first_step, tasks, ordered)


def _without_versions(record: Record) -> Record:
    fetch = record.fetch
    return replace(record, fetch=replace(fetch, version=np.full(len(fetch), UNKNOWN_VERSION, np.int32)))


def _task(record: Record, accesses: Accesses, num_workers: int) -> Task:
    looked_up = rows_of(accesses, record)
    rows = np.empty(len(record.unique), np.int64)
    rows[record.inverse] = looked_up
    keys = _keys(record.step, record.samples, _num_lookups(accesses))
    ordered = np.zeros(len(rows), np.float32)
    for position, key in zip(record.inverse.tolist(), keys.astype(int).tolist(), strict=True):
        ordered[position] += np.float32(ORDERED_GRADIENTS[(key * key + key) % len(ORDERED_GRADIENTS)])
    return Task(record, ExchangeSchedule.of(record, num_workers), rows, keys, ordered)


def _ordered_sum(step: list[Task], num_rows: int) -> Float32:
    """From the definition: zero, then each worker's sum, in the order of workers."""
    total = np.zeros(num_rows, np.float32)
    for task in step:
        total[task.rows] += task.ordered
    return total


class SimulatedCache:
    """As much of `engine.cache.Cache` as is needed without models."""

    def __init__(self, layout: Layout, capacity_rows: int) -> None:
        self.table, self._row_bytes = SlotTable(capacity_rows), layout.row_bytes
        self.rows = Rows(
            np.zeros((capacity_rows, layout.width), np.float32),
            np.zeros((capacity_rows, layout.state_width), np.float32),
            np.zeros(capacity_rows, np.int32),
        )

    def fill(self, fetch: Fetch, staging: Rows) -> None:
        self.put(fetch.slot, staging)
        self.table.hold(fetch, staging.versions)

    def apply(self, slots: Int32, sums: Any, *, version: int) -> None:
        if len(slots):
            step_rows(self.rows.values, self.rows.state, self.rows.versions, slots, sums.numpy(), version)

    def copy(self, slots: Int32) -> Rows:
        rows = self.rows
        return Rows(rows.values[slots], rows.state[slots], rows.versions[slots])

    def put(self, slots: Int32, arrived: Rows) -> None:
        if len(slots):
            self.rows.values[slots] = arrived.values
            self.rows.state[slots] = arrived.state
            self.rows.versions[slots] = arrived.versions

    def take(self, evict: Evict) -> Rows:
        out = self.copy(evict.slot)
        self.table.free(evict.slot)
        return out

    def changed(self) -> Iterator[tuple[Int64, Rows]]:
        for slots in self.table.changed(self.rows.versions, self._row_bytes):
            yield self.table.row[slots], self.copy(slots)


@dataclass(frozen=True, slots=True)
class SimulatedGradients:
    """The gradients of a step, as the conversation asks for them."""

    record: Record
    of_unique: Tensor
    cache: SimulatedCache

    def sums(self, positions: Int32) -> Tensor:
        return self.of_unique[positions]

    def apply(self, positions: Int32) -> None:
        self.cache.apply(self.record.unique[positions], self.of_unique[positions], version=self.record.step + 1)
