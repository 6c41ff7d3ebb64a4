"""The sides of the peers' comparison train the same model: from the same values, batch by batch, to the same scores."""

from __future__ import annotations

import argparse
import io
import json
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import peers
from foresee.data import ClickLog, synthetic
from foresee.models import DeepFM
from peers import figures, side_of
from rivals.case import CASES, EPS, LEARNING_RATE, MAIN, Case, case_of
from rivals.training import Trainer, deepfm
from rivals.two_optimisers import TwoOptimisers

SMALL = Case(name="small", log="small", batch_size=64, dim=4, bottom=(8,), top=(8,), steps=4, turns=2)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path = tmp_path_factory.mktemp("peers") / "log"
    return synthetic(path, num_samples=2000, table_sizes=(50, 300, 7), num_dense=3)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("model", ["dlrm", "deepfm"])
def test_ours_and_pytorch_end_with_the_same_auc(log: ClickLog, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(SMALL, model=model)
    trainers, aucs = [Trainer(case, log) for _ in range(2)], []
    for name, trainer in zip(("ours", "pytorch"), trainers, strict=True):
        monkeypatch.setattr(peers, "Trainer", lambda *_, trainer=trainer: trainer)
        side = side_of(name, case, log, 0.5)
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        assert len(list(side.steps())) == case.num_steps == 12
        aucs.append(side.auc())
        for old, new in zip(before, trainer.model.parameters(), strict=True):
            assert torch.equal(old, new) is not new.requires_grad
    assert aucs[0] == pytest.approx(aucs[1], abs=1e-4)
    for ours, theirs in zip(*(trainer.model.parameters() for trainer in trainers), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_dense_features_take_no_part_in_pairs_of_the_common_deepfm(log: ClickLog) -> None:
    model = deepfm(replace(SMALL, model="deepfm"), log)
    assert isinstance(model, DeepFM)
    vectors = torch.randn(5, log.num_features, SMALL.dim)
    with_numbers, without = (model.second_order(dense, vectors) for dense in (torch.ones(5, 3), torch.zeros(5, 3)))
    assert torch.equal(with_numbers, without)


def test_dense_gradients_leave_the_other_rows_as_sparse_ones_do() -> None:
    tables = [nn.Embedding(6, 2, sparse=sparse) for sparse in (False, True)]
    tables[1].load_state_dict(tables[0].state_dict())
    model = nn.ModuleDict({"table": tables[0], "dense": nn.Linear(2, 1)})
    both = TwoOptimisers(model, list(tables[0].parameters()))
    sparse = torch.optim.Adagrad(tables[1].parameters(), lr=LEARNING_RATE, eps=EPS)
    optimisers: tuple[TwoOptimisers | torch.optim.Optimizer, ...] = (both, sparse)
    for ids in ([0, 3, 3], [3, 5]):
        for table, optimiser in zip(tables, optimisers, strict=True):
            optimiser.zero_grad()
            table(torch.tensor(ids)).square().sum().backward()
            optimiser.step()
    assert torch.allclose(tables[0].weight, tables[1].weight)


def test_a_side_that_cannot_run_is_left_out_with_a_sentence(
    log: ClickLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(peers.MODULES, "fuxictr", "rivals.a_library_that_is_not_there")
    monkeypatch.setattr(sys, "stdin", io.StringIO("import\n"))
    peers.run_side(argparse.Namespace(side="fuxictr", full=False, cache_share=0.5))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    peers.serve_case("fuxictr", SMALL, log.path, 0.5)
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2
    for answer in answers:
        assert not peers.can_run("fuxictr", answer)
        assert "fuxictr is left out: it cannot run here (ModuleNotFoundError" in capsys.readouterr().out
    assert peers.can_run("fuxictr", {})


def test_ours_must_run(log: ClickLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(peers.MODULES, "ours", "rivals.a_side_that_is_not_there")
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        peers.serve_case("ours", SMALL, log.path, 0.5)


def test_without_the_environment_of_benchmarks_its_sides_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log: ClickLog
) -> None:
    monkeypatch.setattr(peers, "BENCH_PYTHON", log.path / "none")
    assert peers.interpreters(CASES["deepfm"].sides) == {"ours": sys.executable}
    assert "deepctr is left out: it needs .venv-bench" in capsys.readouterr().out


def test_figures_are_medians_of_the_turns_that_count() -> None:
    def side(speeds: list[float], auc: float) -> list[dict[str, float]]:
        return [*({"samples_per_second": it} for it in speeds), {"auc": auc, "peak_mb": 7.0}]

    results = {
        "synthetic": {"ours": side([1, 20, 30, 60], 0.75), "pytorch": side([100, 10, 10, 10], 0.7504)},
        "avazu": {"ours": side([1, 5], 0.6), "pytorch": side([1, 10], 0.599)},
        "deepfm": {"ours": side([1, 8], 0.6), "deepctr": side([1, 2], 0.5)},
    }
    found = figures(results)
    assert found["ours_over_pytorch"] == 3
    assert found["ours_over_pytorch_avazu"] == 0.5
    assert found["auc_difference"] == pytest.approx(0.001)
    assert found["pytorch_peak_mb"] == 7.0
    assert found["ours_auc_avazu"] == 0.6
    assert found["ours_over_deepctr_deepfm"] == 4
    assert found["ours_samples_per_second"] == 30
    assert "auc_difference" not in figures({"deepfm": results["deepfm"]})


def test_a_full_run_is_the_same_cases_with_more_turns() -> None:
    for name, case in CASES.items():
        full = case_of(name, full=True)
        assert full.num_steps > 3 * case.num_steps
        assert (full.steps, full.dim, full.batch_size) == (case.steps, case.dim, case.batch_size)
        assert set(case.sides) <= peers.MODULES.keys()
    assert {"ours", "pytorch"} <= set(CASES[MAIN].sides)
