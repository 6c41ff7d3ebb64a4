"""A row that was lost on its way to the store is found, named, and never becomes part of a commit.

A store drops one write-back. Whoever finds out, the reader thread or a server, and however the loop is left then, the
last commit stays the one before, and going on from it ends with the bytes of a run that lost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from foresee import Adagrad, ClickLog, Run, Step, Tables
from foresee.arrays import Int32, Int64
from foresee.data import tiny
from foresee.engine.header import make_header
from foresee.engine.planned_step import Pooling
from foresee.engine.tables import layout_for
from foresee.errors import InputError, LostWriteError, StoreError
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskStore
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore
from foresee.store.remote import RemoteStore
from foresee.store.remote.opening import open_run
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.server import EmbeddingServer, Share
from foresee.store.server.shard import Shard

OPTIMIZER, COMMITTED = Adagrad(lr=0.1), 6


class Loss:
    """Drops the next write that has rows, once somebody says so."""

    def __init__(self) -> None:
        self.armed, self.happened = False, False

    def keeps(self, rows: Int64) -> bool:
        if not (self.armed and len(rows)):
            return True
        self.armed, self.happened = False, True
        return False


class LossyMemory(MemoryStore):
    loss: Loss

    def write(self, rows: Int64, source: Rows) -> None:
        if self.loss.keeps(rows):
            super().write(rows, source)


class LossyDisk(DiskStore):
    loss: Loss

    def write(self, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        if self.loss.keeps(rows):
            super().write(rows, source, next_use)


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return tiny(tmp_path / "log")


def layout_of(log: ClickLog) -> Layout:
    return layout_for(log, 4, OPTIMIZER, 0, 0.05)


def run_over(log: ClickLog, tables: Tables) -> Run:
    stream, first_step = log.batches(batch_size=8), tables.store.committed_step
    header = make_header(
        stream, planner="lookahead", cache_rows=80, window_steps=1, first_step=first_step, remember_versions=True
    )
    return Run(stream, tables, header, Pooling.of(log.mean_features))


def train(step: Step) -> None:
    step.embeddings.square().sum().backward()  # type: ignore[no-untyped-call]
    step.update()


def train_and_lose(run: Run, loss: Loss, after: Callable[[Run], bool] = lambda run: False) -> None:
    """Commits after a few steps, then loses a write-back; `after` each later step says whether to break."""
    with closing(iter(run)) as steps:
        for step in steps:
            train(step)
            if run.steps_done == COMMITTED:
                run.commit()
                loss.armed = True
            elif run.steps_done > COMMITTED and after(run):
                break


def found_by_reader(run: Run) -> bool:
    """Whether the reader has found the lost row, once it is as far as the next step."""
    assert run._active is not None
    pipeline = run._active[0]
    pipeline._ready._changed.acquire()
    try:
        assert pipeline._ready._changed.wait_for(lambda: len(pipeline._ready) or pipeline._ready._closed, 30)
    finally:
        pipeline._ready._changed.release()
    return pipeline._inconsistency is not None


def contents(store: Store) -> list[NDArray[np.generic]]:
    rows = Rows.empty(store.layout.num_rows, store.layout)
    store.read(np.arange(store.layout.num_rows), rows)
    return [rows.values, rows.state, rows.versions]


@pytest.fixture
def undisturbed(log: ClickLog) -> list[NDArray[np.generic]]:
    tables = Tables(MemoryStore(layout_of(log)), OPTIMIZER)
    for step in run_over(log, tables):
        train(step)
    return contents(tables.store)


def assert_same(store: Store, expected: list[NDArray[np.generic]]) -> None:
    assert [part.tobytes() for part in contents(store)] == [part.tobytes() for part in expected]


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, log: ClickLog, tmp_path: Path) -> Iterator[LossyMemory | LossyDisk]:
    made: LossyMemory | LossyDisk
    if request.param == "memory":
        made = LossyMemory(layout_of(log), undoable=True)
    else:
        opened = LossyDisk.create(tmp_path / "tables", layout_of(log))
        assert isinstance(opened, LossyDisk)
        made = opened
    made.loss = Loss()
    yield made
    made.close()


def test_what_the_reader_finds_is_not_committed(
    log: ClickLog, store: LossyMemory | LossyDisk, undisturbed: list[NDArray[np.generic]]
) -> None:
    tables = Tables(store, OPTIMIZER)
    with pytest.raises(LostWriteError, match=r"step \d+: row \d+ was read in version .* write-back was lost"):
        train_and_lose(run_over(log, tables), store.loss)
    assert store.loss.happened
    assert store.committed_step == COMMITTED
    for step in run_over(log, tables):
        train(step)
    assert_same(store, undisturbed)


def test_neither_is_it_when_the_loop_is_left_before_that_step(
    log: ClickLog, store: LossyMemory | LossyDisk, undisturbed: list[NDArray[np.generic]]
) -> None:
    tables = Tables(store, OPTIMIZER)
    with pytest.raises(LostWriteError, match="write-back was lost"):
        train_and_lose(run_over(log, tables), store.loss, found_by_reader)
    failure = tables.failure
    assert isinstance(failure, LostWriteError), "for who breaks, and sees no error of a generator"
    assert store.committed_step == COMMITTED
    for step in run_over(log, tables):
        train(step)
    assert tables.failure is None
    assert_same(store, undisturbed)


def test_neither_by_hand(log: ClickLog, store: LossyMemory | LossyDisk) -> None:
    run = run_over(log, Tables(store, OPTIMIZER))

    def commit_if_found(run: Run) -> bool:
        if found := found_by_reader(run):
            with pytest.raises(LostWriteError):
                run.commit()
        return found

    train_and_lose(run, store.loss, commit_if_found)
    assert store.loss.happened
    assert store.committed_step == COMMITTED


def test_another_process_finds_the_last_good_commit(
    log: ClickLog, tmp_path: Path, undisturbed: list[NDArray[np.generic]]
) -> None:
    lossy = LossyDisk.create(tmp_path / "tables", layout_of(log))
    assert isinstance(lossy, LossyDisk)
    lossy.loss = Loss()
    with Tables(lossy, OPTIMIZER) as tables, pytest.raises(LostWriteError):
        train_and_lose(run_over(log, tables), lossy.loss)
    with Tables(DiskStore.open(tmp_path / "tables"), OPTIMIZER) as tables:
        for step in run_over(log, tables):
            train(step)
        assert_same(tables.store, undisturbed)


def test_rows_in_memory_without_a_way_back_are_refused(log: ClickLog) -> None:
    store = LossyMemory(layout_of(log))
    store.loss = Loss()
    tables = Tables(store, OPTIMIZER)
    with pytest.raises(LostWriteError):
        train_and_lose(run_over(log, tables), store.loss)
    for use in (lambda: next(iter(run_over(log, tables))), lambda: tables.values("item")):
        with pytest.raises(StoreError, match="in memory and nothing was kept of what they were; start anew"):
            use()


@contextmanager
def served(store: MemoryStore, layout: Layout) -> Iterator[str]:
    server = EmbeddingServer(Shard(store, layout, Share()))
    yield server.address
    assert server.stop(10.0)
    server.shutdown()


def test_a_server_names_it_and_rolls_back(log: ClickLog, undisturbed: list[NDArray[np.generic]]) -> None:
    layout = layout_of(log)
    lossy = LossyMemory(layout, undoable=True)
    lossy.loss = Loss()
    with served(lossy, layout) as address:
        remote = RemoteStore([address], worker=0, num_workers=1, deadline_seconds=600.0)
        with Tables(remote, OPTIMIZER) as tables:
            with pytest.raises(LostWriteError, match=rf"server {address}: row \d+ is stored in version") as caught:
                train_and_lose(run_over(log, tables), lossy.loss)
            assert not isinstance(caught.value, InputError), "no mistake of a person"
            assert remote.committed_step == COMMITTED
        endpoint = Endpoint.parse(address, None, None)
        assert open_run([endpoint], layout, run="again", num_workers=1, manifests=[COMMITTED]) == COMMITTED
        again = RemoteStore([address], worker=0, num_workers=1, run="again", opened=True)
        with Tables(again, OPTIMIZER) as tables:
            for step in run_over(log, tables):
                train(step)
            assert_same(again, undisturbed)
