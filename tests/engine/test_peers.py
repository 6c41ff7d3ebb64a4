"""Many workers end with the bytes of one, and planned with the bytes of unplanned, whatever travels in between."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from foresee.data import ClickLog, tiny
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.exchange.protocol import sum_in_worker_order
from foresee.engine.exchange.schedule import Payload
from foresee.engine.header import make_header
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables, layout_for
from foresee.engine.torch_cache import TorchCache
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh

WIDTH = 5
BATCH_SIZE = 24
LAYOUT = Layout(tables=(Table("rows", 1),), width=1, state_width=0, optimizer="sgd")
NOTHING_MOVED = (Rows.empty(0, LAYOUT), np.empty(0, np.int64))
EPOCHS = 2


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that update beside backward and workers that do not wait for each other's links: here both are mixed."""
    monkeypatch.setattr("foresee.engine.exchange.mesh.PATIENCE_SECONDS", 0.01)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path: Path = tmp_path_factory.mktemp("peers")
    return tiny(path / "log", seed=5, num_samples=500, multi_valued=True)


@pytest.fixture(scope="module")
def plain_log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    """One id for each feature: the mean over a bag would make fractions of whole gradients."""
    path: Path = tmp_path_factory.mktemp("peers-plain")
    return tiny(path / "log", seed=6, num_samples=500, multi_valued=False)


@pytest.mark.parametrize("rank", range(3))
def test_gradients_are_added_in_the_order_of_workers_whoever_owns_the_row(rank: int) -> None:
    """Small, then two that cancel: from the first worker on the small one is lost, from the last on it alone stays."""
    gradients = np.array([[1.0], [1e8], [-1e8]], np.float32)
    empty = Payload(np.empty((0, 1), np.float32), np.empty((0, 1), np.float32), *NOTHING_MOVED)
    arrived = [empty if worker == rank else replace(empty, gradients=gradients[[worker]]) for worker in range(3)]
    total = sum_in_worker_order(rank, torch.from_numpy(gradients[[rank]]), [np.zeros(1, np.int64)] * 3, arrived)
    assert total.tolist() == [[0.0]]


