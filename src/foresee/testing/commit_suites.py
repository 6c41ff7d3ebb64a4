"""The contracts of stores beyond `Store` as executable tests: two-phase commits, and guarded steps of several workers.

    class TestMyStore(TwoPhaseStoreSuite):             class TestMyGuards(GuardedStoreSuite):
        def make_store(self, folder, layout):              def make_workers(self, folder, layout, num_workers):
            return MyStore(folder, layout)                     return [...]  # a face of one store for each worker

`TwoPhaseStoreSuite` is what `foresee train` asks of `tables.store`, `GuardedStoreSuite` what several workers ask of a
store they share. Nothing here looks inside.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresee.arrays import Int64
from foresee.errors import ForeseeError
from foresee.plan.record import UNKNOWN_VERSION
from foresee.store.contract import GuardedStore, Rows, TwoPhaseStore
from foresee.store.layout import Layout
from foresee.testing.store_suite import (
    SUITE_LAYOUT,
    StoreSuite,
    assert_same,
    ids,
    initial_rows,
    random_rows,
    read_rows,
)

ALL_ROWS = np.arange(SUITE_LAYOUT.num_rows, dtype=np.int64)
WAIT_SECONDS = 0.05
"""Long enough for a read that does not wait to be seen; nothing is asserted about time."""


def rows_of_step(step: int) -> tuple[Int64, Rows]:
    """What step `step` writes: some rows for the first time, some again."""
    rng = np.random.default_rng(step)
    rows = rng.permutation(SUITE_LAYOUT.num_rows)[:400].astype(np.int64)
    return rows, random_rows(rng, len(rows), SUITE_LAYOUT, step)


def rows_after(step: int) -> Rows:
    """All rows after so many steps."""
    expected = initial_rows(SUITE_LAYOUT, ALL_ROWS)
    for k in range(1, step + 1):
        rows, source = rows_of_step(k)
        expected.values[rows], expected.state[rows] = source.values, source.state
        expected.versions[rows] = source.versions
    return expected


class TwoPhaseStoreSuite(StoreSuite):
    """What a store must do whose commits belong together with something else."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        store = self.make_store(tmp_path / "tables", SUITE_LAYOUT)
        assert isinstance(store, TwoPhaseStore), "it needs parts, prepare, settle and open_at"
        yield store
        store.close()

    def at(self, store: TwoPhaseStore, step: int) -> None:
        """The store is at this commit, and its rows are those of it."""
        assert store.committed_step == step
        assert_same(read_rows(store, ALL_ROWS), rows_after(step))

    def train(self, store: TwoPhaseStore, first: int, last: int) -> None:
        """Commits steps `first` to `last`, each in two phases."""
        for step in range(first, last + 1):
            store.write(*rows_of_step(step))
            store.prepare(step)
            store.settle(step)

    def openable(self, store: TwoPhaseStore) -> set[int]:
        return set.intersection(*(set(part.openable) for part in store.parts))

    def test_rows_are_read_through_every_phase(self, store: TwoPhaseStore) -> None:
        for step in range(1, 4):
            store.write(*rows_of_step(step))
            store.prepare(step)
            assert store.committed_step == step - 1
            assert_same(read_rows(store, ALL_ROWS), rows_after(step))
            store.settle(step)
            self.at(store, step)

    def test_the_last_commits_can_be_opened(self, store: TwoPhaseStore) -> None:
        self.train(store, 1, 3)
        assert self.openable(store) == {2, 3}
        store.write(*rows_of_step(4))
        store.prepare(4)
        assert self.openable(store) == {2, 3, 4}

    @pytest.mark.parametrize("step", [2, 3, 4])
    def test_each_of_them_gives_up_what_came_after(self, store: TwoPhaseStore, step: int) -> None:
        self.train(store, 1, 3)
        store.write(*rows_of_step(4))
        store.prepare(4)
        store.write(*rows_of_step(5))
        store.open_at(step)
        self.at(store, step)
        self.train(store, step + 1, 6)
        self.at(store, 6)

    def test_the_beginning_is_a_commit(self, store: TwoPhaseStore) -> None:
        self.train(store, 1, 1)
        store.open_at(0)
        self.at(store, 0)

    def test_a_phase_may_come_twice(self, store: TwoPhaseStore) -> None:
        store.write(*rows_of_step(1))
        store.prepare(1)
        store.prepare(1)
        store.settle(1)
        store.settle(1)
        self.at(store, 1)

    def test_what_was_not_prepared_is_not_settled(self, store: TwoPhaseStore) -> None:
        self.train(store, 1, 1)
        with pytest.raises(ForeseeError, match="step 7 is not prepared"):
            store.settle(7)
        self.at(store, 1)

    def test_a_commit_that_is_not_there_is_refused(self, store: TwoPhaseStore) -> None:
        self.train(store, 1, 3)
        with pytest.raises(ForeseeError, match="step 1"):
            store.open_at(1)
        self.at(store, 3)

    @pytest.mark.parametrize("step", [2, 3, 4])
    def test_a_crash_leaves_every_commit_that_was_promised(self, tmp_path: Path, step: int) -> None:
        if not self.durable:
            pytest.skip("this store does not outlive its process")
        folder = tmp_path / "tables"
        store = self.make_store(folder, SUITE_LAYOUT)
        assert isinstance(store, TwoPhaseStore)
        self.train(store, 1, 3)
        store.write(*rows_of_step(4))
        store.prepare(4)
        store.write(*rows_of_step(5))
        again = self.reopen(store, folder, SUITE_LAYOUT)
        assert isinstance(again, TwoPhaseStore)
        assert self.openable(again) == {2, 3, 4}
        again.open_at(step)
        self.at(again, step)
        again.close()


