"""The protocols whose accuracy is compared, as plans of one log, and one training run of one of them.

In: the batches of a run in order, its model, and the name of a protocol: `exact` (our plan), `het S` (staleness S) or
`fae`. Out: a curve of AUC and log loss on the held-out split over samples trained, and what the reads missed. All
protocols get the same batches, first weights, first rows, cache and learning rates; FAE trains the samples of each
epoch in its own order, those that touch a row outside its hot set first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from emulated.workers import EmulatedWorkers, Staleness
from foresee.arrays import Int64
from foresee.data.batch import Batch
from foresee.engine.planned_step import accesses_of
from foresee.plan import find, plan
from foresee.plan.baselines.fae import group, hot_rows
from foresee.plan.record import Accesses, Header, PlannerOptions, Record
from foresee.run.metrics import MetricsAccumulator

PROFILE_SHARE = 0.05
"""Of the steps; what FAE looks at before it fixes its hot set."""
CACHE_SHARE = 0.1
"""Of the rows that the run touches; never less than two batches need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What one run trains on, whatever the protocol."""

    batches: Sequence[Batch]
    steps_per_epoch: int
    valid: Sequence[Batch]
    num_rows: int
    num_workers: int
    rows: Tensor
    """First values, [rows, width]."""
    model: Callable[[], nn.Module]
    """A model with its first weights."""
    row_lr: float
    dense_lr: float

    @property
    def capacity_rows(self) -> int:
        distinct = [np.unique(batch.rows) for batch in self.batches]
        two = max(len(np.union1d(first, second)) for first, second in pairwise([*distinct, distinct[-1]]))
        return max(two, int(CACHE_SHARE * len(np.unique(np.concatenate(distinct)))))


@dataclass(frozen=True, slots=True)
class Point:
    """One evaluation."""

    num_samples: int
    """Trained so far."""
    auc: float
    log_loss: float


@dataclass(frozen=True, slots=True)
class Trained:
    """How a run went."""

    curve: list[Point]
    staleness: Staleness
    hot_share: float
    """Of the samples, those that FAE counts as hot."""


class DenseHalf:
    """The model and its optimiser, as a learner of the emulation."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        self.model = model
        self._optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def __call__(self, dense: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor:
        leaf = embeddings.detach().requires_grad_()
        self._optimizer.zero_grad()
        binary_cross_entropy_with_logits(self.model(dense, leaf), labels).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        assert leaf.grad is not None
        return leaf.grad


def train(course: Course, protocol: str, *, num_points: int) -> Trained:
    """Trains by a protocol and evaluates so often, at equal distances."""
    header, batches, hot_share = prepared(course, protocol)
    learner = DenseHalf(course.model(), course.dense_lr)
    additive = header.planner in ("het", "herald")
    workers = EmulatedWorkers(header, course.rows.clone(), lr=course.row_lr, additive=additive)
    due = {round(len(batches) * (k + 1) / num_points) for k in range(num_points)}
    curve, num_samples = [], 0
    profile = profile_of(course.batches)  # as the log has them, also for FAE, whose hot set decides its order
    for batch, records in zip(batches, records_by_step(header, batches, profile), strict=True):
        workers.step(batch, records, learner)
        num_samples += batch.num_samples
        if records[0].step + 1 in due:
            curve.append(Point(num_samples, *evaluate(learner.model, workers.all_rows(), course.valid)))
    return Trained(curve, workers.staleness, hot_share)


def prepared(course: Course, protocol: str) -> tuple[Header, Sequence[Batch], float]:
    """The header of a protocol's plan, the batches in its order, and the share of hot samples."""
    name, _, staleness = protocol.partition(" ")
    planner = {"exact": "lookahead"}.get(name, name)
    header = Header(
        planner=planner, options=PlannerOptions(staleness=int(staleness or 0)), num_workers=course.num_workers,
        capacity_rows=course.capacity_rows, num_rows=course.num_rows, first_step=0, num_steps=len(course.batches),
        fetch_ahead_steps=8, stream_digest=protocol,
    )  # fmt: skip
    if planner != "fae":
        return header, course.batches, 0.0
    hot = hot_rows(profile_of(course.batches), header.capacity_rows)
    ordered: list[Batch] = []
    num_hot = 0
    for begin in range(0, len(course.batches), course.steps_per_epoch):
        epoch, hot_here = hot_last(course.batches[begin : begin + course.steps_per_epoch], hot)
        ordered += epoch
        num_hot += hot_here
    return header, ordered, num_hot / sum(batch.num_samples for batch in ordered)


def hot_last(batches: Sequence[Batch], hot: Int64) -> tuple[list[Batch], int]:
    """The same samples in FAE's order, in batches of the same sizes, and how many are hot."""
    first = batches[0]
    width = first.num_features
    rows = np.concatenate([batch.rows for batch in batches]).reshape(-1, width)
    dense, labels = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("dense", "labels"))
    is_hot = np.isin(rows, hot).all(axis=1)
    parts = np.split(np.argsort(is_hot, kind="stable"), np.cumsum([batch.num_samples for batch in batches])[:-1])
    ordered = [
        Batch(batch.step, dense[part], labels[part], rows[part].reshape(-1), None, width)
        for batch, part in zip(batches, parts, strict=True)
    ]
    expected = group([accesses_of(batch) for batch in batches], hot)
    assert all(np.array_equal(batch.rows, accesses.rows) for batch, accesses in zip(ordered, expected, strict=True))
    return ordered, int(np.count_nonzero(is_hot))


def profile_of(batches: Sequence[Batch]) -> list[Accesses]:
    """The part of a run that a planner may look at first, as the log has it."""
    return [accesses_of(batch) for batch in batches[: max(1, int(PROFILE_SHARE * len(batches)))]]


def records_by_step(header: Header, batches: Sequence[Batch], profile: Sequence[Accesses]) -> Iterator[list[Record]]:
    """The records of all workers, step after step, as the planner decides them."""
    planner = find(header.planner).planner_to_compare(header, lambda num_steps: profile)
    records = plan(planner, map(accesses_of, batches))
    while together := list(islice(records, header.num_workers)):
        yield together


@torch.no_grad()
def evaluate(model: nn.Module, rows: Tensor, batches: Sequence[Batch]) -> tuple[float, float]:
    """AUC and log loss."""
    found = MetricsAccumulator()
    model.eval()
    for batch in batches:
        embeddings = rows[batch.rows].view(batch.num_samples, batch.num_features, -1)
        found.add(model(torch.from_numpy(batch.dense), embeddings).numpy(), batch.labels)
    model.train()
    metrics = found.result()
    assert metrics.auc is not None, metrics.reason
    assert metrics.log_loss is not None, metrics.reason
    return metrics.auc, metrics.log_loss