def train(
    log: ClickLog, optimizer: Optimizer, num_workers: int, *, planner: str, placement: str, cache_rows: int,
    whole: bool, store: MemoryStore | None = None, stop_after: int | None = None, planned_from: int | None = None,
) -> Rows:  # fmt: skip
    """The tables after training with so many workers; `whole`: gradients are whole numbers, whose sums are exact."""
    layout = layout_for(log, WIDTH, optimizer, 0, 0.1)
    shared = SharedStore(store or MemoryStore(layout), num_workers)
    meeting = Meeting(num_workers)
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            _train_worker(
                log, optimizer, shared, meeting, rank, planner, placement, cache_rows, whole, stop_after, planned_from
            )
        except BaseException as error:
            errors.append(error)
            meeting.abort()

    threads = [Thread(target=work, args=(rank,)) for rank in range(num_workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    rows = Rows.empty(layout.num_rows, layout)
    shared.store.read(np.arange(layout.num_rows), rows)
    return rows


def _train_worker(
    log: ClickLog, optimizer: Optimizer, shared: SharedStore, meeting: Meeting, rank: int, planner: str, placement: str,
    cache_rows: int, whole: bool, stop_after: int | None, planned_from: int | None,
) -> None:  # fmt: skip
    stream = log.batches(batch_size=BATCH_SIZE, seed=2, epochs=EPOCHS)
    header = make_header(
        stream, planner=planner, cache_rows=cache_rows, num_workers=meeting.num_workers, placement=placement,
        fetch_ahead_steps=3, remember_versions=True, first_step=shared.store.committed_step, planned_from=planned_from,
    )  # fmt: skip
    tables = Tables(shared.for_worker(rank), optimizer)
    exchange = PeerExchange(tables.layout, ThreadMesh(meeting, rank))
    run = Run(stream, tables, header, Pooling.of(log.mean_features), exchange=exchange, commit_at_end=False)
    for step in run:
        if rank % 2:  # on a thread of its own, the same bytes
            step.update_during_backward()
        gradient = gradient_of(step.embeddings.detach(), step.labels, whole, meeting.num_workers)
        step.embeddings.backward(gradient)  # type: ignore[no-untyped-call]
        step.update()
        if run.steps_done == stop_after:
            run.flush()
            break
    exchange.close()


def gradient_of(embeddings: torch.Tensor, labels: torch.Tensor, whole: bool, num_workers: int) -> torch.Tensor:
    """A gradient that depends on what was read, so that a stale row shows; of a mean over the worker's samples."""
    if whole:
        signs = torch.sign(embeddings) + labels[:, None, None]
        return signs * num_workers
    return (torch.tanh(embeddings) - labels[:, None, None] * 0.3) / len(labels)


def same(one: Rows, other: Rows) -> bool:
    return (
        one.values.tobytes() == other.values.tobytes()
        and one.state.tobytes() == other.state.tobytes()
        and np.array_equal(one.versions, other.versions)
    )


OPTIMIZERS = [SGD(lr=0.125), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), LazyAdam(lr=0.01)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
@pytest.mark.parametrize("placement", ["contiguous", "herald", "location_aware"])
def test_whole_gradients_give_the_same_bytes_with_any_number_of_workers(
    plain_log: ClickLog, optimizer: Optimizer, placement: str
) -> None:
    log = plain_log
    one = train(log, optimizer, 1, planner="none", placement=placement, cache_rows=189, whole=True)
    assert one.versions.max() > 0
    for num_workers in (2, 5):  # five get 5, 5, 5, 5 and 4 of 24 samples
        many = train(log, optimizer, num_workers, planner="lookahead", placement=placement, cache_rows=90, whole=True)
        assert same(one, many)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
@pytest.mark.parametrize(("num_workers", "cache_rows"), [(3, 80), (3, 120), (5, 189)])
def test_planned_equals_unplanned(log: ClickLog, optimizer: Optimizer, num_workers: int, cache_rows: int) -> None:
    unplanned = train(log, optimizer, num_workers, planner="none", placement="contiguous", cache_rows=189, whole=False)
    planned = train(
        log, optimizer, num_workers, planner="lookahead", placement="contiguous", cache_rows=cache_rows, whole=False
    )
    assert same(unplanned, planned)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
def test_plain_torch_operations_exchange_the_same_bytes(
    log: ClickLog, optimizer: Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of a worker on a GPU, here on the CPU."""
    how = {"planner": "lookahead", "placement": "location_aware", "cache_rows": 90, "whole": False}
    fused = train(log, optimizer, 2, **how)  # type: ignore[arg-type]
    made = []

    def torch_cache(run: Run, layout: Layout, capacity_rows: int, threads: object) -> TorchCache:
        cache = TorchCache(layout, run.tables.optimizer, capacity_rows=capacity_rows, device=torch.device("cpu"))
        made.append(cache)
        return cache

    monkeypatch.setattr(Run, "_cache", torch_cache)
    assert same(fused, train(log, optimizer, 2, **how))  # type: ignore[arg-type]
    assert len(made) == 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer.name)
@pytest.mark.parametrize("stop_after", [1, 7, 20])
def test_a_plan_entered_where_a_run_stopped_ends_with_the_bytes_of_one_that_never_did(
    log: ClickLog, optimizer: Optimizer, stop_after: int
) -> None:
    how = {"planner": "lookahead", "placement": "location_aware", "cache_rows": 90, "whole": False}
    store = MemoryStore(layout_for(log, WIDTH, optimizer, 0, 0.1))
    train(log, optimizer, 3, **how, store=store, stop_after=stop_after)  # type: ignore[arg-type]
    store.commit(stop_after)
    stopped = train(log, optimizer, 3, **how, store=store, planned_from=0)  # type: ignore[arg-type]
    assert same(stopped, train(log, optimizer, 3, **how))  # type: ignore[arg-type]
