"""Rows as people have them: widths, dtypes, pooling, optimisers, stores, planners, workers in any combination, by byte.

Every cell trains a few steps with its plan, its cache and its store, with versions checked, and compares all rows
(values, optimiser state, versions) with the same training without a cache (planner `none`, rows in memory). The cells
are a design in which every two values of two axes meet; a test counts them. Two workers are threads of one process, and
so are two servers, with real connections: as they take longest, they have one cell of many.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from foresee.arrays import Float32, Int32
from foresee.data.batch import Batch
from foresee.engine.exchange.peers import LocalExchange, PeerExchange
from foresee.engine.header import groups_for, make_header
from foresee.engine.optimizers import OPTIMIZERS, make_optimizer
from foresee.engine.planned_step import accesses_of, planned_records
from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.engine.tables import Tables, layout_for
from foresee.plan import trainable
from foresee.plan.check import check
from foresee.run.bags import EmbeddingBagConfig, EmbeddingBags
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore
from foresee.store.halves import DTYPES
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore
from foresee.store.registry import MEMORY
from foresee.store.remote.store import remote_tables
from foresee.store.row_groups import RowGroups, groups_of, open_groups
from foresee.store.server import EmbeddingServer, Share
from foresee.store.server.shard import open_shards
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh

NUM_CELLS = 540
"""At least 400."""
NUM_STEPS, NUM_SAMPLES = 6, 6
SIZES = (9, 30, 5)
KEYS = (("user",), ("item", "history"), ("country",))
WIDTHS = ((5, 5, 5), (8, 3, 8), (16, 5, 2))
"""Of each table: one width, two of which one is that of two tables, three."""
POOLINGS = ("sum", "mean", "max", "none", "weighted")
STORES = ("memory", "disk", "servers")
SERVED_EVERY = 13
WINDOW = "lookahead, window 2"


class Cell(NamedTuple):
    """One way to train."""

    widths: tuple[int, ...]
    dtype: str
    pooling: str
    optimizer: str
    store: str
    planner: str
    workers: int

    def __str__(self) -> str:
        widths = "_".join(map(str, self.widths))
        rest = (
            self.dtype,
            self.pooling,
            self.optimizer,
            self.store,
            self.planner.replace(", ", "_"),
            f"{self.workers}w",
        )
        return "-".join((widths, *rest))


AXES: dict[str, tuple[object, ...]] = {
    "widths": WIDTHS,
    "dtype": DTYPES,
    "pooling": POOLINGS,
    "optimizer": tuple(OPTIMIZERS),
    "store": STORES,
    "planner": (*trainable(), WINDOW),
    "workers": (1, 2),
}


def planners(workers: int) -> tuple[str, ...]:
    return (*trainable(workers), WINDOW)


def cells() -> list[Cell]:
    """Every width with every pooling, optimiser and planner, alone; with two workers, too, in the stores in turn."""
    chosen: list[Cell] = []
    for workers in (1, 2):
        ways = product(WIDTHS, POOLINGS, OPTIMIZERS)
        for (way, (widths, pooling, optimizer)), (turn, planner) in product(
            enumerate(ways), enumerate(planners(workers))
        ):
            if workers == 1 or planner != "none":
                served = len(chosen) % SERVED_EVERY == 0
                store = "servers" if served else ("memory", "disk")[(way + turn) % 2]
                dtype = DTYPES[(way // 2 + turn) % len(DTYPES)]
                chosen.append(Cell(widths, dtype, pooling, optimizer, store, planner, workers))
    return chosen


CELLS = cells()


@dataclass(frozen=True, slots=True)
class WeightedBatch(Batch):
    """A batch whose ids have weights."""

    weights: Float32 | None = None  # [lookups]

    def part(self, samples: Int32) -> Batch:
        marked = replace(self, rows=np.arange(self.bag_offsets[-1]))  # type: ignore[index]
        own = Batch.part(marked, samples)
        fields = (own.step, own.dense, own.labels, Batch.part(self, samples).rows, own.bag_offsets, own.num_features)
        return WeightedBatch(*fields, None if self.weights is None else self.weights[own.rows])


class Clicks:
    """Few rows and bags of none to three ids, so that rows leave and come back all the time."""

    num_steps, num_rows = NUM_STEPS, sum(SIZES)
    digest = hashlib.sha256(b"clicks").hexdigest()

    def __init__(self, *, weighted: bool = False) -> None:
        rng = np.random.default_rng(3)
        firsts = np.cumsum([0, *SIZES[:-1]])
        tables = [place for place, keys in enumerate(KEYS) for _ in keys]
        self._batches = []
        for step in range(NUM_STEPS):
            sizes = rng.integers(0, 4, (NUM_SAMPLES, len(tables)))
            drawn = [
                firsts[table] + rng.integers(0, SIZES[table], size)
                for sample in sizes
                for table, size in zip(tables, sample, strict=True)
            ]
            offsets = np.concatenate([[0], np.cumsum(sizes.reshape(-1))]).astype(np.int32)
            labels = rng.integers(0, 2, NUM_SAMPLES).astype(np.float32)
            rows, dense = np.concatenate(drawn), np.zeros((NUM_SAMPLES, 0), np.float32)
            weights = rng.random(len(rows)).astype(np.float32) if weighted else None
            self._batches.append(WeightedBatch(step, dense, labels, rows, offsets, len(tables), weights))

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        yield from self._batches[first_step:]


CLICKS, WEIGHTED_CLICKS = Clicks(), Clicks(weighted=True)


def bags_of(cell: Cell) -> EmbeddingBags:
    pooling = "sum" if cell.pooling == "weighted" else cell.pooling
    return EmbeddingBags(
        [
            EmbeddingBagConfig(
                name=keys[0], num_embeddings=size, embedding_dim=width, feature_names=keys, pooling=pooling
            )
            for keys, size, width in zip(KEYS, SIZES, cell.widths, strict=True)
        ],
        is_weighted=cell.pooling == "weighted",
    )


def loss_of(bags: EmbeddingBags, step: Step) -> Tensor:
    """Depends on every value that was read, so that a stale row shows, and on the labels."""
    keyed, total = bags.keyed(step), torch.zeros(())
    for number, feature in enumerate(bags.features):
        found = keyed[feature.name]
        values = found if isinstance(found, Tensor) else found.values()
        total = total + (number + 1) * torch.tanh(values).sum() / len(step.labels)
    return total * (1 + step.labels.mean())


def layout_of(cell: Cell, bags: EmbeddingBags) -> Layout:
    return layout_for(bags, bags.dim, make_optimizer(cell.optimizer, {"lr": 0.1}), 0, 0.1, cell.dtype)


def store_of(cell: Cell, layout: Layout, folder: Path) -> Any:
    open_one = DiskStore.open_or_create if cell.store == "disk" else lambda path, group: MemoryStore(group)
    return open_groups(layout, folder, open_one)


@contextmanager
def stores_of(cell: Cell, layout: Layout, folder: Path) -> Iterator[list[Any]]:
    """The store as each worker has it."""
    with ExitStack() as at_end:
        if cell.store != "servers":
            store = at_end.enter_context(closing(store_of(cell, layout, folder)))
            shared = [SharedStore(group, cell.workers) for group in groups_of(store)]
            faces = [[it.for_worker(rank) for it in shared] for rank in range(cell.workers)]
            yield [RowGroups(layout, it) if layout.widths else it[0] for it in faces]
            return
        addresses = []
        for shard in range(2):
            server = EmbeddingServer(*open_shards(MEMORY, None, layout, Share(shard, 2)))
            at_end.callback(server.shutdown)
            at_end.callback(server.stop, 10.0)
            addresses.append(server.address)
        opened = [
            remote_tables(addresses, layout, worker=rank, num_workers=cell.workers, run="cell", deadline_seconds=30.0)
            for rank in range(cell.workers)
        ]
        for store in opened:
            at_end.enter_context(closing(store))
        yield opened


def train(cell: Cell, folder: Path) -> list[Rows]:
    """All rows after training, those of each width."""
    bags = bags_of(cell)
    with stores_of(cell, layout_of(cell, bags), folder) as stores:
        meeting, errors = Meeting(cell.workers), list[BaseException]()

        def work(rank: int) -> None:
            try:
                _train_worker(cell, bags, stores[rank], meeting, rank)
            except BaseException as error:
                errors.append(error)
                meeting.abort()

        threads = [Thread(target=work, args=(rank,)) for rank in range(1, cell.workers)]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [all_rows(group) for group in groups_of(stores[0])]


def _train_worker(cell: Cell, bags: EmbeddingBags, store: Any, meeting: Meeting, rank: int) -> None:
    layout = store.layout
    tables = Tables(store, make_optimizer(cell.optimizer, {"lr": 0.1}))
    header = make_header(
        CLICKS, planner=cell.planner.split(",")[0], cache_rows=CLICKS.num_rows - 6, fetch_ahead_steps=2,
        window_steps=2 if cell.planner == WINDOW else None, remember_versions=True, num_workers=cell.workers,
        placement="contiguous" if cell.workers > 1 else None, groups=groups_for(layout, CLICKS),
    )  # fmt: skip
    exchange = PeerExchange(layout, ThreadMesh(meeting, rank)) if cell.workers > 1 else LocalExchange()
    clicks = WEIGHTED_CLICKS if cell.pooling == "weighted" else CLICKS
    run = Run(clicks, tables, header, bags.pooling, exchange=exchange, commit_at_end=False)
    for step in run:
        if (rank + step.index) % 2:  # on a thread of its own, the same bytes
            step.update_during_backward()
        loss_of(bags, step).backward()  # type: ignore[no-untyped-call]
        step.update()
    if isinstance(exchange, PeerExchange):
        exchange.close()


def all_rows(store: Any) -> Rows:
    rows = Rows.empty(store.layout.num_rows, store.layout)
    store.read(np.arange(store.layout.num_rows), rows)
    return rows


def as_bytes(groups: Sequence[Rows]) -> list[bytes]:
    return [getattr(rows, name).tobytes() for rows in groups for name in ("values", "state", "versions")]


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that update beside backward and workers that do not wait for each other's links: here both are mixed."""
    monkeypatch.setattr("foresee.engine.exchange.mesh.PATIENCE_SECONDS", 0.01)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tensors of a few numbers: torch's threads would only wake each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def uncached() -> dict[Cell, list[Rows]]:
    """Filled as cells ask: what training without a cache leaves."""
    return {}


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_not_one_byte_differs(cell: Cell, uncached: dict[Cell, list[Rows]], tmp_path: Path) -> None:
    plain = cell._replace(store="memory", planner="none")
    if plain not in uncached:
        uncached[plain] = train(plain, tmp_path)
    assert as_bytes(train(cell, tmp_path)) == as_bytes(uncached[plain])