class GuardedStoreSuite:
    """What a store must do that several workers share step by step."""

    num_workers = 2

    def make_workers(self, folder: Path, layout: Layout, num_workers: int) -> Sequence[GuardedStore]:
        """One store, as each of its workers sees it."""
        raise NotImplementedError("def make_workers(self, folder, layout, num_workers)")

    @pytest.fixture
    def workers(self, tmp_path: Path) -> Any:
        workers = self.make_workers(tmp_path / "tables", SUITE_LAYOUT, self.num_workers)
        yield workers
        for worker in workers:
            with suppress(AttributeError):
                worker.close()  # type: ignore[attr-defined]

    def read(self, worker: GuardedStore, rows: Int64, not_before: int) -> Rows:
        """Rows of versions that the plan does not know."""
        out = Rows.empty(len(rows), SUITE_LAYOUT)
        worker.read_guarded(rows, np.full(len(rows), UNKNOWN_VERSION, np.int32), not_before, out)
        return out

    def finish(self, worker: GuardedStore, step: int) -> None:
        """A step after which nothing leaves the cache."""
        worker.write_step(step, ids(), Rows.empty(0, SUITE_LAYOUT))

    def test_it_keeps_the_contract(self, workers: Sequence[GuardedStore]) -> None:
        assert len(workers) == self.num_workers
        for worker in workers:
            assert isinstance(worker, GuardedStore), "it needs layout, requests_cost, read_guarded and write_step"
            assert worker.layout == SUITE_LAYOUT

    def test_nothing_is_waited_for_at_the_start(self, workers: Sequence[GuardedStore]) -> None:
        rows = ids(3, 1006, 0)
        assert_same(self.read(workers[0], rows, -1), initial_rows(SUITE_LAYOUT, rows))

    def test_a_write_is_applied_when_it_returns(self, workers: Sequence[GuardedStore]) -> None:
        rows, source = rows_of_step(1)
        workers[0].write_step(0, rows, source)
        for other in workers[1:]:
            self.finish(other, 0)
        for worker in workers:
            assert_same(self.read(worker, rows, 0), source)

    def test_a_read_waits_for_the_writes_of_every_worker(self, workers: Sequence[GuardedStore]) -> None:
        if self.num_workers == 1:
            pytest.skip("the order of one worker is its own")
        rows, source = rows_of_step(1)
        with ThreadPoolExecutor(1) as reader:
            reading = reader.submit(self.read, workers[0], rows, 0)
            self.finish(workers[0], 0)
            time.sleep(WAIT_SECONDS)
            for other in workers[2:]:
                self.finish(other, 0)
            workers[1].write_step(0, rows, source)
            assert_same(reading.result(), source)

    def test_steps_without_rows_count(self, workers: Sequence[GuardedStore]) -> None:
        for step in range(3):
            for worker in workers:
                self.finish(worker, step)
        rows = ids(5)
        assert_same(self.read(workers[-1], rows, 2), initial_rows(SUITE_LAYOUT, rows))

    def test_each_step_reads_what_the_one_before_wrote(self, workers: Sequence[GuardedStore]) -> None:
        rows = ids(7, 8, 1001)
        for step in range(6):
            turn = workers[step % self.num_workers]
            found = self.read(turn, rows, step - 1)
            assert found.versions.tolist() == [step] * len(rows)
            turn.write_step(step, rows, Rows(found.values + 1, found.state, found.versions + np.int32(1)))
            for other in workers:
                if other is not turn:
                    self.finish(other, step)
        assert self.read(workers[0], rows, 5).versions.tolist() == [6] * len(rows)
