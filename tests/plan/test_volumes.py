"""Volumes by step and worker: their sums are the counters, whoever planned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foresee.plan import all_policies, find, make_planner, plan, trainable
from foresee.plan.count import CRITICAL, RECEIVED, SENT, Volumes, count, measure
from foresee.plan.record import Accesses, Header, Kind, PlannerOptions, Record
from foresee.testing.traces import skewed_trace

NUM_STEPS = 20


@pytest.fixture(scope="module")
def trace() -> list[Accesses]:
    return skewed_trace(seed=5, num_rows=2000, num_steps=NUM_STEPS, num_samples=64, num_lookups=4)


def records_of(planner: str, num_workers: int, trace: list[Accesses]) -> list[Record]:
    options = PlannerOptions(staleness=2 if find(planner).takes_staleness else 0)
    header = Header(
        planner=planner, options=options, num_workers=num_workers, capacity_rows=300, num_rows=2000,
        first_step=0, num_steps=len(trace), fetch_ahead_steps=5, stream_digest="test",
    )  # fmt: skip
    if num_workers == 1:
        return list(plan(make_planner(header, lambda num: trace[:num]), trace))
    return list(plan(find(planner).planner_to_compare(header, lambda num_steps: trace[:2]), trace))


@pytest.mark.parametrize(
    ("planner", "num_workers"),
    [
        *((name, 1) for name in trainable()),
        *((it.name, 8) for it in all_policies() if it.absence(8) is None and not it.is_bound),
    ],
)
def test_sums_are_the_counters(planner: str, num_workers: int, trace: list[Accesses]) -> None:
    records = records_of(planner, num_workers, trace)
    counters, volumes = count(records), measure(records, num_workers)
    assert (volumes.num_steps, volumes.num_workers) == (counters.num_steps, num_workers)
    sums = {name: int(getattr(volumes, name).sum()) for name in Volumes.__slots__}
    assert sums["lookups"] == counters.num_lookups
    assert sums["unique"] == counters.num_unique
    assert (sums["fetched"], sums["refreshed"]) == (counters.num_fetched, counters.num_refreshed)
    assert (sums["evicted"], sums["pushed"]) == (counters.num_evicted, counters.num_pushed)
    assert sums["reduced"] == counters.num_reduced
    assert volumes.reduced[..., CRITICAL].sum() == counters.num_reduced_critical
    received = volumes.transfers[:, :, RECEIVED]
    assert received.sum() == counters.num_received
    assert received[..., CRITICAL].sum() == counters.num_received_critical
    assert np.array_equal(received.sum(axis=(0, 1)), volumes.transfers[:, :, SENT].sum(axis=(0, 1)))
    if num_workers == 1:
        assert volumes.hit_rate == pytest.approx(counters.hit_rate)
    assert 0 <= volumes.hit_rate <= 1
    assert (volumes.missed <= volumes.unique).all()


def test_rows_of_peers_are_no_hits(trace: list[Accesses]) -> None:
    records = records_of("owner", 8, trace)
    volumes = measure(records, 8)
    rows_of_peers = volumes.transfers[:, :, RECEIVED, [Kind.VALUE, Kind.MOVE]].sum()
    assert rows_of_peers > 0
    assert volumes.missed.sum() == volumes.fetched.sum() + rows_of_peers


def test_parts_of_a_plan(trace: list[Accesses]) -> None:
    volumes = measure(records_of("lookahead", 8, trace), 8)
    late = volumes.from_step(12)
    assert late.num_steps == NUM_STEPS - 12
    assert np.array_equal(late.fetched, volumes.fetched[12:])
    assert late.not_before.max() < late.num_steps
    assert late.not_before.min() >= -1
    assert volumes.until_step(3).num_steps == 3


def test_plan_bytes_are_those_of_the_arrays(trace: list[Accesses]) -> None:
    (first, *_) = records = records_of("lookahead", 1, trace)
    arrays: list[np.ndarray[Any, Any]] = [first.samples, first.unique, first.inverse, first.apply]
    arrays += [first.fetch.row, first.fetch.slot, first.fetch.version]
    arrays += [first.evict.row, first.evict.slot, first.evict.version]
    assert measure(records, 1).plan_bytes[0, 0] == sum(array.nbytes for array in arrays)
