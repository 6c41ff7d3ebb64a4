"""Learning rates of rows that move with the step, and weight decay: by formula, and whatever caches and restarts do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.engine import torch_kernels
from foresee.engine.kernels import apply_rows
from foresee.engine.optimizers import SGD, Adagrad, LazyAdam, Optimizer, RowwiseAdagrad, Schedule, at_step
from foresee.errors import ConfigError, InputError, UsageError
from foresee.store.contract import Rows

MOVING: dict[str, Any] = {"shape": "cosine", "warmup_steps": 7, "steps": 40, "floor": 0.01}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


def test_a_schedule_rises_and_then_follows_its_shape() -> None:
    stairs = Schedule(lr=0.5, shape="step", warmup_steps=4, steps=10, gamma=0.5)
    assert [stairs(step) for step in (0, 3, 4, 13, 14, 24)] == [0.125, 0.5, 0.5, 0.5, 0.25, 0.125]
    cosine = Schedule(lr=0.5, shape="cosine", steps=100, floor=0.1)
    assert [cosine(step) for step in (0, 50, 100, 1000)] == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert Schedule(lr=0.5)(12345) == 0.5


@given(
    st.builds(
        Schedule,
        lr=st.floats(0, 10),
        shape=st.sampled_from(["constant", "step", "cosine"]),
        warmup_steps=st.integers(0, 50),
        steps=st.integers(1, 100),
        gamma=st.floats(0, 1),
    ),
    st.integers(0, 1000),
)
def test_a_rate_is_never_above_its_peak_nor_below_nothing(schedule: Schedule, step: int) -> None:
    assert 0 <= schedule(step) <= schedule.lr


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"lr": -1.0}, "lr=-1.0 of a schedule"),
        ({"lr": 0.1, "shape": "cosine"}, "a cosine schedule needs steps"),
        ({"lr": 0.1, "shape": "saw"}, "schedule 'saw' is not known"),
        ({"lr": 0.1, "warmup_steps": -1}, "warmup_steps=-1"),
    ],
)
def test_numbers_that_give_no_rate_are_refused(numbers: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Schedule(**numbers)


def test_a_function_of_the_step_is_asked_for_each_step() -> None:
    moving = Adagrad(lr=lambda step: 1.0 / (1 + step))
    assert at_step(moving, 3) == Adagrad(lr=0.25)
    plain = Adagrad(lr=0.25)
    assert at_step(plain, 3) is plain
    with pytest.raises(ConfigError, match=r"the learning rate of step 2 is -1\.0"):
        at_step(SGD(lr=lambda step: 1.0 - step), 2)
    with pytest.raises(UsageError, match="moves with the step"):
        moving.step_tensors(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2))


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowwiseAdagrad, LazyAdam])
def test_decay_adds_a_part_of_the_row_to_its_gradient(kind: Any) -> None:
    rng, width = np.random.default_rng(3), 13
    plain: Optimizer = kind(lr=0.1)
    decaying: Optimizer = kind(lr=0.1, weight_decay=0.25)
    state = np.abs(rng.normal(size=(40, plain.state_width(width)))).astype(np.float32)
    values = rng.normal(size=(40, width)).astype(np.float32)
    sums = rng.normal(size=(40, width)).astype(np.float32)
    slots = rng.permutation(40).astype(np.int32)
    if kind is LazyAdam:
        state[:, -1] = 3  # a count
    fused, apart = (Rows(values.copy(), state.copy(), np.zeros(40, np.int32)) for _ in range(2))
    apply_rows(decaying, fused, slots, sums, version=1)
    apply_rows(plain, apart, slots, sums + np.float32(0.25) * values[slots], version=1)
    tensors = torch_kernels.TensorRows(*map(torch.from_numpy, (values.copy(), state.copy(), np.zeros(40, np.int32))))
    torch_kernels.apply_rows(decaying, tensors, torch.from_numpy(slots), torch.from_numpy(sums), version=1)
    assert fused.values.tobytes() == apart.values.tobytes() == tensors.values.numpy().tobytes()
    assert fused.state.tobytes() == apart.state.tobytes() == tensors.state.numpy().tobytes()
    assert fused.values.tobytes() != values.tobytes()


@pytest.mark.parametrize("name", ["sgd", "lazy_adam"])
def test_caches_and_restarts_do_not_change_what_a_moving_rate_gives(log: ClickLog, tmp_path: Path, name: str) -> None:
    tables = {"optimizer": {"name": name, "lr": 0.05, "weight_decay": 0.01, "schedule": MOVING}}
    whole = small_run(log, tmp_path / "whole", tables=tables)
    train_quietly(whole)
    unmoved = {"optimizer": {"name": name, "lr": 0.05, "weight_decay": 0.01}}
    still = small_run(log, tmp_path / "still", tables=unmoved)
    train_quietly(still)
    assert everything(whole) != everything(still)
    other = small_run(log, tmp_path / "other", tables=tables, cache={"rows": 170, "planner": "lru"})
    train_quietly(other, stop_after=11)
    train_quietly(other, resume=True)
    assert everything(whole) == everything(other)


def test_a_falling_rate_without_a_length_is_refused(log: ClickLog, tmp_path: Path) -> None:
    with pytest.raises((InputError, ValueError), match="steps is missing"):
        small_run(log, tmp_path / "run", tables={"optimizer": {"schedule": {"shape": "step"}}})
