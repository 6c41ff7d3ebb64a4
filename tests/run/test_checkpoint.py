"""What a checkpoint keeps: the whole optimiser, schedules and whatever else has a state, through a real kill -9."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import lr_scheduler

import foresee
from foresee import checkpoint
from foresee.data import tiny
from foresee.errors import StoreError, UsageError
from foresee.run.state_tree import pack, unpack

STEPS_OF_A_COMMIT, WAIT_SECONDS = 4, 60.0


def _model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def _learn(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any = None, steps: int = 1) -> None:
    for step in range(steps):
        model(torch.linspace(-1, 1, 3) * (step + 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()


def _bytes(model: nn.Module) -> bytes:
    return b"".join(weights.detach().numpy().tobytes() for weights in model.parameters())


def test_learning_rate_and_weight_decay_come_back(tmp_path: Path) -> None:
    model = _model()
    saved = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.5, betas=(0.8, 0.99))
    _learn(model, saved)
    checkpoint.save(tmp_path / "kept", 1, model, saved)
    other = _model(1)
    loaded = torch.optim.Adam(other.parameters(), lr=0.1)
    checkpoint.load(str(tmp_path / "kept"), 1, other, loaded)
    assert loaded.state_dict()["param_groups"] == saved.state_dict()["param_groups"]
    assert isinstance(loaded.param_groups[0]["betas"], tuple)


SCHEDULES: dict[str, Any] = {
    "cosine": lambda it: lr_scheduler.CosineAnnealingLR(it, T_max=30),
    "restarts": lambda it: lr_scheduler.CosineAnnealingWarmRestarts(it, T_0=3),
    "milestones": lambda it: lr_scheduler.MultiStepLR(it, [3, 7]),
    "one cycle": lambda it: lr_scheduler.OneCycleLR(it, max_lr=0.1, total_steps=40),
    "cyclic": lambda it: lr_scheduler.CyclicLR(it, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "lambda": lambda it: lr_scheduler.LambdaLR(it, lambda step: 1 / (1 + step)),
    "warm up": lambda it: lr_scheduler.SequentialLR(
        it, [lr_scheduler.LinearLR(it, 0.1, total_iters=3), lr_scheduler.ExponentialLR(it, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_where_it_was(tmp_path: Path, name: str) -> None:
    def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
        model = _model(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        return model, optimizer, SCHEDULES[name](optimizer)

    model, optimizer, schedule = made(0)
    _learn(model, optimizer, schedule, steps=5)
    checkpoint.save(tmp_path / "kept", 5, model, optimizer, others={"schedule": schedule})
    again = made(1)
    checkpoint.load(tmp_path / "kept", 5, again[0], again[1], others={"schedule": again[2]})
    _learn(model, optimizer, schedule, steps=9)
    _learn(*again, steps=9)
    assert _bytes(again[0]) == _bytes(model)
    assert again[1].param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("kind", ["Adafactor", "ASGD", "NAdam", "RMSprop", "Rprop", "Adadelta", "RAdam", "AdamW"])
def test_every_dense_optimiser_goes_on_where_it_was(tmp_path: Path, kind: str) -> None:
    model, other = _model(), _model(1)
    optimizer, again = (getattr(torch.optim, kind)(it.parameters(), lr=0.02) for it in (model, other))
    _learn(model, optimizer, steps=3)
    checkpoint.save(tmp_path / "kept", 3, model, optimizer)
    checkpoint.load(tmp_path / "kept", 3, other, again)
    _learn(model, optimizer, steps=3)
    _learn(other, again, steps=3)
    assert _bytes(other) == _bytes(model)


class Patience:
    """As a person writes one: the best loss so far, and how long ago it was."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"best": math.inf, "since": 0, "weights": [torch.ones(2)]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


def test_others_are_told_by_name(tmp_path: Path) -> None:
    model, patience = _model(), Patience()
    adam = torch.optim.Adam(model.parameters())
    patience.state["since"] = 3
    checkpoint.save(tmp_path / "kept", 1, model, adam, others={"patience": patience})
    again = Patience()
    checkpoint.load(tmp_path / "kept", 1, model, adam, others={"patience": again})
    assert (again.state["best"], again.state["since"]) == (math.inf, 3)
    assert torch.equal(again.state["weights"][0], torch.ones(2))
    with pytest.raises(StoreError, match=r"keeps no state of 'schedule' \(others that it keeps: patience"):
        checkpoint.load(tmp_path / "kept", 1, model, adam, others={"schedule": again})
    patience.state["function"] = print
    with pytest.raises(UsageError, match=r"others.patience.function is a builtin_function_or_method, which cannot be"):
        checkpoint.save(tmp_path / "kept", 2, model, adam, others={"patience": patience})
    assert checkpoint.steps_there(tmp_path / "kept") == [1]


