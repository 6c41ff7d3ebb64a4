"""A user's model gives the same bytes from run to run with several threads, and `verify` says when it cannot."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import small_run

from foresee.data import ClickLog, tiny
from foresee.run.by_name import look_in
from foresee.run.torch_settings import NOT_DETERMINISTIC, torch_settings
from foresee.tools.verify import verify

NUM_RUNS = 10
NUM_ROWS, WIDTH = 8, 64
NUM_LOOKUPS = 1024
"""Torch adds 32,768 values and more with several threads."""

MODULE = """
import itertools
import torch

CALLS = itertools.count()


class Indexing(torch.nn.Module):
    def __init__(self, shape, dim):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(8, 64))
        self.last = torch.nn.Linear(64 + shape.num_features * dim, 1)

    def forward(self, dense, embeddings):
        rows = (embeddings[:, 0, 0].abs() * 1e6).long() % 8
        near = self.weights[rows.repeat(32)].view(32, len(rows), -1).mean(0)
        return self.last(torch.cat((near, embeddings.flatten(1)), dim=1)).squeeze(1)


class Counting(Indexing):
    \"\"\"Its weights depend on how many models the process has made.\"\"\"

    def __init__(self, shape, dim):
        super().__init__(shape, dim)
        with torch.no_grad():
            self.last.bias += next(CALLS)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "indexing_model.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    look_in(tmp_path)
    yield "indexing_model"
    sys.modules.pop("indexing_model", None)


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    return tiny(tmp_path / "log", num_samples=400)


def gradient_of_indexing() -> bytes:
    draws = torch.Generator().manual_seed(0)
    rows = torch.randint(NUM_ROWS, (NUM_LOOKUPS,), generator=draws)
    weights = torch.zeros(NUM_ROWS, WIDTH, requires_grad=True)
    weights[rows].backward(torch.randn(NUM_LOOKUPS, WIDTH, generator=draws))  # type: ignore[no-untyped-call]
    assert weights.grad is not None
    return weights.grad.numpy().tobytes()


def test_the_gradient_of_an_index_is_the_same_for_any_number_of_threads() -> None:
    with torch_settings(1):
        alone = gradient_of_indexing()
    with torch_settings(2) as num_threads:
        assert num_threads == 2
        assert {gradient_of_indexing() for _ in range(50)} == {alone}


def settings() -> tuple[int, int, bool]:
    fill: Any = torch.utils.deterministic
    return torch.get_num_threads(), torch.get_deterministic_debug_mode(), fill.fill_uninitialized_memory


def test_settings_of_the_process_come_back() -> None:
    before = settings()
    assert before[1:] == (0, True)
    with suppress(KeyError), torch_settings(before[0] + 1):
        assert settings() == (before[0] + 1, 1, False)
        raise KeyError
    assert settings() == before


def test_somebody_who_wants_errors_keeps_them() -> None:
    torch.set_deterministic_debug_mode("error")
    try:
        with torch_settings(None):
            assert settings()[1:] == (2, True)
        assert torch.get_deterministic_debug_mode() == 2
    finally:
        torch.set_deterministic_debug_mode("default")


def test_torch_warns_of_what_cannot_be_made_deterministic() -> None:
    with torch_settings(2), pytest.warns(UserWarning, match="put_ does not have a deterministic implementation"):
        torch.zeros(4).put_(torch.tensor([1, 1]), torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch_settings(2):
            gradient_of_indexing()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_model_that_indexes_its_weights_is_verified(
    num_threads: int, module: str, log: ClickLog, tmp_path: Path
) -> None:
    config = small_run(
        log, tmp_path / "run", model={"name": f"{module}:Indexing", "options": {}}, train={"num_threads": num_threads}
    )
    for _ in range(NUM_RUNS):
        found = verify(config, num_steps=4)
        assert found.equal, found.first_difference
        assert found.is_deterministic


def test_a_model_that_differs_by_itself_is_told_from_a_wrong_plan(module: str, log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", model={"name": f"{module}:Counting", "options": {}})
    found = verify(config, num_steps=2)
    assert not found.equal
    assert not found.is_deterministic
    assert "the model's own arithmetic is not deterministic" in NOT_DETERMINISTIC
