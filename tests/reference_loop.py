"""Training as anyone would write it in plain PyTorch: the yardstick for everything that goes through a plan.

In: a model, an iterable of `Batch`, and the first values of all rows [num rows, width]. Out: the final rows, the final
dense weights and the metrics of a validation split. All rows are one parameter in memory with a dense gradient, so
there is no cache, store, plan, deduplication or background work in here that could be wrong; it imports nothing of
Foresee but the type of a batch. Rows that a batch does not touch have a zero gradient, which all three row optimisers
ignore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.nn import functional

from foresee.data.batch import Batch

Float32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """What the plain loop ends with."""

    rows: Float32  # [num rows, width]
    dense_weights: dict[str, Tensor]
    losses: list[float]  # of every step
    auc: float
    log_loss: float


@dataclass
class RowOptimizer:
    """Applies a dense gradient to all rows; `state` starts at zero."""

    name: str  # sgd, adagrad or rowwise_adagrad
    lr: float
    eps: float = 1e-8
    state: Tensor | float = field(default=0.0)

    def step(self, rows: Tensor, gradient: Tensor) -> None:
        if self.name == "sgd":
            rows -= self.lr * gradient
            return
        square = gradient**2
        if self.name == "rowwise_adagrad":
            square = square.mean(dim=1, keepdim=True)
        self.state = self.state + square
        rows -= self.lr * gradient / (torch.sqrt(self.state) + self.eps)


def train_plainly(
    model: nn.Module,
    batches: Iterable[Batch],
    initial_rows: Float32,
    *,
    row_optimizer: RowOptimizer,
    dense_optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer] = torch.optim.Adam,
    pooling: Sequence[str] | None = None,
    validation: Iterable[Batch] = (),
) -> Reference:
    """Train model and rows on the batches in order, then measure on the validation batches.

    `pooling` names "sum" or "mean" for each feature and matters only where bags hold more or fewer than one row.
    """
    rows = nn.Parameter(torch.from_numpy(initial_rows.copy()))
    optimizer = dense_optimizer(model.parameters())
    losses = []
    for batch in batches:
        logits = model(torch.from_numpy(batch.dense), pooled(rows, batch, pooling))
        loss = functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        assert rows.grad is not None
        with torch.no_grad():
            row_optimizer.step(rows, rows.grad)
        rows.grad = None
        losses.append(float(loss.detach()))
    auc, log_loss = evaluate_plainly(model, validation, rows, pooling)
    weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return Reference(rows=rows.detach().numpy(), dense_weights=weights, losses=losses, auc=auc, log_loss=log_loss)


def pooled(rows: Tensor, batch: Batch, pooling: Sequence[str] | None = None) -> Tensor:
    """Embeddings [samples, features, width]: the sum or mean of each bag's rows, zeros for an empty bag."""
    shape = (batch.num_samples, batch.num_features, rows.shape[1])
    ids = torch.from_numpy(batch.rows)
    if batch.bag_offsets is None:
        return functional.embedding(ids, rows).view(shape)
    offsets = torch.from_numpy(batch.bag_offsets.astype(np.int64))
    sums = functional.embedding_bag(ids, rows, offsets, mode="sum", include_last_offset=True).view(shape)
    bag_sizes = torch.diff(offsets).view(shape[:2])  # [samples, features]
    is_mean = torch.tensor([name == "mean" for name in pooling or ["sum"] * batch.num_features])
    divisors = torch.where(is_mean, bag_sizes.clamp(min=1), 1)
    return sums / divisors.unsqueeze(2)


@torch.no_grad()
def evaluate_plainly(
    model: nn.Module, batches: Iterable[Batch], rows: Tensor, pooling: Sequence[str] | None = None
) -> tuple[float, float]:
    """AUC and log loss; not a number when there is nothing to measure."""
    logits, labels = [torch.zeros(0)], [torch.zeros(0)]
    for batch in batches:
        logits.append(model(torch.from_numpy(batch.dense), pooled(rows, batch, pooling)))
        labels.append(torch.from_numpy(batch.labels))
    all_logits, all_labels = torch.cat(logits).double(), torch.cat(labels).double()
    log_loss = float(functional.binary_cross_entropy_with_logits(all_logits, all_labels))
    return auc_by_ranks(all_logits.numpy(), all_labels.numpy()), log_loss


def auc_by_ranks(logits: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """The Mann-Whitney statistic: ties share their mean rank."""
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return float("nan")
    rank_sum = float(rankdata(logits)[labels == 1].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