def test_what_is_packed_comes_back_as_it_was() -> None:
    value = {
        "a": [1, 2.5, None, True, "x", -math.inf], "t": (1, (2,)), "c": Counter({3: 2}), "d": {1: "one", (2, 3): []},
        "$": {"of": 1}, "n": np.float32(0.5), "e": {},
    }  # fmt: skip
    tensors: dict[str, Tensor] = {}
    document = json.loads(json.dumps(pack(value, "it", tensors), allow_nan=False))
    assert unpack(document, tensors) == value
    assert isinstance(unpack(document, tensors)["c"], Counter)
    for wrong in ({"$": "tensor", "of": "gone"}, {"$": "tuple", "of": 3}, {"$": "dict", "of": [1]}, {"$": 1, "of": 1}):
        with pytest.raises((ValueError, TypeError)):
            unpack(wrong, {})


def test_a_checkpoint_of_the_format_before_still_loads(tmp_path: Path) -> None:
    """As it was written then: no parameter groups, which come from the optimiser at hand, and no others."""
    model, other = _model(), _model(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    _learn(model, optimizer, steps=2)
    folder = tmp_path / "kept" / "step-000000002"
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    entries = {f"{i}.{k}": v for i, it in optimizer.state_dict()["state"].items() for k, v in it.items()}
    save_file({**entries, "torch_random_state": torch.get_rng_state()}, folder / "optimizer.safetensors")
    (folder / "state.json").write_text(json.dumps({"format_version": 2, "step": 2, "optimizer": {}}))
    files = {
        it.name: {"bytes": it.stat().st_size, "sha256": hashlib.sha256(it.read_bytes()).hexdigest()}
        for it in folder.iterdir()
    }
    (folder / "manifest.json").write_text(json.dumps({"format_version": 2, "step": 2, "num_shards": 1, "files": files}))
    again = torch.optim.Adam(other.parameters(), lr=0.02)
    checkpoint.load(tmp_path / "kept", 2, other, again)
    _learn(model, optimizer)
    _learn(other, again)
    assert _bytes(other) == _bytes(model)


class _Head(nn.Module):
    def __init__(self, log: foresee.ClickLog) -> None:
        super().__init__()
        self.layer = nn.Linear(log.num_dense + 4 * log.num_features, 1)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.layer(torch.cat([dense, embeddings.flatten(1)], dim=1)).squeeze(1)
        return logits


def _tutorial_loop(log: foresee.ClickLog, folder: Path) -> None:
    """The loop of docs/tutorial.md, with a cosine schedule; says how far it is in a file."""
    torch.manual_seed(0)
    head = _Head(log)
    adam = torch.optim.Adam(head.parameters(), lr=0.01)
    cosine = lr_scheduler.CosineAnnealingLR(adam, T_max=150)
    with foresee.Tables.on_disk(folder / "tables", log, dim=4, optimizer=foresee.Adagrad(lr=0.05)) as tables:
        run = foresee.lookahead(log, tables, batch_size=32, epochs=3, cache_rows=150)
        run.commit_at_end = False
        first_step = tables.store.committed_step
        if first_step:
            checkpoint.load(folder / "checkpoints", first_step, head, adam, others={"schedule": cosine})
        for step in run:
            binary_cross_entropy_with_logits(head(step.dense, step.embeddings), step.labels).backward()  # type: ignore[no-untyped-call]
            adam.step()
            adam.zero_grad()
            step.update()
            cosine.step()
            if run.steps_done % STEPS_OF_A_COMMIT == 0 or run.steps_done == run.stream.num_steps:
                checkpoint.save(folder / "checkpoints", run.steps_done, head, adam, others={"schedule": cosine})
                run.commit()
                (folder / "seen").write_text(str(run.steps_done))


def _result(folder: Path, log: foresee.ClickLog) -> dict[str, bytes]:
    with foresee.Tables.on_disk(folder / "tables", log, dim=4, optimizer=foresee.Adagrad(lr=0.05)) as tables:
        found = {table.name: tables.values(table.name).tobytes() for table in log.tables}
        kept = checkpoint.folder_of(folder / "checkpoints", tables.store.committed_step)
    return {**found, **{file.name: file.read_bytes() for file in sorted(kept.iterdir())}}


def _in_a_child(log: foresee.ClickLog, folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    try:
        _tutorial_loop(log, folder)
        os._exit(0)
    except BaseException:
        os._exit(99)


def _wait_for(file: Path, before: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if file.exists() and file.read_text() not in ("", before):
            return
        time.sleep(0.002)
    pytest.fail("the child did not commit")


def test_the_tutorials_loop_with_a_cosine_schedule_survives_kill_9(tmp_path: Path) -> None:
    log, rng = tiny(tmp_path / "log", num_samples=4000), random.Random(0)
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    folder.mkdir()
    _tutorial_loop(log, whole)
    num_killed, seen = 0, ""
    while True:
        child = _in_a_child(log, folder)
        if num_killed < 3:
            _wait_for(folder / "seen", seen)
            time.sleep(rng.random() * 0.05)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        assert code == -signal.SIGKILL
        num_killed, seen = num_killed + 1, (folder / "seen").read_text()
    assert num_killed >= 1
    assert _result(folder, log) == _result(whole, log)
