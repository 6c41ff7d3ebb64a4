"""Every way a run can end: what was trained is committed, an error arrives as itself, no thread stays behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
import torch

from foresee.arrays import Int64
from foresee.engine.cache import SlotCache
from foresee.engine.pipeline import Pipeline
from foresee.engine.planned_step import PlannedStep, Pooling, planned
from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.errors import PlanError, StoreError, UsageError
from foresee.plan.record import Record
from foresee.store.contract import Rows, Store
from foresee.store.parts import StoreWrapper
from trace_stream import TraceStream, header_of, random_stream, records_of, run_of, store_for
from whole_run import NO_DIFFERENCE, Dots, Outcome, all_rows, differing_bytes, outcome_of, train, train_step

NUM_STEPS = 24
DISK_FULL = StoreError("the disk is full")


class FailingStore(StoreWrapper):
    """Fails at the n-th read or write, counted from 0, and remembers what was committed afterwards."""

    def __init__(self, store: Store, *, read: int = -1, write: int = -1, commit: bool = False) -> None:
        super().__init__(store)
        self._fail_at = {"read": read, "write": write}
        self._fail_commit = commit
        self._calls = {"read": 0, "write": 0}
        self.failed = False
        self.commits_after_failure: list[int] = []

    def read(self, rows: Int64, out: Rows) -> None:
        self._count("read")
        self.inner.read(rows, out)

    def write(self, rows: Int64, source: Rows) -> None:
        self._count("write")
        self.inner.write(rows, source)

    def commit(self, step: int) -> None:
        if self.failed:
            self.commits_after_failure.append(step)
        if self._fail_commit:
            raise DISK_FULL
        self.inner.commit(step)

    def _count(self, kind: str) -> None:
        number, self._calls[kind] = self._calls[kind], self._calls[kind] + 1
        if number == self._fail_at[kind]:
            self.failed = True
            raise DISK_FULL


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("foresee-")]


@pytest.fixture
def stream() -> TraceStream:
    return random_stream(5, num_steps=NUM_STEPS)


def new_run(stream: TraceStream, store: Store | None = None, *, planner: str = "lru", first_step: int = 0) -> Run:
    header = header_of(stream, planner=planner, cache_rows=stream.largest_batch + 3, first_step=first_step)
    return run_of(stream, replace(header, fetch_ahead_steps=2), store_for(stream) if store is None else store)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


Body = Callable[[Step], object]


def loop(run: Run, body: Body) -> None:
    """The user's loop."""
    for step in run:
        body(step)


def trainer(model: torch.nn.Module) -> Body:
    """The body that trains as it should."""
    optimizer = sgd(model)
    return lambda step: train_step(step, model, optimizer)


def first_steps(stream: TraceStream, num_steps: int) -> Outcome:
    """The state after so many steps, from a stream that has no more: nothing was stopped."""
    rows = [batch.rows.reshape(batch.num_samples, -1).tolist() for batch in stream.batches()][:num_steps]
    return train(new_run(TraceStream(rows, stream.num_rows)))


def trained_until(run: Run, stop: int) -> Outcome:
    """Trains and breaks right after the update of step `stop` - 1."""
    model = Dots()
    optimizer = sgd(model)
    for step in run:
        train_step(step, model, optimizer)
        if step.index + 1 == stop:
            break
    return outcome_of(run.tables.store, model, [])


@pytest.mark.parametrize("stop", [1, 7, NUM_STEPS])
def test_a_break_leaves_the_state_after_the_last_updated_step(stream: TraceStream, stop: int) -> None:
    stopped = trained_until(new_run(stream), stop)
    assert stopped.committed_step == stop
    assert differing_bytes(stopped, first_steps(stream, stop)) == NO_DIFFERENCE


@pytest.mark.parametrize("updated", [False, True])
def test_an_error_in_the_body_is_the_loops_own_and_keeps_what_was_trained(stream: TraceStream, updated: bool) -> None:
    run, model = new_run(stream), Dots()
    train_well, error = trainer(model), KeyError("the user's own")

    def body(step: Step) -> None:
        if step.index == 9 and not updated:
            raise error
        train_well(step)
        if step.index == 9:
            raise error

    with pytest.raises(KeyError) as caught:
        loop(run, body)
    assert caught.value is error
    num_steps = 10 if updated else 9
    outcome = outcome_of(run.tables.store, model, [])
    assert outcome.committed_step == num_steps
    assert differing_bytes(outcome, first_steps(stream, num_steps)) == NO_DIFFERENCE


def test_forgetting_the_update_is_said(stream: TraceStream) -> None:
    run, train_well = new_run(stream), trainer(Dots())
    with pytest.raises(UsageError, match=r"step 4 was not updated; call step.update\(\) before the next step"):
        loop(run, lambda step: train_well(step) if step.index < 4 else None)
    assert run.tables.store.committed_step == run.steps_done == 4


def test_updating_twice_is_said(stream: TraceStream) -> None:
    run, model = new_run(stream), Dots()
    train_well = trainer(model)

    def body(step: Step) -> None:
        train_well(step)
        step.update()

    with pytest.raises(UsageError, match=r"step 0 was updated already; call step.update\(\) once for each step"):
        loop(run, body)
    assert differing_bytes(outcome_of(run.tables.store, model, []), first_steps(stream, 1)) == NO_DIFFERENCE


def test_updating_without_backward_is_said(stream: TraceStream) -> None:
    run = new_run(stream)
    with pytest.raises(UsageError, match="step 0: its embeddings have no gradient"):
        loop(run, lambda step: step.update())
    assert run.tables.store.committed_step == 0
    assert not all_rows(run.tables.store).versions.any()


def test_a_run_is_started_once(stream: TraceStream) -> None:
    run = new_run(stream)
    train(run)
    with pytest.raises(UsageError, match="this run was started already"):
        next(iter(run))
    other = new_run(stream)
    for _ in other:
        with pytest.raises(UsageError, match="this run was started already"):
            next(iter(other))
        break


@pytest.mark.parametrize("at", [0, 1, 6])
def test_a_failing_read_reaches_the_loop_as_itself(stream: TraceStream, at: int) -> None:
    """Steps before it were whole, so they are kept."""
    store = FailingStore(store_for(stream), read=at)
    run, model = new_run(stream, store), Dots()
    with pytest.raises(StoreError) as caught:
        loop(run, trainer(model))
    assert caught.value is DISK_FULL
    assert store.committed_step == run.steps_done < NUM_STEPS
    outcome = outcome_of(store, model, [])
    if run.steps_done:
        assert differing_bytes(outcome, first_steps(stream, run.steps_done)) == NO_DIFFERENCE


@pytest.mark.parametrize("at", [0, 1, 6])
@pytest.mark.parametrize("planner", ["lru", "none", "lookahead"])
def test_after_a_failing_write_nothing_is_committed(stream: TraceStream, planner: str, at: int) -> None:
    store = FailingStore(store_for(stream), write=at)
    run, model = new_run(stream, store, planner=planner), Dots()
    with pytest.raises(StoreError) as caught:
        loop(run, trainer(model))
    assert caught.value is DISK_FULL
    assert store.failed
    assert store.commits_after_failure == []
    assert store.committed_step == 0


def test_a_failing_write_that_no_read_waits_for_reaches_the_loop() -> None:
    """No row comes back and all fetches run ahead: only handing over the next write-back can tell the loop."""
    stream = TraceStream([[[step]] for step in range(12)], num_rows=12)
    store = FailingStore(store_for(stream), write=0)
    run = run_of(stream, header_of(stream, planner="none", cache_rows=1), store)
    with pytest.raises(StoreError) as caught:
        loop(run, trainer(Dots()))
    assert caught.value is DISK_FULL
    assert run.steps_done < 12, "it was told before the end"
    assert store.commits_after_failure == []


def test_a_write_that_fails_at_the_very_end_is_not_lost(stream: TraceStream) -> None:
    num_writes = sum(len(record.evict) > 0 for record in records_of(stream, new_run(stream).header))
    store = FailingStore(store_for(stream), write=num_writes - 1)
    with pytest.raises(StoreError, match="the disk is full"):
        train(new_run(stream, store))
    assert store.committed_step == 0
    assert store.commits_after_failure == []


def test_a_failing_commit_reaches_the_loop(stream: TraceStream) -> None:
    store = FailingStore(store_for(stream), commit=True)
    with pytest.raises(StoreError, match="the disk is full"):
        train(new_run(stream, store))


def test_a_failing_commit_in_the_middle_reaches_the_loop(stream: TraceStream) -> None:
    store = FailingStore(store_for(stream), commit=True)
    run, model = new_run(stream, store), Dots()
    train_well = trainer(model)

    def body(step: Step) -> None:
        train_well(step)
        run.commit()

    with pytest.raises(StoreError, match="the disk is full"):
        loop(run, body)
    assert run.steps_done == 1


def test_an_update_that_is_interrupted_is_never_committed(stream: TraceStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C inside an update leaves rows half updated; they are no state of any step."""
    run, train_well = new_run(stream), trainer(Dots())
    update = SlotCache.update

    def interrupted(cache: SlotCache, work: PlannedStep, gradient: torch.Tensor) -> None:
        update(cache, work, gradient)
        if work.record.step == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SlotCache, "update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop(run, train_well)
    assert run.steps_done == 3
    assert run.tables.store.committed_step == 0


def test_a_step_cannot_be_updated_after_its_loop(stream: TraceStream) -> None:
    for step in new_run(stream):
        step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
        break
    with pytest.raises(UsageError, match="step 0 belongs to a loop that has ended; use its rows and update it inside"):
        step.update()


def test_a_planner_that_fails_ends_the_run_after_the_steps_it_planned(stream: TraceStream) -> None:
    run, model = new_run(stream), Dots()
    kept = records_of(stream, run.header)

    def records() -> Iterator[Record]:
        yield from kept[:11]
        raise PlanError("the plan ends here")

    run.records = records()
    with pytest.raises(PlanError, match="the plan ends here"):
        loop(run, trainer(model))
    outcome = outcome_of(run.tables.store, model, [])
    assert outcome.committed_step == run.steps_done == 11
    assert differing_bytes(outcome, first_steps(stream, 11)) == NO_DIFFERENCE


def test_a_batch_that_does_not_fit_ends_the_run_after_the_steps_before_it() -> None:
    stream = TraceStream([[[0, 1]], [[2, 3]], [[0, 1]], [[1, 2], [3, 4]], [[5, 6]]], num_rows=8)
    run, model = run_of(stream, header_of(stream, planner="lru", cache_rows=3), store_for(stream)), Dots()
    with pytest.raises(PlanError, match=r"step 3 touches 4 distinct rows, but the cache holds 3; .* is 4 rows"):
        loop(run, trainer(model))
    # The last planned step waits for its successor, which decides what it evicts: it was never handed out.
    assert run.tables.store.committed_step == run.steps_done == 2
    assert differing_bytes(outcome_of(run.tables.store, model, []), first_steps(stream, 2)) == NO_DIFFERENCE


def test_a_plan_of_other_rows_is_refused_where_it_differs(stream: TraceStream) -> None:
    other = random_stream(6, num_steps=NUM_STEPS)
    run = new_run(stream)
    run.records = records_of(other, header_of(other, cache_rows=stream.num_rows))
    with pytest.raises(PlanError, match="step 0: the plan was made for other rows than this log gives"):
        train(run)
    assert run.tables.store.committed_step == 0


def test_a_plan_that_is_too_short_is_noticed(stream: TraceStream) -> None:
    run = new_run(stream)
    run.records = records_of(stream, run.header)[:-1]
    with pytest.raises(PlanError, match=f"step {NUM_STEPS - 1}: the plan ends before it"):
        train(run)
    assert run.tables.store.committed_step == run.steps_done == NUM_STEPS - 1


def test_a_plan_that_is_too_long_is_noticed(stream: TraceStream) -> None:
    run = new_run(stream)
    kept = records_of(stream, run.header)
    run.records = [*kept, kept[-1]]
    with pytest.raises(PlanError, match="the plan goes on after the last step of this log"):
        train(run)


@pytest.mark.parametrize("planner", ["lookahead", "lru", "static", "none", "belady"])
@pytest.mark.parametrize("stops", [(1,), (5, 6), (3, 12, 23)])
def test_resuming_gives_the_bytes_of_a_run_without_interruption(
    stream: TraceStream, planner: str, stops: tuple[int, ...]
) -> None:
    store, model = store_for(stream), Dots()
    optimizer = sgd(model)
    for stop in (*stops, NUM_STEPS):
        for step in new_run(stream, store, planner=planner, first_step=store.committed_step):
            train_step(step, model, optimizer)
            if step.index + 1 == stop:
                break
        assert store.committed_step == stop
    whole = train(new_run(stream, planner=planner))
    assert differing_bytes(outcome_of(store, model, []), whole) == NO_DIFFERENCE


def test_a_plan_from_another_step_is_refused(stream: TraceStream) -> None:
    with pytest.raises(PlanError, match="the plan begins at step 4, the tables are at step 0; plan from there"):
        new_run(stream, first_step=4)


def test_a_flush_makes_reads_current_and_evicts_nothing(stream: TraceStream) -> None:
    store = store_for(stream)
    run, model = new_run(stream, store), Dots()
    optimizer = sgd(model)
    for step in run:
        train_step(step, model, optimizer)
        before = run.counters.num_fetched
        if step.index % 5 == 2:
            run.flush()
            flushed = all_rows(store)
            expected = first_steps(stream, step.index + 1)
            assert np.array_equal(flushed.values, expected.rows.values)
            assert np.array_equal(flushed.state, expected.rows.state)
            assert np.array_equal(flushed.versions, expected.rows.versions)
            assert store.committed_step == 0, "a flush is not a commit"
        assert run.counters.num_fetched == before
    assert run.counters == train_counters(stream), "a flush made rows move that the plan did not"
    assert differing_bytes(outcome_of(store, model, []), first_steps(stream, NUM_STEPS)) == NO_DIFFERENCE


def train_counters(stream: TraceStream) -> object:
    run = new_run(stream)
    train(run)
    return run.counters


def test_a_flush_writes_each_changed_row_once() -> None:
    class Counted(FailingStore):
        num_rows_written = 0

        def write(self, rows: Int64, source: Rows) -> None:
            self.num_rows_written += len(rows)
            super().write(rows, source)

    stream = TraceStream([[[0, 1]], [[1, 2]], [[0, 2]]], num_rows=3)
    store = Counted(store_for(stream))
    run, model = run_of(stream, header_of(stream, cache_rows=3), store), Dots()
    optimizer = sgd(model)
    written = []
    for step in run:
        train_step(step, model, optimizer)
        run.flush()
        run.flush()
        written.append(store.num_rows_written)
    assert written[:2] == [2, 4], "the rows of the step, once"


def test_leaving_a_pipeline_that_nobody_used_ends_its_threads(stream: TraceStream) -> None:
    header = header_of(stream)
    with Pipeline(planned(stream, header, Pooling.of([False, False])), store_for(stream), header):
        pass


def test_a_source_without_end_ends_with_the_pipeline() -> None:
    stream = TraceStream([[[0, 1]]], num_rows=2)
    header = header_of(stream, fetch_ahead_steps=1)
    work = next(planned(stream, header, Pooling.of([False, False])))
    with Pipeline(repeat(work), store_for(stream), header) as pipeline:
        next(pipeline.ready())
