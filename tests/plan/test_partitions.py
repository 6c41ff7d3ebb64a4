"""Whole partitions come and go, planned by any policy, proved by the one checker, and train to the bytes of rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresee.engine.header import make_header
from foresee.engine.planned_step import planned_records
from foresee.errors import PlanError
from foresee.plan import make_planner, plan, trainable
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.format.file import PlanFile, write_plan
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION, Accesses, Header, Record
from foresee.plan.variants import staged_rows_max
from foresee.run.memory import memory_needed
from foresee.testing.traces import accesses_of, header_for, traces
from trace_stream import TraceStream, layout_of, random_stream, run_of, store_for
from whole_run import NO_DIFFERENCE, Dots, differing_bytes, train


def records_of(header: Header, trace: list[Accesses]) -> list[Record]:
    return list(plan(make_planner(header, lambda steps: trace[:steps]), trace))


def largest_batch(trace: list[Accesses], size: int) -> int:
    return max(1, *(len(np.unique(accesses.rows // size)) for accesses in trace)) * size


def rows_of(partitions: set[int], size: int, num_rows: int) -> list[int]:
    return [row for partition in sorted(partitions) for row in range(partition * size, (partition + 1) * size)
            if row < num_rows]  # fmt: skip


Case = tuple[int, list[Accesses]]


@pytest.mark.parametrize("name", sorted(trainable()))
@given(
    case=traces(num_rows_max=40), size=st.integers(2, 7), more=st.integers(0, 12), ahead=st.integers(0, 4),
    remember=st.booleans(), read_only=st.booleans(),
)  # fmt: skip
def test_every_planner_moves_whole_partitions(
    name: str, case: Case, size: int, more: int, ahead: int, remember: bool, read_only: bool
) -> None:
    """Capacities that are no whole number of partitions, tables that end in the middle of one."""
    num_rows, trace = case
    header = header_for(
        name, trace, capacity_rows=largest_batch(trace, size) + more, num_rows=num_rows, fetch_ahead_steps=ahead,
        partition_rows=size, remember_versions=remember, read_only=read_only,
    )  # fmt: skip
    records = records_of(header, trace)
    verdict = check(header, trace, records, count(records))
    assert verdict.right, verdict.violations
    in_partitions = [Accesses(accesses.rows // size, accesses.sample_offsets) for accesses in trace]
    inside = replace(
        header, capacity_rows=header.capacity_rows // size, num_rows=-(-num_rows // size),
        options=replace(header.options, partition_rows=1, read_only=False),
    )  # fmt: skip
    for record, expected in zip(records, records_of(inside, in_partitions), strict=True):
        fetched, gone = set(expected.fetch.row.tolist()), set(expected.evict.row.tolist())
        assert record.fetch.row.tolist() == rows_of(fetched, size, num_rows)
        assert record.evict.row.tolist() == ([] if read_only else rows_of(gone, size, num_rows))
        assert len(record.drop if read_only else record.evict) == len(rows_of(gone, size, num_rows))
        for moved in (record.fetch, record.evict):
            assert (moved.slot % size == moved.row % size).all()
            assert (moved.slot // size)[moved.row % size == 0].tolist() == sorted(
                set((moved.slot // size).tolist()), key=(moved.slot // size).tolist().index
            )


@given(case=traces(num_rows_max=40), size=st.integers(2, 7), more=st.integers(0, 12))
def test_every_row_leaves_with_the_next_use_of_its_partition(case: Case, size: int, more: int) -> None:
    num_rows, trace = case
    capacity = largest_batch(trace, size) + more
    header = header_for("lookahead", trace, capacity_rows=capacity, num_rows=num_rows, partition_rows=size)
    for record in records_of(header, trace):
        for row, use in zip(record.evict.row.tolist(), record.evict.next_use.tolist(), strict=True):
            later = [step for step in range(record.step + 1, len(trace)) if row // size in trace[step].rows // size]
            assert use == (later[0] if later else NOT_KNOWN)


@given(case=traces(num_rows_max=40), size=st.integers(2, 5), more=st.integers(0, 30))
def test_what_lies_in_staging_is_bounded(case: Case, size: int, more: int) -> None:
    """A fetch is issued after `not_before`: then the rows of all steps up to that one are in their slots."""
    num_rows, trace = case
    capacity = largest_batch(trace, size) + more
    header = header_for("lru", trace, capacity_rows=capacity, num_rows=num_rows, partition_rows=size)
    records = records_of(header, trace)
    for record in records:
        if len(record.fetch):
            staged = [len(it.fetch) for it in records if record.not_before < it.step <= record.step]
            assert sum(staged) <= max(staged_rows_max(header), len(record.fetch))


def header_of(stream: TraceStream, planner: str, size: int, **more: Any) -> Header:
    capacity = max(len(np.unique(accesses.rows // size)) for accesses in stream.accesses) * size
    return make_header(
        stream, planner=planner, cache_rows=capacity + 1, fetch_ahead_steps=3, partition_rows=size, **more
    )  # fmt: skip


@pytest.mark.parametrize("planner", sorted(trainable()))
@pytest.mark.parametrize("size", [2, 5])
def test_partitions_train_to_the_bytes_of_rows(planner: str, size: int) -> None:
    for seed in range(3):
        stream = random_stream(seed)
        rows = make_header(stream, planner="none", cache_rows=stream.largest_batch)
        expected = train(run_of(stream, rows, store_for(stream)))
        run = run_of(stream, header_of(stream, planner, size), store_for(stream))
        assert differing_bytes(expected, train(run)) == NO_DIFFERENCE
        assert run.counters.num_fetched > 0


@pytest.mark.parametrize("planned_from", [None, 0])
def test_a_run_that_was_interrupted_ends_with_the_same_bytes(planned_from: int | None) -> None:
    stream, size = random_stream(7), 4
    expected = train(run_of(stream, header_of(stream, "lookahead", size), store_for(stream)))
    store = store_for(stream)
    stopped = TraceStream([batch.rows.reshape(batch.num_samples, -1).tolist() for batch in stream.batches()][:11], 24)
    model = Dots()
    train(run_of(stopped, header_of(stopped, "lookahead", size), store), model)
    header = header_of(stream, "lookahead", size, first_step=11, planned_from=planned_from)
    found = train(run_of(stream, header, store), model)
    assert differing_bytes(replace(expected, losses=found.losses), found) == NO_DIFFERENCE


def test_a_plan_is_kept(tmp_path: Path) -> None:
    stream = random_stream(5)
    header = header_of(stream, "lookahead", 3)
    write_plan(tmp_path / "plan.arrow", header, planned_records(stream, header))
    kept = PlanFile.open(tmp_path / "plan.arrow")
    assert kept.header == header
    check(kept.header, stream.accesses, kept.records(), kept.counters).require()


def test_versions_are_predicted_where_they_are_remembered() -> None:
    trace = [accesses_of([[0, 4]]), accesses_of([[8, 12]]), accesses_of([[1, 5]])]
    for remember, expected in ((True, [1, 0, 0, 0]), (False, [UNKNOWN_VERSION] * 4)):
        header = header_for(
            "lookahead", trace, capacity_rows=8, num_rows=16, partition_rows=4, remember_versions=remember
        )
        assert records_of(header, trace)[2].fetch.version[:4].tolist() == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda header: replace(header, num_workers=2), "partitions of 4 rows are planned for one worker, and this"),
        (lambda header: replace(header, capacity_rows=3), "a cache of 3 rows holds no partition of 4 rows; give it"),
        (
            lambda header: replace(header, capacity_rows=7),
            "step 0 touches 2 partitions of 4 rows, but the cache holds 7",
        ),
    ],
)
def test_what_cannot_be_planned_is_a_sentence(change: Callable[[Header], Header], sentence: str) -> None:
    trace = [accesses_of([[0], [4]])]
    header = change(header_for("lookahead", trace, capacity_rows=8, num_rows=9, partition_rows=4))
    with pytest.raises(PlanError, match=sentence):
        records_of(header, trace)


def test_rows_outside_the_tables_are_named() -> None:
    trace = [accesses_of([[0]]), accesses_of([[10]])]
    header = header_for("lookahead", trace, capacity_rows=8, num_rows=9, partition_rows=4)
    with pytest.raises(PlanError, match="step 1: lookup 0 names row 10, but the tables have rows 0 to 8"):
        records_of(header, trace)


def test_the_smallest_cache_that_works_is_said() -> None:
    stream = TraceStream([[[0, 5]], [[0, 1]], [[0, 9], [5, 13]]], num_rows=16)
    header = make_header(stream, planner="lookahead", cache_rows=7, partition_rows=4)
    with pytest.raises(PlanError, match=r"step 0 touches 2 partitions of 4 rows, .*for this log is 16 rows"):
        list(planned_records(stream, header))


def test_memory_for_staging_is_predicted() -> None:
    stream = random_stream(3, num_rows=2000, num_samples=2)
    header = header_of(stream, "lookahead", 100)
    batch, layout = next(stream.batches()), layout_of(2000)
    whole = len(np.unique(batch.rows // 100)) * 100
    staging = memory_needed(layout, header, batch, 0)["staging"]
    assert whole * layout.row_bytes < staging <= 8 * whole * layout.row_bytes