@pytest.mark.parametrize("placement", ["herald", "location_aware"])
def test_samples_are_placed_once_for_all_widths(placement: str) -> None:
    """The plan of two workers follows the rules, next uses beyond the window included, and each trains its half."""
    layout = layout_of(cell := Cell((16, 5, 2), "float32", "sum", "sgd", "memory", "lookahead", 2), bags_of(cell))
    header = make_header(
        CLICKS, planner="lookahead", cache_rows=CLICKS.num_rows - 6, fetch_ahead_steps=2, remember_versions=True,
        num_workers=2, placement=placement, groups=groups_for(layout, CLICKS), uses_ahead_steps=4,
    )  # fmt: skip
    records = list(planned_records(CLICKS, header))
    accesses = [accesses_of(batch) for batch in CLICKS.batches()]
    check(header, accesses, records, None).require()
    for one, other in zip(records[::2], records[1::2], strict=True):
        assert sorted([*one.samples, *other.samples]) == list(range(NUM_SAMPLES))
        assert len(one.samples) == len(other.samples)
    assert any(len(record.send) for record in records)


def test_there_are_enough_cells_and_every_two_values_meet() -> None:
    assert len(set(CELLS)) == len(CELLS) == NUM_CELLS
    for one, other in combinations(AXES, 2):
        met = {(getattr(cell, one), getattr(cell, other)) for cell in CELLS}
        possible = {(a, b) for a, b in product(AXES[one], AXES[other]) if _exists(one, a, other, b)}
        assert met == possible, f"not every {one} meets every {other}"


