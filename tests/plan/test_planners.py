"""Every planner's plan is proved by the checker, on hostile small traces; counts on a fixed trace are golden."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foresee.plan.upcoming
from foresee.errors import PlanError
from foresee.plan import Lookahead, make_planner, plan, trainable
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.ownership import Ownership
from foresee.plan.placement import PLACEMENTS
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION, Accesses, Planner, Record
from foresee.plan.upcoming import bytes_in_window
from foresee.testing.traces import accesses_of, header_for, largest_batch, skewed_trace, traces

EXACT = sorted(trainable())


def records_of(
    name: str, trace: Sequence[Accesses], capacity_rows: int, num_rows: int, **parameters: int
) -> list[Record]:
    header = header_for(name, trace, capacity_rows=capacity_rows, num_rows=num_rows, **parameters)
    return list(plan(make_planner(header, lambda steps: trace[:steps]), trace))


@pytest.mark.parametrize("name", EXACT)
@given(case=traces(), slack=st.integers(0, 8))
def test_every_planner_is_proved_right(name: str, case: tuple[int, list[Accesses]], slack: int) -> None:
    num_rows, trace = case
    capacity = max(1, largest_batch(trace)) + slack
    header = header_for(name, trace, capacity_rows=capacity, num_rows=num_rows)
    records = records_of(name, trace, capacity, num_rows)
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations


@pytest.mark.parametrize("window", [0, 1, 2, 5])
@given(case=traces(), ahead=st.integers(0, 4))
def test_a_fixed_window_is_proved_right(window: int, case: tuple[int, list[Accesses]], ahead: int) -> None:
    num_rows, trace = case
    header = header_for(
        "lookahead", trace, capacity_rows=num_rows, num_rows=num_rows, window_steps=window, fetch_ahead_steps=ahead
    )
    records = list(plan(make_planner(header, lambda steps: trace[:steps]), trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations


@pytest.mark.parametrize("window", [0, 1, 3])
@given(case=traces(), slack=st.integers(0, 6), ahead=st.integers(0, 4))
def test_a_short_window_with_any_capacity_is_proved_right(
    window: int, case: tuple[int, list[Accesses]], slack: int, ahead: int
) -> None:
    num_rows, trace = case
    header = header_for(
        "lookahead", trace, capacity_rows=max(1, largest_batch(trace)) + slack, num_rows=num_rows,
        fetch_ahead_steps=ahead,
    )  # fmt: skip
    for remember in (False, True):
        planner = Lookahead(header, window_steps=window, remember_versions=remember)
        records = list(plan(planner, trace))
        verdict = check(header, trace, records, count(records))
        assert verdict.right, verdict.violations


@given(case=traces(num_rows_max=40, samples_max=6), slack=st.integers(0, 8), num_workers=st.integers(1, 3))
def test_a_row_leaves_with_its_next_use(case: tuple[int, list[Accesses]], slack: int, num_workers: int) -> None:
    """The window holds the whole trace, so every row that comes back said when; that no other did, `check` proves."""
    num_rows, trace = case
    trace = [accesses for accesses in trace if accesses.num_samples >= num_workers]
    if not trace:
        return
    capacity = max(1, largest_batch(trace)) + slack
    header = header_for("lookahead", trace, capacity_rows=capacity, num_rows=num_rows)
    header = replace(header, num_workers=num_workers)
    records = list(plan(make_planner(header, lambda steps: trace[:steps]), trace))
    check(header, trace, records, count(records)).require()
    for record in records:
        assert len(record.evict.next_use) == len(record.evict)
        for row, use in zip(record.evict.row.tolist(), record.evict.next_use.tolist(), strict=True):
            later = [step for step in range(record.step + 1, len(trace)) if row in trace[step].rows]
            assert use == (later[0] if later else NOT_KNOWN)


@given(case=traces(num_rows_max=40, samples_max=6), slack=st.integers(0, 20))
def test_belady_is_a_lower_bound(case: tuple[int, list[Accesses]], slack: int) -> None:
    num_rows, trace = case
    capacity = max(1, largest_batch(trace)) + slack
    fetched = {name: count(records_of(name, trace, capacity, num_rows)).num_fetched for name in EXACT}
    assert fetched["belady"] == min(fetched.values())
    assert fetched["none"] == max(fetched.values())


def test_fixed_window_by_brute_force() -> None:
    """A row stays iff it is used again within the window: everything follows from the definition."""
    for seed in range(12):
        window = seed % 5
        trace = skewed_trace(seed=seed, num_rows=60, num_steps=40, num_samples=5, num_lookups=2)
        sets = [set(accesses.rows.tolist()) for accesses in trace]
        records = records_of("lookahead", trace, 60, 60, window_steps=window)
        for step, record in enumerate(records):
            ahead = set().union(*sets[step + 1 : step + 1 + window])
            behind = set().union(*sets[max(0, step - window) : step])
            assert set(record.evict.row.tolist()) == sets[step] - ahead
            assert set(record.fetch.row.tolist()) == sets[step] - behind
            assert record.not_before <= max(-1, step - 1 - window), "the paper's guard is never too early for us"


def test_with_the_whole_trace_known_lookahead_is_belady() -> None:
    for seed, capacity in [(1, 120), (2, 150), (3, 300)]:
        trace = skewed_trace(seed=seed, num_rows=3_000, num_steps=100, num_samples=20, num_lookups=5)
        fetched = {n: count(records_of(n, trace, capacity, 3_000)).num_fetched for n in ("lookahead", "belady", "lru")}
        assert fetched["lookahead"] == fetched["belady"] < fetched["lru"]


def test_worked_example_of_the_lecture() -> None:
    """L = 2: batch 1 fetches 3 and 9 and keeps 3; batch 2 fetches 4 and extends 3; the last use of 3 lets it go."""
    trace = [accesses_of([[3], [9]]), accesses_of([[3], [4]]), accesses_of([[5], [6]]), accesses_of([[3], [7]])]
    records = records_of("lookahead", trace, 10, 10, window_steps=2)
    assert [set(r.fetch.row.tolist()) for r in records] == [{3, 9}, {4}, {5, 6}, {7}]
    assert [set(r.evict.row.tolist()) for r in records] == [{9}, {4}, {5, 6}, {3, 7}]
    assert [r.not_before for r in records] == [-1, -1, -1, -1], "no row comes back from the store"


def test_a_batch_larger_than_the_cache_names_the_capacity_that_works() -> None:
    trace = [accesses_of([[1, 2]]), accesses_of([[1, 2, 3], [4]])]
    with pytest.raises(PlanError, match=r"step 1 touches 4 distinct rows, but the cache holds 3; .* 4 rows"):
        records_of("lookahead", trace, 3, 10)
    records_of("lookahead", trace, 4, 10)


def test_a_fixed_window_that_does_not_fit_is_refused() -> None:
    trace = [accesses_of([[1, 2]]), accesses_of([[3, 4]]), accesses_of([[1, 2, 3, 4]])]
    with pytest.raises(PlanError, match="step 1: a window of 2 steps needs 4 slots, but the cache holds 3"):
        records_of("lookahead", [*trace[:2], accesses_of([[1, 2, 3]])], 3, 10, window_steps=2)
    records_of("lookahead", trace, 4, 10, window_steps=2)


def test_a_fixed_window_is_never_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory ends the default window, and of a fixed one only what was asked to; then it is refused, not cut."""
    trace = skewed_trace(seed=2, num_rows=400, num_steps=30, num_samples=8, num_lookups=4)
    whole = count(records_of("lookahead", trace, 400, 400, window_steps=12))
    free = count(records_of("lookahead", trace, 60, 400))
    monkeypatch.setattr(foresee.plan.upcoming, "WINDOW_BYTES", 3 * bytes_in_window(32, 32))
    assert count(records_of("lookahead", trace, 400, 400, window_steps=12)) == whole
    assert count(records_of("lookahead", trace, 60, 400)).num_fetched > free.num_fetched
    with pytest.raises(PlanError, match="step 0: a window of 12 steps takes more than the 2,000 bytes"):
        records_of("lookahead", trace, 400, 400, window_steps=12, window_bytes=2_000)


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_window_of_bytes_is_the_window_of_the_steps_they_hold(num_workers: int) -> None:
    """Batches of equal size, so that the steps can be counted; with several workers too."""
    rng = np.random.default_rng(1)
    rows = [rng.permutation(200)[:32] for _ in range(40)]
    trace = [Accesses(row.astype(np.int64), np.arange(0, 33, 4, dtype=np.int32)) for row in rows]
    for window in (2, 5):
        by_bytes = header_for(
            "lookahead", trace, capacity_rows=60, num_rows=200, window_bytes=(window + 1) * bytes_in_window(32, 32) - 1
        )
        header = replace(by_bytes, num_workers=num_workers)
        found = list(plan(make_planner(header, lambda steps: []), trace))
        expected: Planner = Lookahead(header, window_steps=window, window_bytes=None)
        if num_workers > 1:
            expected = Ownership(header, PLACEMENTS["location_aware"], window_steps=window, window_bytes=None)
        wanted = list(plan(expected, trace))
        assert [record.evict.row.tolist() for record in found] == [record.evict.row.tolist() for record in wanted]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_window_that_begins_short_grows_by_what_is_planned(num_workers: int) -> None:
    """Two batches are read for each step until the window is as long as it gets; what is known early decides alike."""
    of_batch = bytes_in_window(32, 32)
    rng = np.random.default_rng(1)
    rows = [rng.permutation(200)[:32] for _ in range(40)]
    trace = [Accesses(row.astype(np.int64), np.arange(0, 33, 4, dtype=np.int32)) for row in rows]
    header = header_for("lookahead", trace, capacity_rows=60, num_rows=200,
                        window_bytes=9 * of_batch, window_first_bytes=3 * of_batch)  # fmt: skip
    header = replace(header, num_workers=num_workers)
    planner = make_planner(header, lambda steps: [])
    known = []
    for step, accesses in enumerate(trace):
        known += [step - record.step for record in planner.push(accesses) if record.worker == 0]
    late = 1 if num_workers == 1 else 2  # a record waits for what the steps after it still add to it
    assert known == [min(3 + 2 * late + step, 9 + late) for step in range(len(known))]
    records = list(plan(make_planner(header, lambda steps: []), trace))
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations


