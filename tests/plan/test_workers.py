"""Plans for many workers are proved by the same checker; placements are balanced and cost what they claim."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan import plan
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.record import Header, Touches
from foresee.plan.workers.ownership import Ownership
from foresee.plan.workers.placement import PLACEMENTS
from foresee.testing.traces import skewed_trace, touches_of


def header_of(num_workers: int, capacity_rows: int, num_rows: int, num_steps: int, ahead: int = 100) -> Header:
    return Header(
        planner="ownership",
        parameters={},
        num_workers=num_workers,
        capacity_rows=capacity_rows,
        num_rows=num_rows,
        first_step=0,
        num_steps=num_steps,
        fetch_ahead_steps=ahead,
        stream_digest="test",
    )


@st.composite
def balanced_traces(draw: st.DrawFn) -> tuple[int, int, list[Touches]]:
    """(workers, rows, trace) where every worker gets a sample of every batch; most do not divide."""
    num_workers = draw(st.integers(1, 4))
    num_rows = draw(st.integers(1, 14))
    sample = st.lists(st.integers(0, num_rows - 1), min_size=0, max_size=3)
    batch = st.lists(sample, min_size=num_workers, max_size=3 * num_workers)
    return num_workers, num_rows, [touches_of(samples) for samples in draw(st.lists(batch, min_size=1, max_size=12))]


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
@given(case=balanced_traces(), slack=st.integers(0, 6), window=st.integers(0, 8), ahead=st.integers(0, 4))
def test_many_workers_are_proved_right(
    placement: str, case: tuple[int, int, list[Touches]], slack: int, window: int, ahead: int
) -> None:
    num_workers, num_rows, trace = case
    capacity = max(len(np.unique(touches.rows)) for touches in trace) + slack or 1
    header = header_of(num_workers, capacity, num_rows, len(trace), ahead)
    planner = Ownership(header, PLACEMENTS[placement], window_steps=window, remember_versions=True)
    records = list(plan(planner, trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations


@given(case=balanced_traces())
def test_many_workers_without_a_cache_are_proved_right(case: tuple[int, int, list[Touches]]) -> None:
    num_workers, num_rows, trace = case
    header = header_of(num_workers, num_rows, num_rows, len(trace))
    records = list(plan(Ownership(header, PLACEMENTS["contiguous"], eager=True, remember_versions=True), trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations
    assert verdict.counters.num_fetched == verdict.counters.num_unique


@pytest.mark.parametrize("num_workers", [2, 4, 8])
def test_a_longer_trace_is_proved_right(num_workers: int) -> None:
    trace = skewed_trace(seed=num_workers, num_rows=2000, num_steps=40, num_samples=32, num_lookups=5)
    header = header_of(num_workers, 150, 2000, len(trace), ahead=3)
    for placement in PLACEMENTS.values():
        records = list(plan(Ownership(header, placement, window_steps=6), trace))
        assert check(header, trace, records, count(records)).right