def _exists(one: str, a: object, other: str, b: object) -> bool:
    """Planners of one worker only, and what two workers are compared with, meet no second worker."""
    if (one, other) != ("planner", "workers") or b == 1:
        return True
    return a in planners(2) and a != "none"


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_training_did_something(widths: tuple[int, ...], tmp_path: Path) -> None:
    """Equal bytes prove nothing if nothing was trained: the rows touched, and they alone, have their last step."""
    cell = Cell(widths, "float32", "sum", "adagrad", "memory", "none", 1)
    trained, fresh = train(cell, tmp_path), store_of(cell, layout_of(cell, bags_of(cell)), tmp_path)
    touched = np.zeros(CLICKS.num_rows, np.int32)
    for batch in CLICKS.batches():
        touched[batch.rows] = batch.step + 1
    found = np.zeros(CLICKS.num_rows, np.int32)
    for rows, before in zip(trained, map(all_rows, groups_of(fresh)), strict=True):
        moved = (rows.values != before.values).any(axis=1)
        assert np.array_equal(moved, rows.versions > 0)
        assert moved.any()
    for name, first in zip((keys[0] for keys in KEYS), np.cumsum([0, *SIZES[:-1]]), strict=True):
        for rows, group in zip(trained, groups_of(fresh), strict=True):
            for table in group.layout.tables:
                if table.name == name:
                    begin = group.layout.offset_of(name)
                    found[first : first + table.num_rows] = rows.versions[begin : begin + table.num_rows]
    assert np.array_equal(found, touched)


