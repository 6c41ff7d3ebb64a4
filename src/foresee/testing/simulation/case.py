"""What a simulated run computes: a small random trace, its plans by the real planners, and the result it must have.

In: a seed. Out: a `Case`, which many schedules share. Values are small whole numbers, so sums are exact and the result
is that of plain synchronous training, whatever the number of workers (`Reference`). One column is different: its
gradients are numbers whose float32 sum depends on the order, so a sum in another order than that of the workers shows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from foresee.engine.workers.itinerary import Itinerary
from foresee.plan import make_planner, plan
from foresee.plan.check_step import rows_of
from foresee.plan.record import UNKNOWN_VERSION, Header, Int64, Record, Touches
from foresee.plan.workers.placement import PLACEMENTS
from foresee.store.contract import Float32, Int32, Layout, Table

EXACT, ORDERED = 0, 1
"""Columns of a row's values: a whole number that training depends on, and the last sum of numbers in worker order."""
WIDTH, STATE_WIDTH = 2, 1
ORDERED_GRADIENTS = (16777216.0, 1.0, -16777216.0, 3.0, 0.5)
"""Their sums in float32 depend on the order: 2^24 + 1 is 2^24."""
ALONE = ("none", "static", "lru", "lfu", "lookahead", "belady", "window")
TOGETHER = ("none", "lookahead", "lookahead")


@dataclass(frozen=True, slots=True)
class Task:
    """A record with what a simulated trainer needs beside it."""

    record: Record
    itinerary: Itinerary
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
    trace: list[Touches]
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
    trace = [_touches(rng, num_samples, num_lookups, num_rows, skew) for _ in range(num_steps)]
    planner = rng.choice(ALONE if num_workers == 1 else TOGETHER)
    window = 2 if planner == "window" else None
    most = max(
        len(np.unique(np.concatenate([touches.rows for touches in trace[step : step + (window or 0) + 1]])))
        for step in range(num_steps)
    )
    header = Header(
        planner="lookahead" if planner == "window" else planner,
        parameters={
            "remember_versions": rng.randint(0, 1),
            "window_steps": window,
            "placement": rng.choice(tuple(PLACEMENTS)),
        },
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


def _touches(rng: Random, num_samples: int, num_lookups: int, num_rows: int, skew: float) -> Touches:
    rows = [int(rng.random() ** skew * num_rows) for _ in range(num_samples * num_lookups)]
    offsets = np.arange(0, len(rows) + 1, num_lookups, dtype=np.int32)
    return Touches(np.array(rows, np.int64), offsets)


def _keys(step: int, samples: Int32, num_lookups: int) -> NDArray[np.float64]:
    sample = np.repeat(samples.astype(np.int64), num_lookups)
    position = np.tile(np.arange(num_lookups), len(samples))
    return (step * 5 + sample * 7 + position * 3).astype(np.float64)


def _num_lookups(touches: Touches) -> int:
    return len(touches.rows) // touches.num_samples


def _reference(trace: list[Touches], num_rows: int) -> Reference:
    values, state = np.zeros((num_rows, WIDTH), np.float32), np.zeros((num_rows, STATE_WIDTH), np.float32)
    versions, dense = np.zeros(num_rows, np.int32), 0
    reference = Reference([values[:, EXACT].copy()], [state[:, 0].copy()], [versions.copy()], [0])
    for step, touches in enumerate(trace):
        keys = _keys(step, np.arange(touches.num_samples, dtype=np.int32), _num_lookups(touches))
        each = gradients(values[touches.rows, EXACT], keys)
        rows, inverse = np.unique(touches.rows, return_inverse=True)
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
        touches = trace[together[0].step - first_step]
        step = [_task(record, touches, case.num_workers) for record in together]
        tasks.append(step)
        ordered.append(_ordered_sum(step, case.header.num_rows))
    return Plan(first_step, tasks, ordered)


def _without_versions(record: Record) -> Record:
    fetch = record.fetch
    return replace(record, fetch=replace(fetch, version=np.full(len(fetch), UNKNOWN_VERSION, np.int32)))


def _task(record: Record, touches: Touches, num_workers: int) -> Task:
    looked_up = rows_of(touches, record)
    rows = np.empty(len(record.unique), np.int64)
    rows[record.inverse] = looked_up
    keys = _keys(record.step, record.samples, _num_lookups(touches))
    ordered = np.zeros(len(rows), np.float32)
    for position, key in zip(record.inverse.tolist(), keys.astype(int).tolist(), strict=True):
        ordered[position] += np.float32(ORDERED_GRADIENTS[(key * key + key) % len(ORDERED_GRADIENTS)])
    return Task(record, Itinerary.of(record, num_workers), rows, keys, ordered)


def _ordered_sum(step: list[Task], num_rows: int) -> Float32:
    """From the definition: zero, then each worker's sum, in the order of workers."""
    total = np.zeros(num_rows, np.float32)
    for task in step:
        total[task.rows] += task.ordered
    return total
