"""The cache of plain torch operations gives the bytes of the fused one, step by step, for every optimiser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from foresee.data import ClickLog, tiny
from foresee.engine.cache import SlotCache
from foresee.engine.header import make_header
from foresee.engine.kernels import ONE_THREAD
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad
from foresee.engine.planned_step import Pooling, planned
from foresee.engine.tables import layout_for
from foresee.engine.torch_cache import TorchCache
from foresee.store.contract import Rows
from foresee.store.memory import MemoryStore


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path: Path = tmp_path_factory.mktemp("torch-cache")
    return tiny(path / "log", seed=3, num_samples=600, multi_valued=True)


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), LazyAdam(lr=0.01)])
def test_both_caches_give_the_same_bytes(log: ClickLog, optimizer: Optimizer) -> None:
    stream = log.batches(batch_size=32, seed=1, epochs=1)
    pooling = Pooling.of(log.mean_features)
    header = make_header(stream, planner="lookahead", cache_rows=120)
    layout = layout_for(log, 6, optimizer, 0, 0.1)
    store = MemoryStore(layout)
    fused = SlotCache(layout, optimizer, capacity_rows=120, threads=ONE_THREAD)
    plain = TorchCache(layout, optimizer, capacity_rows=120, device=torch.device("cpu"))
    weights = torch.randn(log.num_features, 6, generator=torch.Generator().manual_seed(0))
    for work in planned(stream, header, pooling):
        staging = Rows.empty(len(work.record.fetch), layout)
        store.read(work.record.fetch.row, staging)
        gradients = []
        for cache in (fused, plain):
            cache.fill(work.record.fetch, staging)
            embeddings = cache.embeddings(work)
            logits = (embeddings * weights).sum(dim=(1, 2))
            functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(work.batch.labels)).backward()  # type: ignore[no-untyped-call]
            assert embeddings.grad is not None
            gradients.append(embeddings.grad)
            cache.update(work, embeddings.grad)
        assert torch.equal(gradients[0], gradients[1])
        for one, other in zip(fused.changed(), plain.changed(), strict=True):
            assert_equal(one, other)
        evicted = fused.take(work.record.evict)
        assert_rows_equal(evicted, plain.take(work.record.evict))
        store.write(work.record.evict.row, evicted)
    assert [len(rows) for rows, _ in fused.changed()] == [0]


def assert_equal(one: tuple[np.ndarray, Rows], other: tuple[np.ndarray, Rows]) -> None:
    assert np.array_equal(one[0], other[0])
    assert_rows_equal(one[1], other[1])


def assert_rows_equal(one: Rows, other: Rows) -> None:
    assert np.array_equal(one.values, other.values)
    assert np.array_equal(one.state, other.state)
    assert np.array_equal(one.versions, other.versions)
