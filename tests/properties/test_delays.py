"""Random traces under hostile timing: what the guards allow never reads a stale row; one batch less, and it does."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from foresee.errors import StaleReadError
from foresee.plan.record import Header, Record
from foresee.testing.delays import Choice, ScheduledStore, Turn, early_reads, late_reads, schedule
from trace_stream import TraceStream, header_of, random_stream, records_of, run_of, store_for
from whole_run import NO_DIFFERENCE, Outcome, differing_bytes, train

SEEDS = range(30)
PLANNERS = ("lookahead", "window", "lru", "none")


def plan_of(planner: str, stream: TraceStream) -> tuple[Header, list[Record]]:
    """Guards from the data alone: `fetch_ahead_steps` is too large to bind."""
    if planner == "window":
        header = header_of(stream, cache_rows=stream.num_rows, window_steps=2)
    else:
        header = header_of(stream, planner=planner, cache_rows=stream.largest_batch + 2)
    return header, records_of(stream, header)


@cache
def uncached(seed: int) -> Outcome:
    """The same training without cache or delays."""
    stream = random_stream(seed)
    return train(run_of(stream, header_of(stream, planner="none"), store_for(stream)))


def weakened(records: list[Record]) -> list[Record]:
    """The same plan with every guard one step too early."""
    return [replace(record, not_before=record.not_before - 1) for record in records]


def turns(words: str) -> list[Turn]:
    """ "r0 w0" is the fetch and then the write-back of step 0."""
    return [Turn("read" if word[0] == "r" else "write", int(word[1:])) for word in words.split()]


def either(seed: int) -> Choice:
    rng = random.Random(seed)
    return lambda: "read" if rng.random() < 0.5 else "write"


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_reads_a_stale_row(planner: str, seed: int) -> None:
    stream = random_stream(seed)
    header, records = plan_of(planner, stream)
    for choose in (early_reads, late_reads, either(seed)):
        store = ScheduledStore(store_for(stream), records, choose)
        outcome = train(run_of(stream, header, store, records))
        assert store.num_done == len(store.turns), "a turn was not taken: the store saw other calls than planned"
        assert store.num_stale == 0
        assert differing_bytes(uncached(seed), outcome) == NO_DIFFERENCE


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_guard_one_step_weaker_reads_stale_rows(planner: str) -> None:
    num_caught = 0
    for seed in SEEDS:
        stream = random_stream(seed)
        header, records = plan_of(planner, stream)
        weak = weakened(records)
        store = ScheduledStore(store_for(stream), weak, early_reads)
        try:
            train(run_of(stream, header, store, weak))
        except StaleReadError:
            num_caught += 1
            assert store.num_stale > 0
        else:
            assert store.num_stale == 0, "a stale row was read and nobody said so"
    assert num_caught > len(SEEDS) / 2, f"only {num_caught} of {len(SEEDS)} runs read a stale row: is the guard tight?"


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_short_fetch_ahead_is_as_exact(ahead: int) -> None:
    for seed in SEEDS[:10]:
        stream = random_stream(seed)
        header = header_of(stream, cache_rows=stream.largest_batch + 2, fetch_ahead_steps=ahead)
        records = records_of(stream, header)
        store = ScheduledStore(store_for(stream), records, early_reads)
        assert differing_bytes(uncached(seed), train(run_of(stream, header, store, records))) == NO_DIFFERENCE


def test_the_schedules_are_the_two_extremes() -> None:
    """Rows 0 and 1 take turns in a cache of one slot: each fetch of a row waits for its own write-back, no other."""
    stream = TraceStream([[[0]], [[1]], [[0]], [[2]]], num_rows=3)
    header = header_of(stream, planner="lru", cache_rows=1)
    records = records_of(stream, header)
    assert [record.not_before for record in records] == [-1, -1, 0, -1]
    assert schedule(records, early_reads) == turns("r0 r1 w0 r2 r3 w1 w2 w3")
    assert schedule(records, late_reads) == turns("r0 w0 r1 w1 r2 w2 r3 w3")
    assert schedule(weakened(records), early_reads)[:3] == turns("r0 r1 r2"), "row 0 is read before it is written"
