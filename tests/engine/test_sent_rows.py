"""Rows leave for the next step while the loop goes on: who waits for them, for how long, and who hears of a failure."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event

import numpy as np
import pytest

from foresee.data import ClickLog, tiny
from foresee.engine.exchange import dense
from foresee.engine.exchange.dense import Sums
from foresee.engine.exchange.mesh import Finish, Lane
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.optimizers import SGD
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.engine.tables import Tables, layout_for
from foresee.errors import StoreError
from foresee.store.contract import Rows
from foresee.store.memory import MemoryStore
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh

NUM_WORKERS = 2
A_MOMENT, LONG = 0.1, 20.0


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path: Path = tmp_path_factory.mktemp("departing")
    return tiny(path / "log", seed=5, num_samples=300, multi_valued=False)


class WatchedMesh(ThreadMesh):
    """Says before each swap of rows, the second critical one of a step, which it is."""

    def __init__(self, meeting: Meeting, rank: int, before_rows: Callable[[int], None]) -> None:
        super().__init__(meeting, rank)
        self._before_rows, self._num_critical = before_rows, 0

    def start(self, lane: Lane, sent: object, sizes: list[int], expected: list[int]) -> Finish:
        if lane is Lane.CRITICAL:
            self._num_critical += 1
            if self._num_critical % 2 == 0:
                self._before_rows(self._num_critical // 2 - 1)
        return super().start(lane, sent, sizes, expected)  # type: ignore[arg-type]


class Workers:
    """Two of them, each a thread; a body gets a worker's run."""

    def __init__(self, log: ClickLog, before_rows: Callable[[int], None], sums: Sums | None = None) -> None:
        self.log, self.before_rows, self.sums = log, before_rows, sums
        self.meeting = Meeting(NUM_WORKERS)
        self.layout = layout_for(log, 4, SGD(lr=0.125), 0, 0.1)
        self.shared = SharedStore(MemoryStore(self.layout), NUM_WORKERS)
        self._threads = ThreadPoolExecutor(NUM_WORKERS)

    def start(self, body: Callable[[int, Run], None]) -> list[Future[None]]:
        working = [self._threads.submit(self._work, rank, body) for rank in range(NUM_WORKERS)]
        self._threads.shutdown(wait=False)
        return working

    def _work(self, rank: int, body: Callable[[int, Run], None]) -> None:
        stream = self.log.batches(batch_size=24, seed=2, epochs=1)
        header = make_header(
            stream, planner="lookahead", cache_rows=120, num_workers=NUM_WORKERS, placement="contiguous"
        )
        mesh = WatchedMesh(self.meeting, rank, self.before_rows)
        exchange = PeerExchange(self.layout, mesh, dense=self.sums)
        tables = Tables(self.shared.for_worker(rank), SGD(lr=0.125))
        run = Run(stream, tables, header, Pooling.of(self.log.mean_features), exchange=exchange, commit_at_end=False)
        try:
            body(rank, run)
        except BaseException:
            self.meeting.abort()
            raise
        finally:
            with suppress(BrokenBarrierError):
                exchange.close()


def held_back(
    workers: Workers, body: Callable[[int, Run], None], first: list[Event], later: list[Event],
    release: Callable[[], None],
) -> None:  # fmt: skip
    """Workers come to the first events, and to the later ones only when they are released."""
    working = workers.start(body)
    assert all(event.wait(LONG) for event in first)
    assert not any(event.wait(A_MOMENT) for event in later)
    release()
    for worker in working:
        worker.result(LONG)


def learn(step: Step) -> None:
    step.update_during_backward()
    step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
    step.update()


def test_an_update_is_over_before_the_rows_of_the_next_step_have_come(log: ClickLog) -> None:
    may_leave, updated, arrived = Event(), [Event(), Event()], [Event(), Event()]

    def body(rank: int, run: Run) -> None:
        for step in run:
            if step.index == 1:
                assert len(step.dense) == 12, "what needs no rows can begin"
                step.await_embeddings()
                arrived[rank].set()
            learn(step)
            assert run.steps_done == step.index + 1
            updated[rank].set()
            if step.index == 1:
                break

    held_back(Workers(log, lambda step: _waited(may_leave)), body, updated, arrived, may_leave.set)
    assert all(event.is_set() for event in arrived)


def test_a_flush_waits_for_rows_that_are_leaving(log: ClickLog) -> None:
    may_leave, updated, flushed = Event(), [Event(), Event()], [Event(), Event()]

    def body(rank: int, run: Run) -> None:
        for step in run:
            learn(step)
            updated[rank].set()
            run.flush()
            flushed[rank].set()
            break

    workers = Workers(log, lambda step: _waited(may_leave))
    held_back(workers, body, updated, flushed, may_leave.set)
    rows = Rows.empty(workers.layout.num_rows, workers.layout)
    workers.shared.store.read(np.arange(workers.layout.num_rows), rows)
    assert rows.versions.max() == 1, "the step is in the store"


@pytest.mark.parametrize("last", [False, True])
def test_rows_that_cannot_leave_are_an_error_of_the_next_step_or_of_the_end(log: ClickLog, last: bool) -> None:
    """Also of the end of the loop: nobody may take a run for done whose peers have not got their rows."""
    steps_seen, both = [0, 0], Barrier(NUM_WORKERS, timeout=LONG)

    def fails(step: int) -> None:
        if step == 2:
            both.wait()  # else the first to fail would cut the other off in its update
            raise StoreError("the wire is cut")

    def body(rank: int, run: Run) -> None:
        with closing(iter(run)) as steps:
            for step in steps:
                learn(step)
                steps_seen[rank] += 1
                if last and step.index == 2:
                    break

    for worker in Workers(log, fails).start(body):
        with pytest.raises(StoreError, match="the wire is cut"):
            worker.result(LONG)
    assert steps_seen == [3, 3]


def test_rows_leave_when_no_dense_sum_is_on_the_link(log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "PATIENCE_SECONDS", LONG)
    sums, leaving, updated = Sums(), Event(), [Event(), Event()]
    sums.begin()

    def body(rank: int, run: Run) -> None:
        for step in run:
            learn(step)
            updated[rank].set()
            break

    held_back(Workers(log, lambda step: leaving.set(), sums), body, updated, [leaving], sums.end)
    assert leaving.is_set()


def _waited(event: Event) -> None:
    assert event.wait(LONG)
