"""A saved plan comes back as it was written, or as a sentence: whatever is cut off, flipped or invented."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foresee.data import ClickLog, tiny
from foresee.engine.header import make_header
from foresee.engine.optimizers import RowwiseAdagrad
from foresee.engine.planned_step import Pooling, accesses_of
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.errors import PlanError
from foresee.plan import find, make_planner, plan, trainable
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.format import columns as plan_columns
from foresee.plan.format import file
from foresee.plan.format.columns import CHECKSUM, FIRST_SCHEMA, NEXT_USE, SCHEMA, batch_of, checksum
from foresee.plan.format.file import PlanFile, write_plan
from foresee.plan.record import Accesses, Header, Record, Transfers
from foresee.store.contract import Rows
from foresee.testing.traces import header_for, largest_batch, skewed_trace, traces

SAME_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def records_of(header: Header, trace: list[Accesses]) -> list[Record]:
    return list(plan(make_planner(header, lambda steps: trace[:steps]), trace))


def assert_equal(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if is_dataclass(left):
        for field in fields(left):
            assert_equal(getattr(left, field.name), getattr(right, field.name))
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert np.array_equal(left, right)
    else:
        assert left == right


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    """A small plan of eight steps, with something in every column."""
    trace = skewed_trace(seed=1, num_rows=60, num_steps=8, num_samples=4, num_lookups=3)
    header = header_for("lookahead", trace, capacity_rows=14, num_rows=60)
    moved = Transfers(*(np.array([0], np.int32) for _ in range(4)))
    records = [replace(record, recv=moved, send=moved, drop=record.unique[:1]) for record in records_of(header, trace)]
    path = tmp_path_factory.mktemp("kept") / "plan.arrow"
    write_plan(path, header, records)
    return path, records


@pytest.mark.parametrize("name", sorted(trainable()))
@SAME_FOLDER
@given(case=traces(), slack=st.integers(0, 6))
def test_round_trip_of_every_planner(name: str, case: tuple[int, list[Accesses]], slack: int, tmp_path: Path) -> None:
    num_rows, trace = case
    header = header_for(name, trace, capacity_rows=max(1, largest_batch(trace)) + slack, num_rows=num_rows)
    records = records_of(header, trace)
    counters = write_plan(tmp_path / "plan.arrow", header, records)
    again = PlanFile.open(tmp_path / "plan.arrow")
    assert (again.header, again.counters) == (header, counters)
    assert counters == count(records)
    for left, right in zip(again.records(), records, strict=True):
        assert_equal(left, right)


@SAME_FOLDER
@given(case=traces(), slack=st.integers(0, 6))
def test_a_kept_plan_is_proved_by_the_checker(case: tuple[int, list[Accesses]], slack: int, tmp_path: Path) -> None:
    num_rows, trace = case
    header = header_for("lookahead", trace, capacity_rows=max(1, largest_batch(trace)) + slack, num_rows=num_rows)
    write_plan(tmp_path / "plan.arrow", header, records_of(header, trace))
    kept = PlanFile.open(tmp_path / "plan.arrow")
    verdict = check(kept.header, trace, kept.records(), kept.counters)
    assert verdict.right, verdict.violations


@pytest.mark.parametrize("first", [0, 1, 5, 7, 8])
def test_reading_from_a_step_on(kept: tuple[Path, list[Record]], first: int) -> None:
    path, records = kept
    for left, right in zip(PlanFile.open(path).records(first), records[first:], strict=True):
        assert_equal(left, right)


def read_all(path: Path) -> list[Record]:
    return list(PlanFile.open(path).records())


@settings(SAME_FOLDER, max_examples=200)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_plan_cut_at_any_byte_is_a_sentence(share: float, kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    whole = kept[0].read_bytes()
    (tmp_path / "cut.arrow").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(PlanError, match=r"cut\.arrow: .*(plan again|make a plan)"):
        PlanFile.open(tmp_path / "cut.arrow")


def test_a_cut_plan_says_where_it_ends(kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    whole = kept[0].read_bytes()
    (tmp_path / "cut.arrow").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(PlanError, match=r"the plan ends after step [2345] of 8; plan again"):
        PlanFile.open(tmp_path / "cut.arrow")
    (tmp_path / "cut.arrow").write_bytes(whole[:-1])
    with pytest.raises(PlanError, match="the end of the plan is damaged; plan again"):
        PlanFile.open(tmp_path / "cut.arrow")


@settings(SAME_FOLDER, max_examples=600)
@given(share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_a_sentence_or_harmless(
    share: float, bit: int, kept: tuple[Path, list[Record]], tmp_path: Path
) -> None:
    """Harmless: Arrow aligns with bytes that mean nothing. No flip gives other numbers, and none another error."""
    damaged = bytearray(kept[0].read_bytes())
    damaged[int(share * len(damaged))] ^= 1 << bit
    (tmp_path / "flipped.arrow").write_bytes(damaged)
    try:
        records = read_all(tmp_path / "flipped.arrow")
    except PlanError:
        return
    for left, right in zip(records, kept[1], strict=True):
        assert_equal(left, right)


@SAME_FOLDER
@given(junk=st.binary(max_size=300))
def test_junk_is_a_sentence(junk: bytes, tmp_path: Path) -> None:
    (tmp_path / "junk.arrow").write_bytes(junk)
    with pytest.raises(PlanError, match=r"junk\.arrow: "):
        PlanFile.open(tmp_path / "junk.arrow")


def test_no_file_a_folder_and_another_arrow_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no such file; make a plan with `foresee plan"):
        PlanFile.open(tmp_path / "none.arrow")
    with pytest.raises(PlanError, match="it cannot be read"):
        PlanFile.open(tmp_path)
    with pa.OSFile(str(tmp_path / "other.arrow"), "w") as sink, pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(pa.record_batch([pa.array([], field.type) for field in SCHEMA], schema=SCHEMA))
    with pytest.raises(PlanError, match="this is not a plan, or its beginning is damaged; plan again"):
        PlanFile.open(tmp_path / "other.arrow")


def test_another_version_is_named(kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    header = replace(PlanFile.open(kept[0]).header, format_version=7)
    write_plan(tmp_path / "later.arrow", header, kept[1])
    with pytest.raises(PlanError, match=r"format version 7, this program reads 1 and 2; plan again, or use"):
        PlanFile.open(tmp_path / "later.arrow")


def test_a_plan_of_the_first_version_is_read_without_next_uses(
    kept: tuple[Path, list[Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written as the releases before wrote it: without the column, and with a checksum that knows nothing of it."""

    def first_version(record: Record) -> pa.RecordBatch:
        batch = batch_of(record)
        scalars = {name: batch.column(name)[0].as_py() for name in plan_columns.SCALARS}
        names = [name for name in plan_columns.ARRAYS if name != NEXT_USE]
        arrays = {name: batch.column(name).flatten().to_numpy() for name in names}
        columns = [batch.column(field.name) for field in FIRST_SCHEMA if field.name != CHECKSUM]
        return pa.record_batch([*columns, pa.array([checksum(scalars, arrays)], pa.uint32())], schema=FIRST_SCHEMA)

    monkeypatch.setattr(file, "SCHEMA", FIRST_SCHEMA)
    monkeypatch.setattr(file, "batch_of", first_version)
    empty = [pa.array([], field.type) for field in FIRST_SCHEMA]
    monkeypatch.setattr(file, "empty_batch", lambda: pa.record_batch(empty, schema=FIRST_SCHEMA))
    header = replace(PlanFile.open(kept[0]).header, format_version=1)
    write_plan(tmp_path / "first.arrow", header, kept[1])
    monkeypatch.undo()
    for left, right in zip(read_all(tmp_path / "first.arrow"), kept[1], strict=True):
        assert_equal(left, replace(right, evict=replace(right.evict, next_use=np.empty(0, np.int32))))


