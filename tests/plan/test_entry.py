"""A plan entered in the middle goes on as if it had never been left, and the checker finds it right by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan import make_planner, plan
from foresee.plan.check import check
from foresee.plan.record import Accesses, Header, PlannerOptions, Record
from foresee.testing.traces import accesses_of, skewed_trace


def header_of(num_workers: int, capacity_rows: int, num_rows: int, num_steps: int) -> Header:
    return Header(
        planner="lookahead", options=PlannerOptions(placement="location_aware", remember_versions=True),
        num_workers=num_workers, capacity_rows=capacity_rows, num_rows=num_rows, first_step=0, num_steps=num_steps,
        fetch_ahead_steps=4,
        stream_digest="test",
    )  # fmt: skip


def entered_at(header: Header, step: int) -> Header:
    options = replace(header.options, planned_from=header.first_step)
    return replace(header, first_step=step, num_steps=header.num_steps - step, options=options)


def records_of(header: Header, trace: list[Accesses]) -> list[Record]:
    return list(plan(make_planner(header, lambda _: iter(())), trace))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Header, list[Accesses], int]:
    num_workers = draw(st.integers(2, 4))
    num_rows = draw(st.integers(1, 14))
    sample = st.lists(st.integers(0, num_rows - 1), min_size=0, max_size=3)
    size = draw(st.integers(1, 3)) * num_workers
    batch = st.lists(sample, min_size=size, max_size=size)
    trace = [accesses_of(samples) for samples in draw(st.lists(batch, min_size=2, max_size=12))]
    capacity = max(1, *(len(np.unique(accesses.rows)) for accesses in trace)) + draw(st.integers(0, 4))
    header = header_of(num_workers, capacity, num_rows, len(trace))
    first = draw(st.sampled_from([None, 1, 200]))  # a window of all that is there, or one that grows
    header = replace(header, options=replace(header.options, window_bytes=2000, window_first_bytes=first))
    return header, trace, draw(st.integers(1, len(trace) - 1))


@given(case=cases())
def test_an_entered_plan_is_right_and_goes_on_with_the_same_records(case: tuple[Header, list[Accesses], int]) -> None:
    header, trace, entry = case
    whole = [record for record in records_of(header, trace) if record.step >= entry]
    entered = records_of(entered_at(header, entry), trace)
    for before, after in zip(whole, entered, strict=True):
        assert (before.step, before.worker) == (after.step, after.worker)
        for name in ("samples", "unique", "inverse", "apply", "drop"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
        num_fetched = len(before.fetch)
        np.testing.assert_array_equal(after.fetch.row[:num_fetched], before.fetch.row)
        assert len(after.fetch) == num_fetched or after.step <= entry + 1
        assert len(np.unique(after.fetch.row)) == len(after.fetch), "no row is read twice by one worker"
    verdict = check(entered_at(header, entry), trace[entry:], entered, None, earlier=trace[:entry])
    assert verdict.right, verdict.violations


def test_a_plan_that_begins_anew_places_otherwise() -> None:
    """If it did not, nobody would need to enter one: this keeps the tests above from passing for nothing."""
    trace = skewed_trace(seed=3, num_steps=30, num_rows=400, num_samples=32, num_lookups=4)
    header = header_of(4, 200, 400, 30)
    whole = [record for record in records_of(header, trace) if record.step >= 12]
    anew = records_of(replace(header, first_step=12, num_steps=18), trace[12:])
    assert any(not np.array_equal(a.samples, b.samples) for a, b in zip(whole, anew, strict=True))


@pytest.mark.parametrize("entry", [1, 2, 11, 28, 29])
def test_long_traces(entry: int) -> None:
    trace = skewed_trace(seed=4, num_steps=30, num_rows=400, num_samples=32, num_lookups=4)
    header = entered_at(header_of(4, 160, 400, 30), entry)
    verdict = check(header, trace[entry:], records_of(header, trace), None, earlier=trace[:entry])
    assert verdict.right, verdict.violations
