"""The yardstick itself, against torch's own optimisers and loops over bags; a wrong yardstick would prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from foresee.data.batch import Batch
from foresee.models import MODELS, LogShape
from foresee.run.metrics import measure
from reference_loop import Reference, RowOptimizer, auc_by_ranks, pooled, train_plainly

NUM_ROWS, NUM_DENSE, NUM_FEATURES, WIDTH = 30, 2, 3, 4


def random_batch(step: int, *, bags: bool, samples: int = 16, coin_flips: bool = False) -> Batch:
    """Labels say whether the first row of a sample is even, so that there is something to learn; or nothing at all."""
    rng = np.random.default_rng([7, step])
    sizes = rng.integers(1, 4, samples * NUM_FEATURES) if bags else np.ones(samples * NUM_FEATURES, dtype=np.int64)
    if bags:
        sizes[1::7] = 0
        sizes[::NUM_FEATURES] = 1
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    rows = rng.integers(0, NUM_ROWS, offsets[-1])
    labels = (rows[offsets[:-1:NUM_FEATURES]] % 2 == 0).astype(np.float32)
    dense = rng.normal(size=(samples, NUM_DENSE)).astype(np.float32)
    if coin_flips:
        labels = (rng.random(samples) < 0.5).astype(np.float32)
    return Batch(
        step=step,
        dense=dense,
        labels=labels,
        rows=rows,
        bag_offsets=offsets if bags else None,
        num_features=NUM_FEATURES,
    )


def small_model(name: str = "dlrm", **options: Any) -> nn.Module:
    torch.manual_seed(5)
    return MODELS[name](LogShape(num_dense=NUM_DENSE, num_features=NUM_FEATURES), WIDTH, **options)


def initial_rows(width: int = WIDTH) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(1).uniform(-0.5, 0.5, (NUM_ROWS, width)).astype(np.float32)


@pytest.mark.parametrize("pooling", [None, ["sum", "mean", "sum"], ["mean", "mean", "mean"]])
def test_pooling_equals_a_loop_over_bags(pooling: list[str] | None) -> None:
    batch, rows = random_batch(0, bags=True), torch.from_numpy(initial_rows())
    assert batch.bag_offsets is not None
    result = pooled(rows, batch, pooling)
    num_empty = 0
    for bag in range(batch.num_samples * NUM_FEATURES):
        sample, feature = divmod(bag, NUM_FEATURES)
        ids = batch.rows[batch.bag_offsets[bag] : batch.bag_offsets[bag + 1]]
        expected = sum((rows[i] for i in ids), start=torch.zeros(WIDTH))
        if pooling and pooling[feature] == "mean" and len(ids):
            expected = expected / len(ids)
        num_empty += not len(ids)
        torch.testing.assert_close(result[sample, feature], expected)
    assert num_empty


def test_single_rows_need_no_offsets() -> None:
    batch, rows = random_batch(0, bags=False), torch.from_numpy(initial_rows())
    expected = rows[torch.from_numpy(batch.rows).view(-1, NUM_FEATURES)]
    assert torch.equal(pooled(rows, batch), expected)


def test_sgd_and_adagrad_are_torchs() -> None:
    torchs: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "adagrad": partial(torch.optim.Adagrad, eps=1e-8),
    }
    for name, make in torchs.items():
        ours, theirs = (torch.from_numpy(initial_rows()) for _ in range(2))
        parameter = nn.Parameter(theirs)
        optimizer, reference = make([parameter], lr=0.1), RowOptimizer(name, lr=0.1)
        for step in range(5):
            gradient = torch.randn(ours.shape, generator=torch.Generator().manual_seed(step))
            gradient[step::3] = 0
            reference.step(ours, gradient)
            parameter.grad = gradient
            optimizer.step()
        torch.testing.assert_close(ours, parameter.detach())


def test_rowwise_adagrad_is_its_formula() -> None:
    rows, optimizer = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), RowOptimizer("rowwise_adagrad", lr=0.5, eps=0.1)
    optimizer.step(rows, torch.tensor([[3.0, 1.0], [0.0, 0.0]]))
    optimizer.step(rows, torch.tensor([[1.0, 1.0], [0.0, 2.0]]))
    first = 1.0 - 0.5 * 3 / (5**0.5 + 0.1) - 0.5 * 1 / (6**0.5 + 0.1)
    second = 4.0 - 0.5 * 2 / (2**0.5 + 0.1)
    assert rows[0, 0].item() == pytest.approx(first)
    assert rows[1].tolist() == pytest.approx([3.0, second])


def run(name: str, model: str, *, bags: bool, lr: float | None = None, coin_flips: bool = False) -> Reference:
    """150 steps on 30 rows: enough for each of them to be learned by heart, also with plain SGD."""
    width = {"ncf": 2 * WIDTH, "deepfm": WIDTH + 1, "wide_and_deep": WIDTH + 1}.get(model, WIDTH)
    options: dict[str, Any] = {"bottom": [32], "top": [32]} if model == "dlrm" else {"deep": [32]}
    batches = [random_batch(step, bags=bags, coin_flips=coin_flips) for step in range(158)]
    return train_plainly(
        small_model(model, **options),
        iter(batches[:150]),
        initial_rows(width),
        row_optimizer=RowOptimizer(name, lr=lr if lr is not None else 2.0 if name == "sgd" else 0.1),
        dense_optimizer=partial(torch.optim.Adam, lr=0.01),
        pooling=["sum", "mean", "sum"],
        validation=batches[150:],
    )


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_learns_and_repeats_itself(name: str, bags: bool) -> None:
    first, again = (run(name, "dlrm", bags=bags) for _ in range(2))
    assert np.array_equal(first.rows, again.rows)
    assert all(torch.equal(first.dense_weights[key], again.dense_weights[key]) for key in first.dense_weights)
    assert (first.losses, first.auc) == (again.losses, again.auc)
    assert np.mean(first.losses[-10:]) < 0.8 * np.mean(first.losses[:10])
    assert first.auc > 0.8
    assert first.log_loss < 0.69


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_learns_nothing_where_there_is_nothing(name: str) -> None:
    """A label that reached the model other than through the rows would show here."""
    assert run(name, "dlrm", bags=True, coin_flips=True).auc == pytest.approx(0.5, abs=0.15)


def test_learns_next_to_nothing_when_rows_stand_still() -> None:
    result = run("sgd", "dlrm", bags=False, lr=0.0)
    assert np.array_equal(result.rows, initial_rows())
    assert result.auc < 0.8


@pytest.mark.parametrize("model", MODELS)
def test_trains_every_model(model: str) -> None:
    assert run("rowwise_adagrad", model, bags=True).auc > 0.8


def test_initial_rows_stay_as_they_were_and_untouched_rows_too() -> None:
    rows = initial_rows()
    batch = random_batch(0, bags=False, samples=4)
    result = train_plainly(small_model(), [batch], rows, row_optimizer=RowOptimizer("adagrad", lr=0.1))
    assert np.array_equal(rows, initial_rows())
    changed = np.flatnonzero((result.rows != rows).any(axis=1))
    assert set(changed) == set(batch.rows)
    assert np.isnan(result.auc)


def test_its_metrics_are_ours() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=500).round(1).astype(np.float32)
    labels = (rng.random(500) < 0.4).astype(np.float32)
    metrics = measure(logits, labels)
    assert metrics.auc == pytest.approx(auc_by_ranks(logits.astype(np.float64), labels.astype(np.float64)))
    loss = functional.binary_cross_entropy_with_logits(torch.from_numpy(logits), torch.from_numpy(labels))
    assert metrics.log_loss == pytest.approx(float(loss), rel=1e-5)