def test_a_plan_that_would_reach_beyond_the_cache_is_refused(kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    """With right checksums: what a stranger could write. The kernels would follow such a slot into other memory."""
    header = PlanFile.open(kept[0]).header
    far = np.array([header.capacity_rows], np.int32)
    last = kept[1][-1]
    inventions = {
        "unique": replace(last, unique=far),
        "inverse": replace(last, inverse=far),
        "samples": replace(last, samples=-far),
        "evict.next_use": replace(last, evict=replace(last.evict, next_use=last.evict.next_use - 1)),
        "fetch.row": replace(last, fetch=replace(last.fetch, row=last.fetch.row + header.num_rows)),
        "fetch.version": replace(last, fetch=replace(last.fetch, version=far.repeat(99))),
        "evict.slot": replace(last, evict=replace(last.evict, slot=last.evict.slot - 99)),
        "recv.kind": replace(last, recv=replace(last.recv, kind=far)),
        "drop": replace(last, drop=far),
        "its fetch waits": replace(last, not_before=last.step),
    }
    for name, record in inventions.items():
        write_plan(tmp_path / "plan.arrow", header, [*kept[1][:-1], record])
        with pytest.raises(PlanError, match=rf"the record of step 7, worker 0 is damaged: {name} .*; plan again"):
            read_all(tmp_path / "plan.arrow")


def test_records_out_of_order_are_refused(kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    header = PlanFile.open(kept[0]).header
    write_plan(tmp_path / "plan.arrow", header, kept[1][::-1])
    with pytest.raises(PlanError, match="step 0, worker 0 is damaged: step 7 of worker 0 stands in its place"):
        read_all(tmp_path / "plan.arrow")


def test_nothing_is_kept_of_a_plan_that_fails(kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    header = PlanFile.open(kept[0]).header

    def failing() -> Iterator[Record]:
        yield kept[1][0]
        raise OSError(28, "No space left on device")

    with pytest.raises(PlanError, match=r"cannot be written \(No space left on device\) and nothing was kept"):
        write_plan(tmp_path / "plan.arrow", header, failing())
    with pytest.raises(PlanError, match="the plan has 3 records, its header promises 8"):
        write_plan(tmp_path / "plan.arrow", header, kept[1][:3])
    with pytest.raises(PlanError, match="cannot be written"):
        write_plan(tmp_path / "no" / "plan.arrow", header, kept[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("planner", ["herald", "replicated"])
def test_a_plan_with_more_than_the_columns_say_is_refused(planner: str, tmp_path: Path) -> None:
    """Pushes, refreshes and sums are for comparison; dropped without a word, the plan would come back another."""
    trace = skewed_trace(seed=1, num_rows=50, num_steps=6, num_samples=8, num_lookups=3)
    header = replace(header_for(planner, trace, capacity_rows=50, num_rows=50), num_workers=2)
    records = list(plan(find(planner).planner_to_compare(header, lambda num_steps: []), trace))
    with pytest.raises(PlanError, match=r"step \d, worker \d: its pushes, refreshes and sums over .* cannot be kept"):
        write_plan(tmp_path / "plan.arrow", header, records)
    assert list(tmp_path.iterdir()) == []


def test_progress_and_other_readers(kept: tuple[Path, list[Record]], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_plan(tmp_path / "plan.arrow", PlanFile.open(kept[0]).header, kept[1], lambda *now: seen.append(now))
    assert seen == [(number, 8) for number in range(1, 9)]
    with pa.OSFile(str(tmp_path / "plan.arrow")) as source:
        table = pa.ipc.open_stream(source).read_all()
    assert table.column("step").to_pylist() == list(range(8))
    metadata = table.schema.metadata
    assert json.loads(metadata[b"foresee.plan"])["planner"] == "lookahead"
    assert int(metadata[b"foresee.plan.crc32"]) == zlib.crc32(metadata[b"foresee.plan"])
    assert table.column("crc32")[0].as_py() == batch_of(kept[1][0]).column("crc32")[0].as_py()


def train(log: ClickLog, run: Run) -> Rows:
    """A few steps with gradients that depend on the rows; returns all rows of the tables."""
    weights = torch.linspace(-1, 1, run.tables.layout.width)
    for step in run:
        ((step.embeddings @ weights).sum(1) - step.labels).square().mean().backward()  # type: ignore[no-untyped-call]
        step.update()
    rows = Rows.empty(log.num_rows, run.tables.layout)
    run.tables.store.read(np.arange(log.num_rows), rows)
    return rows


def new_run(log: ClickLog, *, seed: int = 0, header: Header | None = None, kept: PlanFile | None = None) -> Run:
    stream = log.batches(batch_size=32, seed=seed)
    header = header or make_header(stream, planner="lookahead", cache_rows=150)
    tables = Tables.in_memory(log, dim=4, optimizer=RowwiseAdagrad(lr=0.1))
    records = None if kept is None else kept.records()
    return Run(stream, tables, header, Pooling.of(log.mean_features), records=records)


def test_a_run_with_a_kept_plan_ends_with_the_same_bytes(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", num_samples=500)
    stream = log.batches(batch_size=32)
    header = make_header(stream, planner="lookahead", cache_rows=150)
    trace = [accesses_of(batch) for batch in stream.batches()]
    write_plan(tmp_path / "plan.arrow", header, records_of(header, trace))
    kept = PlanFile.open(tmp_path / "plan.arrow")
    alone, replayed = train(log, new_run(log)), train(log, new_run(log, header=kept.header, kept=kept))
    for name in ("values", "state", "versions"):
        assert getattr(alone, name).tobytes() == getattr(replayed, name).tobytes()
    with pytest.raises(PlanError, match="another log, seed, batch size or number of epochs; plan this run again"):
        new_run(log, seed=1, header=kept.header, kept=kept)
    forged = replace(kept.header, stream_digest=log.batches(batch_size=32, seed=1).digest)
    with pytest.raises(PlanError, match="step 0: the plan was made for other rows than this log gives"):
        train(log, new_run(log, seed=1, header=forged, kept=kept))
