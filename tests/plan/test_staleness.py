"""Stale reads counted with one number for each row are those that the checker counts update by update."""

from __future__ import annotations

import pytest

from foresee.plan import check_plan, find, plan
from foresee.plan.count import staleness_of
from foresee.plan.record import Header, PlannerOptions
from foresee.testing.traces import skewed_trace


@pytest.mark.parametrize("capacity_rows", [60, 300])
@pytest.mark.parametrize("bound", [0, 1, 10])
def test_stale_reads_are_those_of_the_checker(bound: int, capacity_rows: int) -> None:
    trace = skewed_trace(seed=5, num_rows=2000, num_steps=20, num_samples=64, num_lookups=4)
    header = Header(
        planner="het", options=PlannerOptions(staleness=bound), num_workers=8, capacity_rows=capacity_rows,
        num_rows=2000,
        first_step=0, num_steps=20, fetch_ahead_steps=5, stream_digest="test",
    )  # fmt: skip
    records = list(plan(find("het").planner_to_compare(header, lambda num_steps: []), trace))
    verdict = check_plan(header, trace, records, None)
    found = staleness_of(records, 8, capacity_rows)
    assert (found.stale_reads, found.missing_updates) == (verdict.stale_reads, verdict.missing_updates)
    assert found.num_reads == verdict.counters.num_unique
    assert (found.stale_share > 0) == (bound > 0)
