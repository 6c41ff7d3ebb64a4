"""Simulated runs with faults end as runs without; the faults happened; and the same seed gives the same run."""

from __future__ import annotations

import pytest
import schedules

from foresee.testing.simulation import SCHEDULES_OF_A_CASE, simulate
from foresee.testing.simulation.case import make_case

NUM_SCHEDULES = 400
OF_A_CASE = 25
COMMON_FAULTS = tuple(fault for fault in schedules.FAULTS if "decision" not in fault and "late" not in fault)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_schedules_with_faults_end_as_without() -> None:
    said: list[str] = []
    found = schedules.run(schedules=NUM_SCHEDULES, seed=1, progress=said.append, processes=1, of_a_case=OF_A_CASE)
    assert found == {"schedules": NUM_SCHEDULES, "schedule_violations": 0}, said[-8:]
    for fault in COMMON_FAULTS:
        assert f"{fault} 0" not in said[-1], f"never happened: {fault}"


def test_a_seed_is_a_run() -> None:
    """Event by event, so that a failing seed can be looked at."""
    first, second = list[str](), list[str]()
    outcomes = [simulate(SCHEDULES_OF_A_CASE + 7, trace=lines.append) for lines in (first, second)]
    assert first == second
    assert len(first) > 50
    assert outcomes[0] == outcomes[1]
    assert simulate(SCHEDULES_OF_A_CASE + 8, trace=None) != outcomes[0]


def test_cases_are_of_all_kinds() -> None:
    cases = [make_case(seed) for seed in range(150)]
    assert {case.num_workers for case in cases} == {1, 2, 3, 4}
    assert {case.num_servers for case in cases} == {1, 2, 3}
    assert {case.planner for case in cases} >= {"none", "static", "lru", "lfu", "lookahead", "belady", "window"}
    assert {case.header.options.placement for case in cases if case.num_workers > 1} >= {
        "contiguous", "herald", "location_aware",
    }  # fmt: skip
    records = [task.record for case in cases for step in case.plan(0).tasks for task in step]
    assert any(len(record.fetch) for record in records if record.step > 2), "rows leave and come back"
    assert any(len(record.send) for record in records), "rows travel between workers"