def test_rowwise_adagrad_takes_the_mean_over_the_rows_own_width() -> None:
    """No other width, and no padding, is in the mean of squares that a row begins with."""
    bags = bags_of(cell := Cell((16, 5, 2), "float32", "sum", "rowwise_adagrad", "memory", "lookahead", 1))
    layout = layout_of(cell, bags)
    for group, (gradient, state) in zip(layout.groups, _first_update(bags, layout), strict=True):
        assert state.shape == (len(gradient), 1)
        assert np.allclose(state[:, 0], (gradient**2).mean(axis=1)), group.width


def _first_update(bags: EmbeddingBags, layout: Layout) -> list[tuple[Any, Any]]:
    """(gradient, state) of the rows of the first step, of each width."""
    optimizer = make_optimizer("rowwise_adagrad", {"lr": 0.1})
    store = open_groups(layout, Path(), lambda path, group: MemoryStore(group))
    header = make_header(CLICKS, planner="lookahead", cache_rows=CLICKS.num_rows, groups=groups_for(layout, CLICKS))
    found = []
    run = Run(CLICKS, Tables(store, optimizer), header, bags.pooling)
    for step in run:
        (loss_of(bags, step) * 10).backward()  # type: ignore[no-untyped-call]
        sums = []
        for leaf, part in zip(step.leaves, step._work.groups, strict=True):
            record, total = part.record, np.zeros((len(part.record.unique), leaf.shape[-1]), np.float32)
            assert leaf.grad is not None
            gradients = leaf.grad.reshape(-1, leaf.shape[-1]).numpy()
            assert part.batch.bag_offsets is not None
            bags_at = np.repeat(np.arange(len(gradients)), np.diff(part.batch.bag_offsets))
            np.add.at(total, record.inverse, gradients[bags_at])
            sums.append((total, part))
        step.update()
        run.flush()
        for (total, part), group, cache in zip(sums, groups_of(store), run._active[1], strict=True):  # type: ignore[index]
            ids = cache.table.row[part.record.unique]
            after = Rows.empty(len(ids), group.layout)
            group.read(ids, after)
            found.append((total, after.state))
        break
    return found
