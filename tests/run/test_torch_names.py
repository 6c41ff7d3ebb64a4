"""Optimisers and schedules of torch by name: what a run file may say, and the rates that follow from it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from foresee.errors import ConfigError
from foresee.run.by_name import REFUSED_OPTIMIZERS, Schedule, dense_optimizer
from foresee.run.config import DenseOptimizerConfig, ScheduleConfig

USABLE = sorted(
    name for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and name not in ("Optimizer", *REFUSED_OPTIMIZERS)
)  # fmt: skip


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.mark.parametrize("name", USABLE)
def test_every_usable_optimiser_is_torchs_own(name: str) -> None:
    ours, theirs = _model(), _model()
    decay: dict[str, Any] = {} if name == "Rprop" else {"weight_decay": 0.1}
    optimizer = dense_optimizer(DenseOptimizerConfig(name=name.lower(), lr=0.02, **decay), ours)
    plain = getattr(torch.optim, name)(theirs.parameters(), lr=0.02, **decay)
    for _ in range(3):
        for model, some in ((ours, optimizer), (theirs, plain)):
            model(torch.ones(4, 3)).square().sum().backward()
            some.step()
            some.zero_grad()
    assert type(optimizer) is type(plain)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_options_have_torchs_names() -> None:
    adam = dense_optimizer(DenseOptimizerConfig(name="Adam", options={"betas": [0.8, 0.9], "amsgrad": True}), _model())
    assert (list(adam.param_groups[0]["betas"]), adam.param_groups[0]["amsgrad"]) == ([0.8, 0.9], True)


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        ({"name": "adamm"}, "train.optimizer.name: torch has no 'adamm'; choose one of ASGD, Ada"),
        ({"name": "lbfgs"}, "LBFGS cannot be used here: it computes the loss several times a step"),
        ({"name": "sparse_adam"}, "SparseAdam cannot be used here: it is for sparse gradients"),
        ({"name": "muon"}, "Muon cannot be used here: it takes matrices only"),
        ({"name": "sgd", "options": {"betas": [1, 2]}}, "train.optimizer.options.betas: SGD has no such option here"),
        ({"name": "sgd", "options": {"lr": 1}}, "train.optimizer.options.lr: SGD has no such option here"),
        ({"name": "adam", "options": {"betas": [2, 2]}}, "train.optimizer: Adam cannot be made .Invalid beta"),
        ({"name": "rprop", "weight_decay": 0.1}, "train.optimizer.weight_decay: Rprop has none; leave the key out"),
    ],
)
def test_what_is_wrong_with_an_optimiser_is_a_sentence(optimizer: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        dense_optimizer(DenseOptimizerConfig(**optimizer), _model())


def _rates(config: ScheduleConfig, num_steps: int, steps_per_epoch: int) -> list[float]:
    sgd = torch.optim.SGD(_model().parameters(), lr=0.1, momentum=0.9)
    schedule, rates = Schedule(config, sgd, steps_per_epoch), []
    for step in range(num_steps):
        sgd.step()
        rates.append(float(sgd.param_groups[0]["lr"]))
        schedule.step(step + 1)
    return rates


SCHEDULES: dict[str, dict[str, Any]] = {
    "step": {"step_size": 3},
    "multi_step_lr": {"milestones": [2, 5]},
    "constant": {"total_iters": 4},
    "linear": {"start_factor": 0.5},
    "exponential": {"gamma": 0.9},
    "cosine_annealing": {"T_max": 12},
    "CosineAnnealingWarmRestarts": {"T_0": 4},
    "polynomial": {"total_iters": 8},
    "one_cycle": {"max_lr": 0.3, "total_steps": 20},
    "cyclic_lr": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 3},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_gives_torchs_rates(name: str) -> None:
    kind = next(
        getattr(lr_scheduler, it) for it in lr_scheduler.__all__
        if it.lower().removesuffix("lr") == name.lower().replace("_", "").removesuffix("lr")
    )  # fmt: skip
    sgd = torch.optim.SGD(_model().parameters(), lr=0.1, momentum=0.9)
    plain, expected = kind(sgd, **SCHEDULES[name]), []
    for _ in range(12):
        sgd.step()
        expected.append(float(sgd.param_groups[0]["lr"]))
        plain.step()
    assert _rates(ScheduleConfig(name=name, options=SCHEDULES[name]), 12, 5) == expected
    assert len(set(expected)) > 1
    by_epoch = _rates(ScheduleConfig(name=name, options=SCHEDULES[name], every="epoch"), 12, 5)
    assert by_epoch == [expected[0]] * 5 + [expected[1]] * 5 + [expected[2]] * 2


def test_a_warm_up_before_another_schedule() -> None:
    options = {
        "milestones": [2],
        "schedulers": [
            {"name": "linear", "options": {"start_factor": 0.5, "total_iters": 2}},
            {"name": "exponential", "options": {"gamma": 0.5}},
        ],
    }
    rates = _rates(ScheduleConfig(name="sequential", options=options), 5, 1)
    assert rates == pytest.approx([0.05, 0.075, 0.1, 0.05, 0.025])


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        ({"name": "cosine"}, "train.schedule.name: torch has no 'cosine'; choose one of ChainedScheduler, Con"),
        ({"name": "lambda_lr"}, "LambdaLR cannot be used here: it needs a function"),
        ({"name": "ReduceLROnPlateau"}, "it follows evaluations and not steps"),
        ({"name": "step", "options": {"size": 3}}, "train.schedule.options.size: StepLR has no such option here"),
        ({"name": "step"}, "train.schedule: StepLR cannot be made .*step_size"),
        ({"options": {"T_max": 3}}, "train.schedule.options: there is no train.schedule.name"),
        ({"name": "chained", "options": {"schedulers": 3}}, "torch has no 'chained'"),
        ({"name": "ChainedScheduler", "options": {"schedulers": 3}}, "options.schedulers: expected a list such as"),
        (
            {"name": "ChainedScheduler", "options": {"schedulers": [{"name": "x"}]}},
            "train.schedule.options.schedulers.0.name: torch has no 'x'",
        ),
    ],
)
def test_what_is_wrong_with_a_schedule_is_a_sentence(schedule: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Schedule(ScheduleConfig(**schedule), torch.optim.SGD(_model().parameters(), lr=0.1), 1)
