"""Values of two bytes, trained: with any cache, planner, store, workers and restart, the bytes of a plain loop.

The plain loop and its rounding are those of `half_reference`, in numpy and torch. Gradients are whole numbers, whose
sums over workers are exact, and depend on what was read, so that a stale or wrongly rounded row shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from remote_servers import Servers

import half_reference
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad, Schedule
from foresee.engine.planned_step import Pooling
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.engine.torch_cache import TorchCache
from foresee.store.contract import Rows, Store
from foresee.store.disk import DiskStore, open_table
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.store.remote import RemoteStore
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh
from foresee.tools.fsck import check
from trace_stream import TraceStream, random_stream
from whole_run import all_rows

NUM_ROWS = 24
FALLING = Schedule(lr=0.125, shape="cosine", warmup_steps=3, steps=15, floor=0.01)


class Kind(NamedTuple):
    """How rows look and learn."""

    dtype: str
    rounding: str
    optimizer: Optimizer
    width: int

    def __str__(self) -> str:
        return f"{self.dtype}-{self.rounding}-{self.optimizer.name}-{self.width}"

    @property
    def layout(self) -> Layout:
        return Layout(
            tables=(Table("one", 5), Table("other", NUM_ROWS - 5)), width=self.width,
            state_width=self.optimizer.state_width(self.width), optimizer=self.optimizer.name, seed=2, init_scale=0.5,
            dtype=self.dtype, rounding=self.rounding,
        )  # fmt: skip


KINDS = [
    Kind("bfloat16", "stochastic", SGD(lr=0.1, weight_decay=0.3), 5),
    Kind("float16", "stochastic", SGD(lr=FALLING), 8),
    Kind("float16", "nearest", SGD(lr=0.1), 3),
    Kind("bfloat16", "stochastic", RowwiseAdagrad(lr=FALLING, weight_decay=0.01), 43),
    Kind("float16", "stochastic", Adagrad(lr=0.3), 6),
    Kind("bfloat16", "nearest", LazyAdam(lr=0.05, weight_decay=0.1), 9),
]
STREAMS = [random_stream(seed, num_rows=NUM_ROWS, num_steps=14, num_samples=4) for seed in range(len(KINDS))]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foresee.engine.exchange.mesh.PATIENCE_SECONDS", 0.01)


def gradient_of(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.sign(embeddings) * 2 + torch.round(embeddings * 64) % 3 - labels[:, None, None]


@pytest.fixture(scope="module")
def plain() -> Callable[[int], Rows]:
    kept: dict[int, Rows] = {}

    def reference(which: int) -> Rows:
        if which not in kept:
            kind = KINDS[which]
            kept[which] = half_reference.train_plainly(STREAMS[which], kind.layout, kind.optimizer, gradient_of)
        return kept[which]

    return reference


def train(
    stream: TraceStream, store: Store, optimizer: Optimizer, *, planner: str = "lookahead", cache_rows: int = 0,
    num_workers: int = 1, num_threads: int = 1, stores: Sequence[Store] = (),
) -> Rows:  # fmt: skip
    """All rows after the last step; begins where the store stands. `stores`: of each worker, where they share one."""
    shared, meeting, errors = SharedStore(store, num_workers), Meeting(num_workers), list[BaseException]()

    def work(rank: int) -> None:
        try:
            header = make_header(
                stream, planner=planner, cache_rows=cache_rows or stream.largest_batch, num_workers=num_workers,
                placement="contiguous", fetch_ahead_steps=3, remember_versions=True, first_step=store.committed_step,
            )  # fmt: skip
            shares = shared.for_worker(rank) if num_workers > 1 else store
            tables = Tables(stores[rank] if stores else shares, optimizer)
            own: dict[str, Any] = {}
            if num_workers > 1:
                own = {"exchange": PeerExchange(tables.layout, ThreadMesh(meeting, rank)), "commit_at_end": False}
            pooling = Pooling.of([False] * stream.num_features)
            run = Run(stream, tables, header, pooling, num_threads=num_threads, **own)
            for step in run:
                gradient = gradient_of(step.embeddings.detach(), step.labels) * num_workers
                step.embeddings.backward(gradient)  # type: ignore[no-untyped-call]
                step.update()
            if own:
                own["exchange"].close()
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
    return all_rows(store)


def assert_same(found: Rows, expected: Rows) -> None:
    assert found.values.tobytes() == expected.values.tobytes()
    assert found.state.tobytes() == expected.state.tobytes()
    assert found.versions.tolist() == expected.versions.tolist()


WAYS: list[dict[str, Any]] = [
    {"planner": "none", "cache_rows": NUM_ROWS},
    {"planner": "lookahead"},
    {"planner": "lookahead", "cache_rows": NUM_ROWS, "num_threads": 2},
    {"planner": "lru"},
    {"planner": "lookahead", "num_workers": 2, "cache_rows": 16},
    {"planner": "none", "num_workers": 2, "cache_rows": NUM_ROWS},
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(str(value) for value in way.values()))
@pytest.mark.parametrize("which", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_not_one_byte_differs_in_memory(plain: Callable[[int], Rows], which: int, way: dict[str, Any]) -> None:
    kind = KINDS[which]
    assert_same(train(STREAMS[which], MemoryStore(kind.layout), kind.optimizer, **way), plain(which))


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("which", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_not_one_byte_differs_on_disk_and_the_folder_is_whole(
    plain: Callable[[int], Rows], which: int, num_workers: int, tmp_path: Path
) -> None:
    kind, expected, folder = KINDS[which], plain(which), tmp_path / "tables"
    store = DiskStore.create(folder, kind.layout)
    found = train(STREAMS[which], store, kind.optimizer, num_workers=num_workers, cache_rows=16)
    assert_same(found, expected)
    store.commit(STREAMS[which].num_steps)
    store.initialise_all()
    store.fold()
    store.close()
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    value = rows["value_bfloat16" if kind.dtype == "bfloat16" else "value"]
    assert value.dtype == {"bfloat16": np.uint16, "float16": np.float16}[kind.dtype]
    assert np.ascontiguousarray(value).view(np.uint16).tobytes() == half_bits(expected, kind.layout).tobytes()
    opened = np.concatenate([open_table(folder, table.name)["value"] for table in kind.layout.tables])
    assert opened.dtype == np.float32
    assert opened.tobytes() == kind.layout.unpack(expected.values).tobytes()
    report = check(folder)
    assert report.is_whole
    assert f"{kind.dtype} rounded {kind.rounding}" in str(report)


def half_bits(rows: Rows, layout: Layout) -> np.ndarray:
    return np.ascontiguousarray(rows.values.view(np.uint16)[:, : layout.width])


@pytest.mark.parametrize(("which", "num_servers", "num_workers"), [(0, 1, 1), (4, 2, 2), (3, 3, 1), (5, 2, 2)])
def test_not_one_byte_differs_on_servers(
    plain: Callable[[int], Rows], servers: Servers, which: int, num_servers: int, num_workers: int
) -> None:
    kind = KINDS[which]
    addresses = [server.address for server in servers.start_all(kind.layout, num_servers, None)]
    stores = [
        RemoteStore(addresses, worker=rank, num_workers=num_workers, run="halves", deadline_seconds=30.0)
        for rank in range(num_workers)
    ]
    reader = RemoteStore(addresses)
    try:
        found = train(STREAMS[which], reader, kind.optimizer, num_workers=num_workers, cache_rows=16, stores=stores)
        assert_same(found, plain(which))
    finally:
        for store in (*stores, reader):
            store.close()
        servers.end_all()


@pytest.mark.parametrize("stop_after", [1, 9])
@pytest.mark.parametrize("which", [0, 3, 5])
def test_a_run_that_was_stopped_goes_on_with_the_same_bytes(
    plain: Callable[[int], Rows], which: int, stop_after: int, tmp_path: Path
) -> None:
    kind, stream = KINDS[which], STREAMS[which]
    with closing(DiskStore.create(tmp_path / "tables", kind.layout)) as store:
        header = make_header(stream, planner="lookahead", cache_rows=stream.largest_batch)
        run = Run(stream, Tables(store, kind.optimizer), header, Pooling.of([False, False]))
        for step in run:
            step.embeddings.backward(gradient_of(step.embeddings.detach(), step.labels))  # type: ignore[no-untyped-call]
            step.update()
            if run.steps_done == stop_after:
                break
    with closing(DiskStore.open(tmp_path / "tables")) as store:
        assert store.committed_step == stop_after
        assert_same(train(stream, store, kind.optimizer, planner="lru", cache_rows=NUM_ROWS), plain(which))


@pytest.mark.parametrize("which", range(len(KINDS)), ids=[str(kind) for kind in KINDS])
def test_plain_torch_operations_give_the_same_bytes(
    plain: Callable[[int], Rows], which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def torch_cache(run: Run, layout: Layout, capacity_rows: int, threads: object) -> TorchCache:
        made.append(run)
        return TorchCache(layout, run.tables.optimizer, capacity_rows=capacity_rows, device=torch.device("cpu"))

    monkeypatch.setattr(Run, "_cache", torch_cache)
    kind = KINDS[which]
    for num_workers in (1, 2):
        found = train(STREAMS[which], MemoryStore(kind.layout), kind.optimizer, num_workers=num_workers, cache_rows=16)
        assert_same(found, plain(which))
    assert len(made) == 3


def test_training_did_something_and_roundings_differ(plain: Callable[[int], Rows]) -> None:
    """Equal bytes prove nothing if nothing moved, or if every rounding gave the same."""
    kind = KINDS[0]
    assert (plain(0).values != fresh_rows(kind.layout).values).any()
    nearest = half_reference.train_plainly(
        STREAMS[0], kind._replace(rounding="nearest").layout, kind.optimizer, gradient_of
    )
    assert (plain(0).values.view(np.uint16) != nearest.values.view(np.uint16)).mean() > 0.1


def fresh_rows(layout: Layout) -> Rows:
    return all_rows(MemoryStore(layout))


def test_a_row_takes_half_of_the_bytes_everywhere() -> None:
    """64 values: 128 bytes and 8 of state and version, against 264; odd widths are filled up by two bytes."""
    halves = Kind("bfloat16", "stochastic", RowwiseAdagrad(lr=0.1), 64).layout
    assert (halves.row_bytes, Kind("float32", "stochastic", RowwiseAdagrad(lr=0.1), 64).layout.row_bytes) == (136, 264)
    assert Kind("float16", "stochastic", SGD(lr=0.1), 3).layout.row_bytes == 2 * 3 + 2 + 4
