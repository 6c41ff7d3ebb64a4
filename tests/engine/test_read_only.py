"""Rows that are only read: every step sees the store's own bytes, and the store stays as it is."""

from __future__ import annotations

from dataclasses import replace
from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foresee.arrays import Float32
from foresee.engine import run as loop
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.optimizers import SGD
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.engine.torch_cache import TorchCache
from foresee.errors import UsageError
from foresee.plan import make_planner, plan, trainable
from foresee.plan.check import check
from foresee.plan.count import count
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Header, PlannerOptions, Record
from foresee.store.contract import Rows
from foresee.store.memory import MemoryStore
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh
from foresee.testing.traces import header_for, largest_batch, skewed_trace, traces
from trace_stream import TraceStream, layout_of, random_stream
from whole_run import all_rows

FEATURES = SGD(lr=1.0)
"""Without a state."""


def records_of(header: Header, trace: list[Accesses]) -> list[Record]:
    return list(plan(make_planner(header, lambda steps: trace[:steps]), trace))


@pytest.mark.parametrize("name", sorted(trainable()))
@given(case=traces(), slack=st.integers(0, 6), ahead=st.integers(0, 3))
def test_every_planner_only_reads(name: str, case: tuple[int, list[Accesses]], slack: int, ahead: int) -> None:
    num_rows, trace = case
    header = header_for(
        name, trace, capacity_rows=max(1, largest_batch(trace)) + slack, num_rows=num_rows, fetch_ahead_steps=ahead,
        read_only=True,
    )  # fmt: skip
    records = records_of(header, trace)
    check(header, trace, records, count(records)).require()
    learning = records_of(replace(header, options=replace(header.options, read_only=False)), trace)
    for record, other in zip(records, learning, strict=True):
        assert not record.learns
        assert not len(record.evict)
        assert record.fetch.row.tolist() == other.fetch.row.tolist()
        assert set(record.fetch.version.tolist()) <= {UNKNOWN_VERSION}


@given(case=traces(samples_max=8), num_workers=st.integers(2, 4), slack=st.integers(0, 4))
def test_so_do_many_workers(case: tuple[int, list[Accesses]], num_workers: int, slack: int) -> None:
    num_rows, trace = case
    trace = [accesses for accesses in trace if accesses.num_samples >= num_workers]
    if trace:
        capacity = max(1, largest_batch(trace)) + slack
        header = header_for("lookahead", trace, capacity_rows=capacity, num_rows=num_rows, read_only=True)
        header = replace(header, num_workers=num_workers)
        records = records_of(header, trace)
        check(header, trace, records, count(records)).require()


def test_a_plan_that_applies_or_writes_back_is_refused() -> None:
    trace = skewed_trace(seed=4, num_rows=60, num_steps=24, num_samples=4, num_lookups=3)
    header = header_for("lookahead", trace, capacity_rows=largest_batch(trace) + 4, num_rows=60)
    only_read = replace(header, options=PlannerOptions(read_only=True))
    verdict = check(only_read, trace, records_of(header, trace), None)
    assert any("written back, but rows are only read" in violation for violation in verdict.violations)
    assert any("the rows applied are not the rows touched" in violation for violation in verdict.violations)
    verdict = check(header, trace, records_of(only_read, trace), None)
    assert any("the rows applied are not the rows touched" in violation for violation in verdict.violations)


def features(num_rows: int) -> MemoryStore:
    """Written once, before training."""
    store = MemoryStore(layout_of(num_rows, FEATURES))
    rows = Rows.empty(num_rows, store.layout)
    rows.values[:] = np.random.default_rng(2).normal(size=rows.values.shape)
    rows.versions[:] = 1
    store.write(np.arange(num_rows), rows)
    return store


def header_of(stream: TraceStream, num_workers: int = 1) -> Header:
    return make_header(
        stream, planner="lookahead", cache_rows=stream.largest_batch + 2, fetch_ahead_steps=3, num_workers=num_workers,
        read_only=True,
    )  # fmt: skip


@pytest.mark.parametrize("cache", ["SlotCache", "TorchCache"])
@pytest.mark.parametrize("looks", ["always", "sometimes"])
def test_every_step_reads_the_bytes_of_the_store(looks: str, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = random_stream(3, num_steps=40)
    store = features(stream.num_rows)
    before = all_rows(store)
    run = Run(stream, Tables(store, FEATURES), header_of(stream), Pooling.of([False] * stream.num_features))
    if cache == "TorchCache":
        monkeypatch.setattr(
            loop, "SlotCache",
            lambda *parts, capacity_rows, threads: TorchCache(
                *parts, capacity_rows=capacity_rows, device=torch.device("cpu")
            ),
        )  # fmt: skip
    for step, batch in zip(run, stream.batches(), strict=True):
        if looks == "always" or step.index % 3 == 0:
            step.update_during_backward()
            assert not step.embeddings.requires_grad
            expected: Float32 = before.values[batch.rows].reshape(step.embeddings.shape)
            assert step.embeddings.numpy().tobytes() == expected.tobytes()
        step.update()
        with pytest.raises(UsageError, match="was updated already"):
            step.update()
    assert store.committed_step == stream.num_steps
    after = all_rows(store)
    assert after.values.tobytes() == before.values.tobytes()
    assert set(after.versions.tolist()) == {1}
    assert run.counters.num_evicted == 0
    assert 0 < run.counters.num_fetched < run.counters.num_unique


def test_two_workers_read_the_bytes_of_the_store() -> None:
    stream = random_stream(4, num_steps=30, num_samples=6)
    shared, meeting = SharedStore(features(stream.num_rows), 2), Meeting(2)
    expected = all_rows(shared.store).values
    wrong: list[object] = []

    def work(rank: int) -> None:
        tables = Tables(shared.for_worker(rank), FEATURES)
        exchange = PeerExchange(tables.layout, ThreadMesh(meeting, rank))
        run = Run(
            stream, tables, header_of(stream, 2), Pooling.of([False] * stream.num_features), exchange=exchange,
            commit_at_end=False,
        )  # fmt: skip
        try:
            for step in run:
                mine = step._work.record.samples
                rows = next(stream.batches(step.index)).part(mine).rows
                found = step.embeddings.numpy().reshape(-1, expected.shape[1])
                wrong.extend([] if found.tobytes() == expected[rows].tobytes() else [(rank, step.index)])
                step.update()
        except BaseException as error:
            wrong.append(error)
            meeting.abort()
        exchange.close()

    threads = [Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
