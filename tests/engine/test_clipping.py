"""Gradients of weights and rows, clipped by the norm of both together: as plain PyTorch does, whatever the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

import foresee
from foresee.data import ClickLog, tiny
from foresee.errors import UsageError
from foresee.models import DLRM
from foresee.store.kernels import initial_values

BATCH, DIM, MAX_NORM = 64, 4, 0.12


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


def trained(log: ClickLog, **options: Any) -> tuple[Any, list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    tables = foresee.Tables.in_memory(log, dim=DIM, optimizer=foresee.SGD(lr=0.5))
    model = DLRM(log, DIM, bottom=(8,), top=(8,))
    sgd, norms = torch.optim.SGD(model.parameters(), lr=0.5), []
    for step in foresee.steps(log, tables, batch_size=BATCH, **options):
        binary_cross_entropy_with_logits(model(step.dense, step.embeddings), step.labels).backward()  # type: ignore[no-untyped-call]
        norms.append(step.clip_grad_norm(model.parameters(), MAX_NORM))
        sgd.step()
        sgd.zero_grad()
        step.update()
    return np.concatenate([tables.values(table.name) for table in log.tables]), norms, model.state_dict()


def test_the_norm_is_that_of_weights_and_whole_tables(log: ClickLog) -> None:
    rows, norms, weights = trained(log, cache_rows=log.num_rows)
    torch.manual_seed(0)
    layout = foresee.Tables.in_memory(log, dim=DIM, optimizer=foresee.SGD(lr=0.5)).layout
    model = DLRM(log, DIM, bottom=(8,), top=(8,))
    table = torch.nn.Parameter(torch.from_numpy(initial_values(layout, np.arange(log.num_rows))))
    sgd, plain = torch.optim.SGD([*model.parameters(), table], lr=0.5), []
    mean = np.array(log.mean_features)
    for batch in log.batches(batch_size=BATCH).batches():
        assert batch.bag_offsets is not None
        sizes = np.diff(batch.bag_offsets)
        bags = torch.zeros(len(sizes), DIM).index_add(
            0, torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes)), table[torch.from_numpy(batch.rows)]
        )
        shares = np.where(np.tile(mean, BATCH), np.maximum(sizes, 1), 1).astype(np.float32)
        embeddings = (bags / torch.from_numpy(shares)[:, None]).view(BATCH, -1, DIM)
        sgd.zero_grad()
        logits = model(torch.from_numpy(batch.dense), embeddings)
        binary_cross_entropy_with_logits(logits, torch.from_numpy(batch.labels)).backward()  # type: ignore[no-untyped-call]
        plain.append(float(torch.nn.utils.clip_grad_norm_([*model.parameters(), table], MAX_NORM)))
        sgd.step()
    assert norms == pytest.approx(plain, rel=1e-4)
    assert min(plain) < MAX_NORM < max(plain), "some steps are clipped and some are not"
    np.testing.assert_allclose(rows, table.detach().numpy(), rtol=1e-4, atol=1e-6)
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weights[name], weight, rtol=1e-4, atol=1e-6)


def test_no_cache_changes_a_bit(log: ClickLog) -> None:
    rows, norms, weights = trained(log, cache_rows=log.num_rows)
    for options in ({"planner": "lru"}, {"planner": "none"}, {"num_threads": 2}):
        others, norms_again, weights_again = trained(log, cache_rows=300, **options)
        assert (others.tobytes(), norms_again) == (rows.tobytes(), norms)
        assert all(torch.equal(weights_again[name], weight) for name, weight in weights.items())


def test_after_the_update_it_is_too_late(log: ClickLog) -> None:
    tables = foresee.Tables.in_memory(log, dim=DIM, optimizer=foresee.SGD(lr=0.5))
    loop = iter(foresee.steps(log, tables, batch_size=BATCH, cache_rows=log.num_rows))
    step = next(loop)
    with pytest.raises(UsageError, match=r"call loss\.backward\(\) first"):
        step.clip_grad_norm([], 1.0)
    step.update_during_backward()
    step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
    with pytest.raises(UsageError, match="its update has begun, so clipping comes too late"):
        step.clip_grad_norm([], 1.0)
    step.update()
    loop.close()
