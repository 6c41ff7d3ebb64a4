"""A row optimiser from outside the package trains like ours: fused kernels, torch operations, run files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import everything, small_run, train_quietly

import foresee
from foresee.data.synthetic import tiny
from foresee.engine import optimizers, torch_kernels
from foresee.engine.kernels import order_lookups, update_rows
from foresee.engine.kernels.steps import step_of
from foresee.engine.optimizers import OPTIMIZERS, SGD, make_optimizer
from foresee.errors import ConfigError
from foresee.store.contract import Rows
from toy_package import Momentum, install


@pytest.fixture(autouse=True)
def _only_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test adds is gone after it."""
    monkeypatch.setattr(OPTIMIZERS, "_known", {kind.name: kind for kind in optimizers.OURS})


def test_both_steps_give_the_same_bytes() -> None:
    rng, width, optimizer = np.random.default_rng(3), 13, Momentum(lr=0.1, decay=0.7)
    values = rng.standard_normal((50, width)).astype(np.float32)
    rows = Rows(values.copy(), np.zeros((50, width), np.float32), np.zeros(50, np.int32))
    tensors = torch_kernels.TensorRows(
        *(torch.from_numpy(it.copy()) for it in (rows.values, rows.state, rows.versions))
    )
    for step in range(6):
        slots = rng.permutation(50)[:30].astype(np.int32)
        inverse = np.concatenate([np.arange(30), rng.integers(0, 30, 40)]).astype(np.int32)
        gradients = rng.standard_normal((70, width)).astype(np.float32)
        order = order_lookups(inverse, 30)
        update_rows(optimizer, rows, slots, gradients, order, version=step + 1)
        torch_kernels.update_rows(
            optimizer, tensors, torch.from_numpy(slots), torch.from_numpy(gradients),
            torch_kernels.TensorOrder.of(order, torch.device("cpu")), version=step + 1,
        )  # fmt: skip
    assert not np.array_equal(rows.values, values)
    assert rows.values.tobytes() == tensors.values.numpy().tobytes()
    assert rows.state.tobytes() == tensors.state.numpy().tobytes()


def test_a_step_is_known_by_its_file_in_every_process() -> None:
    """So numba finds the kernel on disk again, and compiles another when the file has changed."""
    digests = {kind.name: step_of(kind(lr=0.1)).type.identity for kind in (*optimizers.OURS, Momentum)}
    assert len(set(digests.values())) == 5
    assert digests["momentum"].startswith("toy_package.Momentum.step_rows.")
    assert step_of(SGD(lr=0.1)) is step_of(SGD(lr=0.2))


@pytest.mark.parametrize("how", ["call", "entry point"])
def test_a_run_file_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Without decay it must end with the values of SGD; with a decay, with others; in any cache, with the same."""
    log = tiny(tmp_path / "log", num_samples=1000)
    if how == "call":
        foresee.register_optimizer(Momentum)
    else:
        install(tmp_path, monkeypatch)

    def trained(name: str, rows: int = 150, **numbers: float) -> dict[str, bytes]:
        optimizer: dict[str, Any] = {"name": name, "lr": 0.1, **numbers}
        folder = tmp_path / f"{name}-{rows}-{len(numbers)}-{numbers.get('decay')}"
        config = small_run(log, folder, tables={"optimizer": optimizer}, cache={"rows": rows})
        train_quietly(config)
        return everything(config)

    plain, heavy = trained("sgd"), trained("momentum", decay=0.9)
    assert trained("momentum", decay=0.0)["values"] == plain["values"]
    assert heavy["values"] != plain["values"]
    assert trained("momentum", rows=10_000, decay=0.9) == heavy


def test_its_numbers_are_its_own(tmp_path: Path) -> None:
    log = tiny(tmp_path / "log", num_samples=200)
    foresee.register_optimizer(Momentum)
    assert make_optimizer("momentum", {"lr": 0.1, "decay": 0.25}) == Momentum(lr=0.1, decay=0.25)
    config = small_run(log, tmp_path / "run", tables={"optimizer": {"name": "momentum", "eps": 0.1}})
    with pytest.raises(ConfigError, match=r"tables\.optimizer\.eps: momentum has no such number; it takes lr, decay"):
        train_quietly(config)
    config = small_run(log, tmp_path / "run", tables={"optimizer": {"name": "momentun"}})
    with pytest.raises(ConfigError, match=r"tables\.optimizer\.name: there is no row optimiser 'momentun'; choose one"):
        train_quietly(config)
    assert not (tmp_path / "run").exists()


@dataclass(frozen=True, kw_only=True)
class Incomplete:
    name = "incomplete"
    lr: float


def test_what_is_no_optimiser_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'incomplete' is .* which lacks elementwise, state_width, step_rows"):
        foresee.register_optimizer(Incomplete)
    install(tmp_path, monkeypatch)
    with pytest.raises(ConfigError, match="'broken' is declared as toy_package:Nothing and cannot be imported"):
        OPTIMIZERS["broken"]
    with pytest.raises(ConfigError, match="'misnamed' calls itself 'momentum'"):
        OPTIMIZERS["misnamed"]

    class Another(Momentum):
        name = "sgd"

    with pytest.raises(ConfigError, match="there is a row optimiser 'sgd' already"):
        foresee.register_optimizer(Another)
