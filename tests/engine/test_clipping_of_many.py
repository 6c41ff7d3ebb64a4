"""The norm that several workers clip by: at every step that of plain PyTorch on the whole batch, with the same bits.

Each worker is a thread with a model of its own, whose gradients are averaged as DDP does. What every worker read at a
step is kept; plain PyTorch then computes the norm of the same batch from the same weights and vectors, so that no
rounding of an earlier step is in the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from foresee.data import ClickLog, tiny
from foresee.data.batch import Batch, Pooling, Vectors
from foresee.engine.exchange.mesh import Lane
from foresee.engine.exchange.peers import LocalExchange, PeerExchange
from foresee.engine.header import groups_for, make_header
from foresee.engine.optimizers import SGD, LazyAdam, Optimizer, RowwiseAdagrad
from foresee.engine.run import Run
from foresee.engine.step import Step
from foresee.engine.tables import Tables, layout_for
from foresee.store.contract import Rows
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore
from foresee.store.row_groups import RowGroups
from foresee.testing.delays import Meeting, SharedStore, ThreadMesh
from trace_stream import TraceStream, layout_of

BATCH_SIZE, MAX_NORM, EPOCHS = 24, 0.05, 2
ONE_WIDTH, WIDTHS = 5, {"user": 6, "item": 3, "default": 2}
PLAIN_SGD = SGD(lr=0.5)
PLACEMENTS = ("contiguous", "herald", "location_aware")


class Scores(nn.Module):
    """A logit for each sample that depends on every value of its vectors, whatever their number."""

    def __init__(self, num_dense: int, num_groups: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-0.1, 0.1, num_dense))  # the same on every thread
        self.scales = nn.Parameter(torch.ones(num_groups))

    def forward(self, dense: Tensor, leaves: Sequence[Tensor], samples: Sequence[Tensor]) -> Tensor:
        logits: Tensor = dense @ self.weight
        for scale, leaf, sample in zip(self.scales, leaves, samples, strict=True):
            vectors = leaf.reshape(len(sample), -1)
            scores = scale * (vectors.sum(1) + vectors.square().sum(1))
            logits = logits.index_add(0, sample, scores)
        return logits


@dataclass
class Part:
    """What one worker saw of a step."""

    step: int
    dense: Tensor
    labels: Tensor
    leaves: list[Tensor]
    samples: list[Tensor]
    """Of each group: the sample of every vector."""
    lookups: list[tuple[Tensor, Tensor, Tensor]]
    """Of each group: rows, the vector that each goes to, and its share in that vector."""
    weights: dict[str, Tensor]
    norm: float


@dataclass
class Workers:
    """One training by threads."""

    stream: Any
    layout: Layout
    optimizer: Optimizer
    pooling: Pooling
    num_workers: int
    planner: str = "lookahead"
    placement: str = "contiguous"
    cache_rows: int = 150
    parts_of_batch: int = 1
    max_norm: float | None = MAX_NORM
    parts: list[Part] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    rows: list[Rows] = field(default_factory=list)
    _errors: list[BaseException] = field(default_factory=list)

    def train(self) -> Workers:
        shared = [SharedStore(MemoryStore(group), self.num_workers) for group in self.layout.groups]
        meeting, dense = Meeting(self.num_workers), Meeting(self.num_workers)

        def work(rank: int) -> None:
            try:
                self._train(rank, shared, meeting, dense)
            except BaseException as error:
                self._errors.append(error)
                meeting.abort()
                dense.abort()

        threads = [Thread(target=work, args=(rank,)) for rank in range(self.num_workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        for store in shared:
            rows = Rows.empty(store.store.layout.num_rows, store.store.layout)
            store.store.read(np.arange(len(rows.versions)), rows)
            self.rows.append(rows)
        return self

    def _train(self, rank: int, shared: list[SharedStore], meeting: Meeting, dense: Meeting) -> None:
        groups = groups_for(self.layout, self.stream)
        header = make_header(
            self.stream, planner=self.planner, cache_rows=self.cache_rows, num_workers=self.num_workers,
            placement=self.placement, remember_versions=True, groups=groups,
        )  # fmt: skip
        stores = [store.for_worker(rank) for store in shared]
        tables = Tables(RowGroups(self.layout, stores) if groups else stores[0], self.optimizer)
        exchange = PeerExchange(self.layout, ThreadMesh(meeting, rank)) if self.num_workers > 1 else LocalExchange()
        run = Run(self.stream, tables, header, self.pooling, exchange=exchange, commit_at_end=False)
        model = Scores(next(iter(self.stream.batches())).dense.shape[1], len(self.layout.groups))
        sgd, batches = torch.optim.SGD(model.parameters(), lr=0.1), iter(self.stream.batches())
        for step in run:
            part = self._part_of(next(batches), step, model)
            for some in torch.arange(len(step.labels)).chunk(self.parts_of_batch):
                losses = losses_of(model, part, step.leaves)
                (losses[some].sum() * self.num_workers / step.batch_size).backward()  # type: ignore[no-untyped-call]
            _average(model, dense, rank)
            if self.max_norm is not None:
                part.norm = step.clip_grad_norm(model.parameters(), self.max_norm)
            self.parts.append(part)
            sgd.step()
            sgd.zero_grad()
            step.update()
        run.flush()
        if isinstance(exchange, PeerExchange):
            exchange.close()
        if rank == 0:
            self.weights = model.state_dict()

    def _part_of(self, batch: Batch, step: Step, model: nn.Module) -> Part:
        own = batch.part(step.samples)
        of_groups = [(own.of_features(it.features)[0], it.vectors, len(it.features)) for it in step.groups]
        return Part(
            step.index, step.dense, step.labels, [leaf.detach().clone() for leaf in step.leaves],
            [_samples(own.num_samples, vectors, num_features) for _, vectors, num_features in of_groups],
            [_lookups(part, vectors) for part, vectors, _ in of_groups],
            {name: value.detach().clone() for name, value in model.state_dict().items()}, 0.0,
        )  # fmt: skip

    @property
    def steps(self) -> Iterator[list[Part]]:
        """What all workers saw, step by step."""
        for step in range(self.stream.num_steps):
            yield [part for part in self.parts if part.step == step]


def losses_of(model: nn.Module, part: Part, leaves: Sequence[Tensor]) -> Tensor:
    logits = model(part.dense, leaves, part.samples)
    return functional.binary_cross_entropy_with_logits(logits, part.labels, reduction="none")


def _samples(num_samples: int, vectors: Vectors, num_features: int) -> Tensor:
    bags = torch.arange(num_samples).repeat_interleave(num_features)
    return bags if vectors.of_bag is None else bags.repeat_interleave(torch.from_numpy(np.diff(vectors.of_bag)))


def _lookups(part: Batch, vectors: Vectors) -> tuple[Tensor, Tensor, Tensor]:
    rows = torch.from_numpy(part.rows)
    if vectors.offsets is None:
        return rows, torch.arange(len(rows)), torch.ones(len(rows))
    sizes = torch.from_numpy(np.diff(vectors.offsets)).long()
    means = torch.from_numpy(np.resize(vectors.mean, len(sizes)))
    of_lookup = torch.arange(len(sizes)).repeat_interleave(sizes)
    return rows, of_lookup, (1.0 / torch.where(means, sizes, 1).clamp(min=1))[of_lookup]


def _average(model: nn.Module, meeting: Meeting, rank: int) -> None:
    """As DDP: the mean over workers, the same bits everywhere."""
    gradients = [it.grad for it in model.parameters()]
    flat = torch.cat([it.flatten() for it in gradients if it is not None])
    sizes = [len(flat)] * meeting.num_workers
    parts = ThreadMesh(meeting, rank).start(Lane.CRITICAL, flat.repeat(meeting.num_workers), sizes, sizes)()
    mean = parts.view(meeting.num_workers, -1).sum(0) / meeting.num_workers
    for gradient, own in zip(
        gradients, torch.split(mean, [it.numel() for it in gradients if it is not None]), strict=True
    ):
        assert gradient is not None
        gradient.copy_(own.view_as(gradient))


def plain_norm(parts: list[Part], layout: Layout, batch_size: int) -> float:
    """What torch.nn.utils.clip_grad_norm_ finds for the whole batch, with all tables as parameters."""
    tables = [nn.Parameter(torch.zeros(layout.num_rows, group.width)) for group in layout.groups]
    model = Scores(parts[0].dense.shape[1], len(tables))
    model.load_state_dict(parts[0].weights)
    losses = []
    for part in parts:
        leaves = [
            (leaf.view(-1, leaf.shape[-1]).index_add(0, vector, table[rows] * share[:, None])).view_as(leaf)
            for leaf, table, (rows, vector, share) in zip(part.leaves, tables, part.lookups, strict=True)
        ]
        losses.append(losses_of(model, part, leaves))
    (torch.cat(losses).sum() / batch_size).backward()  # type: ignore[no-untyped-call]
    return float(torch.nn.utils.clip_grad_norm_([*model.parameters(), *tables], MAX_NORM))


def check_norms(workers: Workers) -> None:
    """Every worker has the norm of plain PyTorch, in the same bits as its peers."""
    num_clipped = 0
    for parts in workers.steps:
        assert len(parts) == workers.num_workers
        assert len({part.norm for part in parts}) == 1, f"step {parts[0].step}: workers clip by different norms"
        for name, weight in parts[0].weights.items():
            assert all(torch.equal(weight, part.weights[name]) for part in parts), f"step {parts[0].step}: {name}"
        plain = plain_norm(parts, workers.layout, sum(len(part.labels) for part in parts))
        assert parts[0].norm == pytest.approx(plain, rel=1e-6), f"step {parts[0].step}"
        num_clipped += plain > MAX_NORM
    assert num_clipped > workers.stream.num_steps / 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path: Path = tmp_path_factory.mktemp("clipping")
    return tiny(path / "log", seed=5, num_samples=400)


def workers_of(
    log: ClickLog, num_workers: int, *, dim: Any = ONE_WIDTH, dtype: str = "float32",
    optimizer: Optimizer = PLAIN_SGD, apart: bool = False, epochs: int = EPOCHS, **more: Any,
) -> Workers:  # fmt: skip
    layout = layout_for(log, dim, optimizer, 0, 0.1, dtype)
    names = [table.name for table in log.tables]
    pooling = Pooling.of(
        log.mean_features, [apart and feature.name == "history" for feature in log.features],
        [names.index(feature.table) for feature in log.features],
    )  # fmt: skip
    stream = log.batches(batch_size=BATCH_SIZE, seed=2, epochs=epochs)
    return Workers(stream, layout, optimizer, pooling, num_workers, **more).train()


@pytest.mark.parametrize("dim", [ONE_WIDTH, WIDTHS], ids=["one-width", "widths"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_every_norm_is_that_of_plain_pytorch(log: ClickLog, num_workers: int, placement: str, dim: Any) -> None:
    check_norms(workers_of(log, num_workers, placement=placement, dim=dim))


@pytest.mark.parametrize(
    "more",
    [
        {"dtype": "bfloat16"}, {"dtype": "float16", "dim": WIDTHS}, {"optimizer": LazyAdam(lr=0.01)},
        {"optimizer": RowwiseAdagrad(lr=0.05), "cache_rows": 100}, {"apart": True}, {"parts_of_batch": 3},
        {"planner": "none"},
    ],
    ids=["bfloat16", "float16-widths", "lazy-adam", "small-cache", "sequences", "accumulation", "no-cache"],
)  # fmt: skip
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_it_is_so_with_any_rows_optimizer_cache_and_loop(log: ClickLog, num_workers: int, more: dict[str, Any]) -> None:
    check_norms(workers_of(log, num_workers, placement="location_aware", **more))


@pytest.mark.parametrize("dim", [ONE_WIDTH, WIDTHS], ids=["one-width", "widths"])
def test_which_worker_owns_a_row_changes_no_bit(log: ClickLog, dim: Any) -> None:
    """Without a cache rows come from the store in every step, and have other owners than in a plan that keeps them."""
    planned, unplanned = (workers_of(log, 3, planner=planner, dim=dim) for planner in ("lookahead", "none"))
    norms = [[parts[0].norm for parts in workers.steps] for workers in (planned, unplanned)]
    assert norms[0] == norms[1]
    assert all(torch.equal(planned.weights[name], weight) for name, weight in unplanned.weights.items())
    for one, other in zip(planned.rows, unplanned.rows, strict=True):
        assert one.values.tobytes() == other.values.tobytes()


class UnevenStream(TraceStream):
    """Two samples a step; the second has rows in every third step only."""

    def __init__(self, num_steps: int) -> None:
        super().__init__([[[step % 5], [step % 7]] for step in range(num_steps)], num_rows=8)
        for step, batch in enumerate(self._batches):
            ends, rows = (2, batch.rows) if step % 3 == 0 else (1, batch.rows[:1])
            self._batches[step] = replace(batch, rows=rows, bag_offsets=np.array([0, 1, ends], np.int32))


def test_a_worker_without_rows_takes_part() -> None:
    stream, optimizer = UnevenStream(30), SGD(lr=0.5)
    layout = layout_of(stream.num_rows, optimizer)
    pooling = Pooling.of([False])
    check_norms(Workers(stream, layout, optimizer, pooling, 2, cache_rows=8).train())


def _difference(one: Workers, other: Workers) -> float:
    return max(float((one.weights[name] - weight).abs().max()) for name, weight in other.weights.items())


def test_weights_after_300_steps_differ_no_more_than_without_clipping(log: ClickLog) -> None:
    """Of one worker and two: sums of floats in another order, and nothing else."""
    differences = {}
    for max_norm in (None, MAX_NORM):
        one, two = (workers_of(log, num, placement="location_aware", epochs=24, max_norm=max_norm) for num in (1, 2))
        assert one.stream.num_steps >= 300
        differences[max_norm] = _difference(one, two)
    assert 0 < differences[MAX_NORM] <= 3 * differences[None], differences