def test_a_fixed_window_holds_for_several_workers() -> None:
    trace = skewed_trace(seed=5, num_rows=400, num_steps=30, num_samples=8, num_lookups=4)
    one = header_for("lookahead", trace, capacity_rows=40, num_rows=400, window_steps=2, placement="contiguous")
    header = replace(one, num_workers=2)
    found = count(plan(make_planner(header, lambda steps: []), trace))
    short, long = (
        count(plan(Ownership(header, PLACEMENTS["contiguous"], window_steps=steps), trace)) for steps in (2, 30)
    )
    assert found.num_fetched == short.num_fetched > long.num_fetched


def test_an_id_outside_the_tables_is_named() -> None:
    with pytest.raises(PlanError, match="step 1: lookup 1 names row 10, but the tables have rows 0 to 9"):
        records_of("lookahead", [accesses_of([[1]]), accesses_of([[2, 10]])], 5, 10)


GOLDEN = {"none": 19797, "static": 8943, "lru": 11360, "lfu": 10374, "lookahead": 8146, "belady": 8146}


def test_golden_fetch_counts() -> None:
    """Correctness does not see waste: a planner that caches nothing is right too. These counts see it."""
    trace = skewed_trace(seed=7, num_rows=20_000, num_steps=60, num_samples=64, num_lookups=8)
    counted = {name: count(records_of(name, trace, 1500, 20_000)).num_fetched for name in EXACT}
    assert counted == GOLDEN


