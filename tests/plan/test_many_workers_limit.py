"""As many workers as a number has bits: planned, counted and proved; one more is refused with a sentence."""

from __future__ import annotations

import numpy as np
import pytest

from foresee.errors import PlanError
from foresee.plan import make_planner, plan
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.record import Accesses, Header, PlannerOptions


def header_for(num_workers: int, placement: str = "location_aware") -> Header:
    return Header(
        planner="lookahead", options=PlannerOptions(placement=placement, remember_versions=True),
        num_workers=num_workers, capacity_rows=200, num_rows=400, first_step=0, num_steps=6, fetch_ahead_steps=8,
        stream_digest="test",
    )  # fmt: skip


def trace(num_workers: int) -> list[Accesses]:
    rng, num_samples = np.random.default_rng(3), 2 * num_workers
    offsets = np.arange(0, 4 * num_samples + 1, 4, dtype=np.int32)
    steps = []
    for _ in range(6):
        rows = (400 * rng.random((num_samples, 4)) ** 3).astype(np.int64)
        rows[:, 0] = 0  # one row that every worker uses
        steps.append(Accesses(rows.reshape(-1), offsets))
    return steps


@pytest.mark.parametrize("placement", ["contiguous", "location_aware"])
@pytest.mark.parametrize("num_workers", [63, 64])
def test_plans_for_as_many_workers_as_bits_are_proved(num_workers: int, placement: str) -> None:
    header, steps = header_for(num_workers, placement), trace(num_workers)
    records = list(plan(make_planner(header, lambda num: steps[:num]), steps))
    verdict = check(header, steps, records, count(records))
    verdict.require()
    assert verdict.counters.num_received > 0


def test_more_workers_than_bits_are_refused() -> None:
    with pytest.raises(PlanError, match=r"65 workers cannot be made: .*; use at most 64"):
        make_planner(header_for(65), lambda num: [])
