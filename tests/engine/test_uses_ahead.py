"""Next uses beyond the window: right for every row, whatever the segments, and nothing else of a plan changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresee.engine import next_uses
from foresee.engine.header import make_header
from foresee.engine.next_uses import UsesAhead
from foresee.engine.planned_step import planned_records
from foresee.errors import PlanError
from foresee.plan import trainable
from foresee.plan.check import check
from foresee.plan.record import NOT_KNOWN, Evict, Header, Record
from foresee.plan.row_table import RowTable
from trace_stream import TraceStream, random_stream, run_of, store_for
from whole_run import NO_DIFFERENCE, differing_bytes, train


@pytest.fixture(autouse=True, scope="module")
def _small_segments() -> Iterator[None]:
    """Segments, buckets and chunks that a small trace goes beyond."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_uses, "FIRST_STEPS", 2)
        patch.setattr(next_uses, "CHUNK_ROWS", 3)
        patch.setattr(next_uses, "CHUNK_BYTES", 12)
        patch.setattr(next_uses, "NUM_BUCKETS", 5)
        yield


def header_of(stream: TraceStream, planner: str = "lookahead", **options: int | None) -> Header:
    header = make_header(stream, planner=planner, cache_rows=stream.largest_batch + 2, fetch_ahead_steps=3)
    known = {"uses_ahead_steps": 8, **options}
    return replace(header, options=replace(header.options, **known))  # type: ignore[arg-type]


def segments(header: Header, begun: int) -> list[tuple[int, int]]:
    """(first, end) of each, as the module says."""
    found, first, end = [], begun, header.first_step + header.num_steps
    while first < end:
        length = min(max(first - begun, 2), header.options.uses_ahead_steps or 0)
        found.append((first, min(first + length, end)))
        first = found[-1][1]
    return found


def expected(stream: TraceStream, header: Header, begun: int) -> dict[int, list[int]]:
    """By brute force: of each step, within its own segment and the next."""
    uses: dict[int, list[int]] = {}
    size, cut = header.options.partition_rows, segments(header, begun)
    for number, (first, end) in enumerate(cut):
        horizon = cut[number + 1][1] if number + 1 < len(cut) else end
        for step in range(first, end):
            units = [accesses.rows // size for accesses in stream.accesses]
            distinct = list(dict.fromkeys(units[step].tolist()))
            later = [[y for y in range(step + 1, horizon) if row in units[y]] for row in distinct]
            uses[step] = [some[0] if some else NOT_KNOWN for some in later]
    return uses


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99), num_steps=st.integers(1, 40), ahead=st.integers(1, 12), size=st.integers(1, 4),
    begun=st.integers(0, 6),
)  # fmt: skip
def test_next_uses_are_those_of_brute_force(seed: int, num_steps: int, ahead: int, size: int, begun: int) -> None:
    stream = random_stream(seed, num_steps=num_steps)
    begun = min(begun, num_steps - 1)
    header = header_of(stream, uses_ahead_steps=ahead, partition_rows=size)
    header = replace(header, first_step=begun, num_steps=num_steps - begun)
    wanted = expected(stream, header, begun)
    numbering = RowTable(num_rows=stream.num_rows, fresh_version=0)
    with UsesAhead(stream, header) as uses:
        for step in range(begun, num_steps):
            rows, _, _ = numbering.number(stream.accesses[step].rows // size, step)
            assert uses.of(step, rows).tolist() == wanted[step]


def without_hints(record: Record) -> list[object]:
    fetch, evict = record.fetch, record.evict
    arrays: list[Any] = [record.unique, record.inverse, record.apply, fetch.row, fetch.slot, fetch.version, evict.row,
                         evict.slot, evict.version, record.drop, record.samples]  # fmt: skip
    return [record.step, record.worker, record.not_before, record.digest, *(array.tolist() for array in arrays)]


@pytest.mark.parametrize("planner", sorted(trainable()))
@pytest.mark.parametrize("size", [1, 3])
def test_a_plan_stays_as_it_is_and_knows_more(planner: str, size: int) -> None:
    """The window is as short as can be."""
    num_known = [0, 0]
    for seed in range(4):
        stream = random_stream(seed, num_rows=80, num_steps=40)
        plans = []
        for number, ahead in enumerate((None, 8)):
            header = header_of(stream, planner, uses_ahead_steps=ahead, partition_rows=size, window_bytes=1)
            header = replace(header, capacity_rows=stream.largest_batch * size)
            plans.append(list(planned_records(stream, header)))
            check(header, stream.accesses, plans[-1], None).require()
            num_known[number] += sum(int((record.evict.next_use != NOT_KNOWN).sum()) for record in plans[-1])
        assert list(map(without_hints, plans[0])) == list(map(without_hints, plans[1]))
    assert num_known[1] > num_known[0]


def evictions(header: Header, stream: TraceStream) -> list[Evict]:
    return [record.evict for record in planned_records(stream, header) if record.step >= 20]


def test_a_plan_that_is_entered_says_what_the_whole_one_does() -> None:
    stream = random_stream(3, num_steps=40)
    whole = header_of(stream, window_steps=1)
    whole = replace(whole, capacity_rows=stream.num_rows)
    entered = replace(whole, first_step=20, num_steps=20, options=replace(whole.options, planned_from=0))
    for one, other in zip(evictions(whole, stream), evictions(entered, stream), strict=True):
        assert one.row.tolist() == other.row.tolist()
        assert one.next_use.tolist() == other.next_use.tolist()


@pytest.mark.parametrize("num_workers", [2, 3])
def test_many_workers_say_more_too(num_workers: int) -> None:
    stream = random_stream(5, num_rows=300, num_steps=40, num_samples=6)
    known = []
    for ahead in (None, 8):
        header = replace(header_of(stream, uses_ahead_steps=ahead, window_bytes=1), num_workers=num_workers)
        records = list(planned_records(stream, header))
        check(header, stream.accesses, records, None).require()
        known.append(sum(int((record.evict.next_use != NOT_KNOWN).sum()) for record in records))
    assert known[1] > known[0]


def test_training_gives_the_same_bytes_and_leaves_no_file(tmp_path: Path) -> None:
    stream = random_stream(2)
    outcomes = []
    for ahead in (None, 8):
        run = run_of(stream, header_of(stream, uses_ahead_steps=ahead), store_for(stream))
        run.scratch = tmp_path
        outcomes.append(train(run))
    assert differing_bytes(*outcomes) == NO_DIFFERENCE
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    stream = random_stream(2)
    with pytest.raises(
        PlanError, match=r"the next uses of rows cannot be kept there \(No space left on device\); free"
    ):
        list(planned_records(stream, header_of(stream), scratch=tmp_path))


def test_real_sizes_of_segments_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rng = np.random.default_rng(1)
    trace = (rng.random((60, 300, 4)) ** 3 * 20_000).astype(int).tolist()
    stream = TraceStream(trace, 20_000)
    header = replace(header_of(stream, window_steps=1), capacity_rows=5_000)
    records = list(planned_records(stream, header))
    check(header, stream.accesses, records, None).require()