def test_versions_are_forgotten_only_after_the_window() -> None:
    """Without full memory a fetch may say 'unknown', but what it says is true, and recent write-backs are known."""
    trace = skewed_trace(seed=3, num_rows=5_000, num_steps=200, num_samples=16, num_lookups=4)
    header = header_for("lookahead", trace, capacity_rows=300, num_rows=5_000, remember_versions=0)
    records = list(plan(make_planner(header, lambda steps: trace[:steps]), trace))
    assert check(header, trace, records, None).right
    versions = np.concatenate([record.fetch.version for record in records])
    assert (versions == -1).any()
    assert (versions > 0).any()


def test_planning_in_the_middle_starts_cold_and_stays_right() -> None:
    """A run that resumes plans from its step on: nothing is cached, no version is known, and the rest is proved."""
    trace = skewed_trace(seed=5, num_rows=500, num_steps=30, num_samples=8, num_lookups=3)
    header = replace(header_for("lookahead", trace[12:], capacity_rows=80, num_rows=500), first_step=12)
    records = list(plan(make_planner(header, lambda steps: trace[12 : 12 + steps]), trace[12:]))
    assert [record.step for record in records] == list(range(12, 30))
    assert set(records[0].fetch.row.tolist()) == set(trace[12].rows.tolist())
    assert (records[0].fetch.version == UNKNOWN_VERSION).all()
    verdict = check(header, trace[12:], records, count(records))
    assert verdict.right, verdict.violations


def test_the_same_trace_gives_the_same_plan() -> None:
    trace = skewed_trace(seed=5, num_rows=500, num_steps=30, num_samples=8, num_lookups=3)
    first, second = (records_of("lookahead", trace, 80, 500) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one.unique, other.unique)
        assert np.array_equal(one.evict.row, other.evict.row)
        assert (one.not_before, one.digest) == (other.not_before, other.digest)
