"""A plan that ends after every epoch and begins anew is proved by the checker, and waits for no later step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.plan import make_planner, trainable
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.record import Accesses, Header, Record
from foresee.plan.variants import Restarted
from foresee.testing.traces import header_for, largest_batch, traces


def records_of(header: Header, trace: Sequence[Accesses]) -> Iterator[Record]:
    planner = Restarted(header, 0, lambda part: make_planner(part, lambda steps: trace[part.first_step :][:steps]))
    planned = 0
    for read, accesses in enumerate(trace, start=1):
        records = planner.push(accesses)
        planned += len(records)
        yield from records
        assert planned == read or not accesses.is_last_known, "nothing waits for the next epoch"
    yield from planner.finish()


@pytest.mark.parametrize("name", sorted(trainable()))
@given(case=traces(), slack=st.integers(0, 8), last=st.sets(st.integers(0, 20)))
def test_a_plan_that_begins_anew_is_proved_right(
    name: str, case: tuple[int, list[Accesses]], slack: int, last: set[int]
) -> None:
    num_rows, trace = case
    trace = [replace(it, is_last_known=step in last) for step, it in enumerate(trace)]
    header = header_for(name, trace, capacity_rows=max(1, largest_batch(trace)) + slack, num_rows=num_rows)
    records = list(records_of(header, trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations
