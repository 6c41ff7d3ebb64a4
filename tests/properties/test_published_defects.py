"""The defects of the published lookahead trainer, each brought into a real run, and the check of ours that catches it.

Every scenario trains twice: as it is, which must pass, and with the defect, which must be caught by the check named in
the assertion: bytes against the uncached run, versions on reads, the audit of versions at the end, or a refusal.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from foresee.arrays import Int64
from foresee.data.batch import Batch
from foresee.engine.cache import SlotCache
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad
from foresee.engine.planned_step import PlannedStep
from foresee.errors import PlanError, StaleReadError, UsageError
from foresee.plan.check import check
from foresee.plan.record import Evict, Fetch, Record
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskStore
from foresee.store.parts import StoreWrapper
from foresee.testing.delays import ScheduledStore, early_reads
from trace_stream import OPTIMIZER, TraceStream, header_of, layout_of, random_stream, records_of, run_of, store_for
from whole_run import NO_DIFFERENCE, Outcome, all_rows, differing_bytes, train

STATEFUL = [Adagrad(lr=0.5), RowwiseAdagrad(lr=0.5), LazyAdam(lr=0.5)]


@pytest.fixture
def stream() -> TraceStream:
    return random_stream(3)


def trained(stream: TraceStream, store: Store | None = None, optimizer: Optimizer = OPTIMIZER) -> Outcome:
    header = header_of(stream, cache_rows=stream.largest_batch + 2, fetch_ahead_steps=2)
    return train(run_of(stream, header, store or store_for(stream, optimizer), optimizer=optimizer))


def uncached(stream: TraceStream, optimizer: Optimizer = OPTIMIZER) -> Outcome:
    return train(run_of(stream, header_of(stream, planner="none"), store_for(stream, optimizer), optimizer=optimizer))


def true_versions(stream: TraceStream) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """What the trace alone says: one more than the last step that touched the row."""
    versions = np.zeros(stream.num_rows, np.int32)
    for batch in stream.batches():
        versions[batch.rows] = batch.step + 1
    return versions


def test_without_a_defect_everything_passes(stream: TraceStream) -> None:
    outcome = trained(stream)
    assert differing_bytes(uncached(stream), outcome) == NO_DIFFERENCE
    assert np.array_equal(outcome.rows.versions, true_versions(stream))


def test_a_cache_fill_that_does_nothing(stream: TraceStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cache(slots).data = values` assigns to the output of a forward pass: fetched values never reach the slots."""
    reference, fill = uncached(stream), SlotCache.fill

    def nothing(cache: SlotCache, fetch: Fetch, staging: Rows) -> None:
        fill(cache, fetch, Rows(cache._rows.values[fetch.slot].copy(), staging.state, staging.versions))

    monkeypatch.setattr(SlotCache, "fill", nothing)
    assert differing_bytes(reference, trained(stream))["values"] > 0


def test_gradients_of_rows_that_occur_once_are_dropped(stream: TraceStream, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, update = uncached(stream), SlotCache.update

    def dropping(cache: SlotCache, work: PlannedStep, gradient: torch.Tensor) -> None:
        once = np.bincount(work.record.inverse)[work.record.inverse] == 1
        kept = gradient.reshape(len(once), -1).clone()
        kept[torch.from_numpy(once)] = 0
        update(cache, work, kept.reshape(gradient.shape))

    monkeypatch.setattr(SlotCache, "update", dropping)
    different = differing_bytes(reference, trained(stream))
    assert different["values"] > 0
    assert different["state"] > 0


class LosesOneRow(StoreWrapper):
    """Equal chunks of unequal lists leave holes: one row of one write-back is never written."""

    def __init__(self, store: Store, lost: tuple[int, int]) -> None:
        super().__init__(store)
        self.lost = lost
        self.happened = False

    def write(self, rows: Int64, source: Rows) -> None:
        row, version = self.lost
        keep = (rows != row) | (source.versions != version)
        self.happened |= not keep.all()
        self.inner.write(rows[keep], Rows(source.values[keep], source.state[keep], source.versions[keep]))


def write_backs(stream: TraceStream) -> Iterator[tuple[int, int]]:
    """(row, version) of everything the plan writes back."""
    header = header_of(stream, cache_rows=stream.largest_batch + 2, fetch_ahead_steps=2)
    for record in records_of(stream, header):
        yield from zip(record.evict.row.tolist(), record.evict.version.tolist(), strict=True)


def test_a_lost_write_back_of_a_row_that_comes_back_is_a_stale_read(stream: TraceStream) -> None:
    final = true_versions(stream)
    returning = [(row, version) for row, version in write_backs(stream) if version != final[row]]
    assert len(returning) > 10
    for lost in returning[::5]:
        store = LosesOneRow(store_for(stream), lost)
        with pytest.raises(StaleReadError, match=f"row {lost[0]} was read in version .* the plan predicts {lost[1]}"):
            trained(stream, store)
        assert store.happened


def test_a_lost_write_back_that_nobody_reads_again_is_seen_by_the_audit(stream: TraceStream) -> None:
    """No read can notice it: only the versions at the end do."""
    final = true_versions(stream)
    last = [(row, version) for row, version in write_backs(stream) if version == final[row]]
    assert len(last) > 5
    for lost in last[::5]:
        store = LosesOneRow(store_for(stream), lost)
        outcome = trained(stream, store)
        assert store.happened
        assert np.flatnonzero(outcome.rows.versions != final).tolist() == [lost[0]]


def test_a_write_back_of_the_wrong_slot(stream: TraceStream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of the neighbour under this row's name; the versions alone would often agree."""
    reference, take = uncached(stream), SlotCache.take

    def wrong(cache: SlotCache, evict: Evict) -> Rows:
        taken = take(cache, evict)
        return Rows(np.roll(taken.values, 1, axis=0), taken.state, taken.versions)

    monkeypatch.setattr(SlotCache, "take", wrong)
    assert differing_bytes(reference, trained(stream))["values"] > 0


class SignalsBeforeApplied(StoreWrapper):
    """The server counts a write-back before it has applied it: it answers, and assigns the rows after the next read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._pending: list[tuple[Int64, Rows]] = []

    def write(self, rows: Int64, source: Rows) -> None:
        self._pending.append((rows, source))

    def read(self, rows: Int64, out: Rows) -> None:
        self.inner.read(rows, out)
        self._apply()

    def commit(self, step: int) -> None:
        self._apply()
        self.inner.commit(step)

    def _apply(self) -> None:
        while self._pending:
            self.inner.write(*self._pending.pop(0))


@pytest.mark.parametrize("planner", ["lookahead", "lru", "none"])
def test_applied_is_signalled_before_it_is_true(planner: str) -> None:
    num_caught = 0
    for seed in range(10):
        stream = random_stream(seed)
        header = header_of(stream, planner=planner, cache_rows=stream.largest_batch + 2)
        records = records_of(stream, header)
        well = ScheduledStore(store_for(stream), records, early_reads)
        train(run_of(stream, header, well, records))
        early = ScheduledStore(SignalsBeforeApplied(store_for(stream)), records, early_reads)
        try:
            train(run_of(stream, header, early, records))
        except StaleReadError:
            num_caught += 1
        assert well.num_stale == 0
    assert num_caught > 5, f"only {num_caught} of 10 runs read a row that was said to be there and was not"


def overshooting(records: list[Record], lookahead: int) -> list[Record]:
    """The published start-up: whole groups of a quarter of the window are fetched until the window is full."""
    interval = max(1, lookahead // 4)
    filled = math.ceil(lookahead / interval) * interval
    return [replace(record, not_before=-1) if record.step < filled else record for record in records]


def every(period: int, num_steps: int) -> TraceStream:
    """Each row comes back after exactly so many steps: right when the window has just let it go."""
    return TraceStream([[[step % period]] for step in range(num_steps)], period)


@pytest.mark.parametrize("lookahead", [8, 12, 16, 9, 13, 14, 22])
def test_a_window_that_the_cleanup_interval_does_not_divide(lookahead: int) -> None:
    """The published window counts the batch itself, so its L is our window of L - 1 more steps."""
    stream = every(lookahead, 3 * lookahead)
    header = header_of(stream, cache_rows=stream.num_rows, window_steps=lookahead - 1)
    planned = records_of(stream, header)
    assert check(header, stream.accesses, planned, None).right
    records = overshooting(planned, lookahead)
    divides = lookahead % (lookahead // 4) == 0
    assert check(header, stream.accesses, records, None).right == divides
    store = ScheduledStore(store_for(stream), records, early_reads)
    run = run_of(stream, header, store, records)
    if divides:
        train(run)
        return
    with pytest.raises(StaleReadError, match=f"step {lookahead}: row 0 was read in version 0, the plan predicts 1"):
        train(run)


@pytest.mark.parametrize("optimizer", STATEFUL, ids=lambda optimizer: optimizer.name)
def test_optimiser_state_that_belongs_to_the_slot(
    optimizer: Optimizer, stream: TraceStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row gets the state of whichever row had its slot before."""
    reference, fill = uncached(stream, optimizer), SlotCache.fill
    assert differing_bytes(reference, trained(stream, optimizer=optimizer)) == NO_DIFFERENCE

    def keeping_state(cache: SlotCache, fetch: Fetch, staging: Rows) -> None:
        fill(cache, fetch, Rows(staging.values, cache._rows.state[fetch.slot].copy(), staging.versions))

    monkeypatch.setattr(SlotCache, "fill", keeping_state)
    different = differing_bytes(reference, trained(stream, optimizer=optimizer))
    assert different["values"] > 0
    assert different["state"] > 0
    plain = uncached(stream, SGD(lr=0.5))
    assert differing_bytes(plain, trained(stream, optimizer=SGD(lr=0.5))) == NO_DIFFERENCE, "SGD cannot see it"


LARGE_IDS = [2**24, 2**24 + 1, 2**24 + 2, 2**31 - 1, 2**31, 2**31 + 1]
NUM_LARGE = 2**31 + 2**25


class ThroughFloat32(StoreWrapper):
    """Row ids that were float32 on their way, as in a tensor of mixed columns."""

    def read(self, rows: Int64, out: Rows) -> None:
        self.inner.read(np.minimum(rows.astype(np.float32).astype(np.int64), NUM_LARGE - 1), out)


@pytest.fixture
def large_store(tmp_path: Path) -> Iterator[Store]:
    """Two thousand million rows on disk; only those that are written take room."""
    store = DiskStore.create(tmp_path / "tables", layout_of(NUM_LARGE))
    yield store
    store.close()
    shutil.rmtree(tmp_path / "tables")


def large_stream() -> TraceStream:
    """Neighbours whose ids differ by one are touched at different steps, and come back."""
    steps = [[[LARGE_IDS[step % 6], LARGE_IDS[(step * 5 + 1) % 6]]] for step in range(18)]
    return TraceStream(steps, NUM_LARGE)


def test_row_ids_stay_exact_beyond_float32_and_int32(large_store: Store) -> None:
    stream = large_stream()
    train_large(stream, large_store)
    compact = TraceStream(
        [[[LARGE_IDS.index(row) for row in batch.rows.tolist()]] for batch in stream.batches()], len(LARGE_IDS)
    )
    written = Rows.empty(len(LARGE_IDS), large_store.layout)
    large_store.read(np.array(LARGE_IDS), written)
    assert written.versions.tolist() == true_versions(compact).tolist()
    assert len({values.tobytes() for values in written.values}) == len(LARGE_IDS), "every row has values of its own"
    beside = Rows.empty(4, large_store.layout)
    large_store.read(np.array([2**24 - 1, 2**24 + 3, 2**31 + 2, 0]), beside)
    assert not beside.versions.any(), "the neighbours were not touched"


def test_row_ids_that_pass_through_float32_are_caught(large_store: Store) -> None:
    with pytest.raises(StaleReadError, match="was read in version"):
        train_large(large_stream(), ThroughFloat32(large_store))


def train_large(stream: TraceStream, store: Store) -> None:
    run = run_of(stream, header_of(stream, planner="lru", cache_rows=2), store)
    for step in run:
        step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
        step.update()


def test_a_cache_smaller_than_the_plan_is_refused_and_not_shortened(stream: TraceStream) -> None:
    header = header_of(stream, cache_rows=stream.largest_batch + 2)
    records = records_of(stream, header)
    small = replace(header, capacity_rows=stream.largest_batch - 1)
    with pytest.raises(UsageError, match=r"slots holds indices from \d+ to \d+, but only 0 to \d+ exist"):
        train(run_of(stream, small, store_for(stream), records))
    store = store_for(stream)
    with pytest.raises(PlanError, match=r"touches \d+ distinct rows, but the cache holds \d+; the smallest cache"):
        train(run_of(stream, small, store))
    assert not all_rows(store).versions.any()


class OutOfOrder(TraceStream):
    """Loader processes that push into one queue: arrival order, not step order."""

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        batches = list(super().batches(first_step))
        batches[3], batches[4] = batches[4], batches[3]
        yield from batches


def test_batches_out_of_order_are_refused() -> None:
    steps = [[[step, step + 1]] for step in range(8)]
    stream = OutOfOrder(steps, 9)
    run = run_of(stream, header_of(stream, planner="lru", cache_rows=4), store_for(stream))
    with pytest.raises(PlanError, match="the batch of step 4 where step 3 is due"):
        train(run)
    assert run.tables.store.committed_step == run.steps_done == 3, "the steps before it are trained"


def test_records_out_of_order_are_refused() -> None:
    stream = TraceStream([[[0, 1]]] * 8, 2)
    header = header_of(stream)
    records = records_of(stream, header)
    records[3], records[4] = records[4], records[3]
    run = run_of(stream, header, store_for(stream), records)
    with pytest.raises(PlanError, match="step 3"):
        train(run)
    assert run.tables.store.committed_step == run.steps_done == 3
