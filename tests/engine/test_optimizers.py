"""Row optimisers: names, state, bad numbers; and their arithmetic against float64 and against torch.optim."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from foresee.engine.kernels import apply_rows
from foresee.engine.optimizers import OPTIMIZERS, SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad
from foresee.engine.optimizers.contract import number_of
from foresee.errors import ConfigError
from foresee.store.contract import Rows

ALL: list[Optimizer] = [SGD(lr=0.1), Adagrad(lr=0.1), RowwiseAdagrad(lr=0.1), LazyAdam(lr=0.1)]
WIDTHS = [1, 3, 8, 64, 65]
Float64 = NDArray[np.float64]


def ids_of(optimizer: Optimizer) -> str:
    return optimizer.name


def fresh_rows(optimizer: Optimizer, num_rows: int, width: int, rng: np.random.Generator) -> Rows:
    return Rows(
        rng.normal(size=(num_rows, width)).astype(np.float32),
        np.zeros((num_rows, optimizer.state_width(width)), np.float32),
        np.zeros(num_rows, np.int32),
    )


def reference_step(optimizer: Optimizer, value: Float64, state: Float64, gradient: Float64) -> tuple[Float64, Float64]:
    """The documented formulas, on one row, in float64."""
    width, lr = len(value), number_of(optimizer.lr)
    match optimizer:
        case SGD():
            return value - lr * gradient, state
        case Adagrad():
            state = state + gradient**2
            return value - lr * gradient / (np.sqrt(state) + optimizer.eps), state
        case RowwiseAdagrad():
            state = state + np.mean(gradient**2)
            return value - lr / (np.sqrt(state) + optimizer.eps) * gradient, state
        case LazyAdam():
            count = state[-1] + 1
            first = optimizer.beta1 * state[:width] + (1 - optimizer.beta1) * gradient
            second = optimizer.beta2 * state[width:-1] + (1 - optimizer.beta2) * gradient**2
            rate = lr / (1 - optimizer.beta1**count)
            root = math.sqrt(1 - optimizer.beta2**count)
            value = value - rate * first / (np.sqrt(second) / root + optimizer.eps)
            return value, np.concatenate([first, second, [count]])
    raise AssertionError(optimizer.name)


def test_names_find_their_classes() -> None:
    assert list(OPTIMIZERS) == ["sgd", "adagrad", "rowwise_adagrad", "lazy_adam"]
    assert all(OPTIMIZERS[optimizer.name] is type(optimizer) for optimizer in ALL)


def test_state_widths() -> None:
    assert [optimizer.state_width(64) for optimizer in ALL] == [0, 64, 1, 129]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: SGD(lr=-1.0), "lr=-1.0 of sgd"),
        (lambda: Adagrad(lr=math.nan), "lr=nan of adagrad"),
        (lambda: RowwiseAdagrad(lr=0.1, eps=0.0), "eps=0.0 of rowwise_adagrad"),
        (lambda: RowwiseAdagrad(lr=0.1, eps=1e-46), "eps=1e-46 of rowwise_adagrad"),
        (lambda: LazyAdam(lr=0.1, beta1=1.0), "beta1=1.0 of lazy_adam"),
        (lambda: LazyAdam(lr=0.1, beta2=-0.1), "beta2=-0.1 of lazy_adam"),
    ],
)
def test_numbers_that_cannot_be_used_are_named(build: object, named: str) -> None:
    assert callable(build)
    with pytest.raises(ConfigError, match=named):
        build()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("optimizer", ALL, ids=ids_of)
def test_several_steps_follow_the_documented_formula(optimizer: Optimizer, width: int) -> None:
    rng = np.random.default_rng(0)
    cache = fresh_rows(optimizer, 7, width, rng)
    values, state = cache.values.astype(np.float64), cache.state.astype(np.float64)
    for step in range(5):
        slots = rng.permutation(7)[:4].astype(np.int32)
        sums = rng.normal(size=(4, width)).astype(np.float32)
        apply_rows(optimizer, cache, slots, sums, version=step + 1)
        for slot, gradient in zip(slots, sums.astype(np.float64), strict=True):
            values[slot], state[slot] = reference_step(optimizer, values[slot], state[slot], gradient)
        assert (cache.versions[slots] == step + 1).all()
    np.testing.assert_allclose(cache.values, values, rtol=1e-5, atol=2e-6)
    np.testing.assert_allclose(cache.state, state, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("optimizer", ALL, ids=ids_of)
def test_a_zero_gradient_on_a_fresh_row_leaves_the_values(optimizer: Optimizer) -> None:
    cache = fresh_rows(optimizer, 2, 5, np.random.default_rng(0))
    before = cache.values.copy()
    apply_rows(optimizer, cache, np.array([1], np.int32), np.zeros((1, 5), np.float32), version=1)
    assert cache.values.tobytes() == before.tobytes()


TORCH_PEERS: list[tuple[Optimizer, type[torch.optim.Optimizer], dict[str, float]]] = [
    (SGD(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    (Adagrad(lr=0.1, eps=1e-8), torch.optim.Adagrad, {"lr": 0.1, "eps": 1e-8}),
    (LazyAdam(lr=0.1, eps=1e-8), torch.optim.Adam, {"lr": 0.1, "eps": 1e-8}),
]


@pytest.mark.parametrize(("optimizer", "peer", "options"), TORCH_PEERS, ids=lambda value: getattr(value, "name", ""))
def test_rows_touched_in_every_step_follow_torch_optim(
    optimizer: Optimizer, peer: type[torch.optim.Optimizer], options: dict[str, float]
) -> None:
    rng = np.random.default_rng(1)
    cache = fresh_rows(optimizer, 6, 16, rng)
    dense = torch.nn.Parameter(torch.from_numpy(cache.values.copy()))
    torch_optimizer = peer([dense], **options)  # type: ignore[arg-type]
    for step in range(10):
        sums = rng.normal(size=(6, 16)).astype(np.float32)
        apply_rows(optimizer, cache, np.arange(6, dtype=np.int32), sums, version=step + 1)
        dense.grad = torch.from_numpy(sums.copy())
        torch_optimizer.step()
    np.testing.assert_allclose(cache.values, dense.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_lazy_adam_moments_follow_torch_sparse_adam() -> None:
    """SparseAdam moves only touched rows too. Its bias correction counts all steps, so only the moments compare."""
    rng = np.random.default_rng(2)
    optimizer, width = LazyAdam(lr=0.1), 4
    cache = fresh_rows(optimizer, 6, width, rng)
    parameter = torch.nn.Parameter(torch.from_numpy(cache.values.copy()))
    torch_optimizer = torch.optim.SparseAdam([parameter], lr=0.1)
    counts = np.zeros(6)
    for step in range(8):
        slots = rng.permutation(6)[:3].astype(np.int32)
        sums = rng.normal(size=(3, width)).astype(np.float32)
        apply_rows(optimizer, cache, slots, sums, version=step + 1)
        counts[slots] += 1
        parameter.grad = torch.sparse_coo_tensor(
            torch.from_numpy(slots.astype(np.int64))[None], torch.from_numpy(sums), (6, width), check_invariants=True
        )
        torch_optimizer.step()  # type: ignore[no-untyped-call]
    moments = torch_optimizer.state[parameter]
    np.testing.assert_allclose(cache.state[:, :width], moments["exp_avg"].numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(cache.state[:, width:-1], moments["exp_avg_sq"].numpy(), rtol=1e-5, atol=1e-7)
    assert cache.state[:, -1].tolist() == counts.tolist()


def test_bias_correction_follows_the_count_of_the_row_not_of_the_run() -> None:
    """A row's first step moves it by lr, however late in the run it comes."""
    optimizer = LazyAdam(lr=0.5)
    cache = fresh_rows(optimizer, 2, 3, np.random.default_rng(3))
    often, late = np.array([0], np.int32), np.array([1], np.int32)
    gradient = np.ones((1, 3), np.float32)
    for step in range(100):
        apply_rows(optimizer, cache, often, gradient, version=step + 1)
    before = cache.values[1].copy()
    apply_rows(optimizer, cache, late, gradient, version=101)
    np.testing.assert_allclose(before - cache.values[1], 0.5, rtol=1e-5)
