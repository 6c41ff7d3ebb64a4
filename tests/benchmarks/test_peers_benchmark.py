"""The sides of the peers' comparison train the same model: from the same values, batch by batch, to the same scores."""

from __future__ import annotations

import argparse

import pytest
import torch

import peers
from foresee.data import ClickLog, synthetic
from peers import CASES, SIDES, Case, Trainer, case_of, figures

SMALL = Case(name="small", log="small", batch_size=64, dim=4, bottom=(8,), top=(8,), steps=4, turns=2)
ARGUMENTS = argparse.Namespace(cache_share=0.5, full=False)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    path = tmp_path_factory.mktemp("peers") / "log"
    return synthetic(path, num_samples=2000, table_sizes=(50, 300, 7), num_dense=3)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_ours_and_pytorch_end_with_the_same_auc(log: ClickLog) -> None:
    found = {}
    for name in ("ours", "pytorch"):
        trainer = Trainer(SMALL, log)
        side = SIDES[name](SMALL, log, trainer, ARGUMENTS)
        before = [parameter.clone() for parameter in trainer.model.parameters()]
        steps = side.steps()
        assert len(list(steps)) == SMALL.num_steps == 12
        found[name] = (side.auc(), list(trainer.model.parameters()))
        changed = [not torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True)]
        assert all(changed)
    assert found["ours"][0] == pytest.approx(found["pytorch"][0], abs=1e-4)
    for ours, theirs in zip(found["ours"][1], found["pytorch"][1], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_figures_are_medians_of_the_turns_that_count() -> None:
    def side(speeds: list[float], auc: float) -> list[dict[str, float]]:
        return [*({"samples_per_second": it} for it in speeds), {"auc": auc, "peak_mb": 7.0}]

    results = {
        "synthetic": {"ours": side([1, 20, 30, 60], 0.75), "pytorch": side([100, 10, 10, 10], 0.7504)},
        "avazu": {"ours": side([1, 5], 0.6), "pytorch": side([1, 10], 0.599)},
    }
    found = figures(results)
    assert found["ours_over_pytorch"] == 3
    assert found["ours_over_pytorch_avazu"] == 0.5
    assert found["auc_difference"] == pytest.approx(0.001)
    assert found["pytorch_peak_mb"] == 7.0
    assert found["ours_auc_avazu"] == 0.6


def test_a_full_run_is_the_same_cases_with_more_turns() -> None:
    for name, case in CASES.items():
        full = case_of(argparse.Namespace(full=True), name)
        assert full.num_steps > 3 * case.num_steps
        assert (full.steps, full.dim, full.batch_size) == (case.steps, case.dim, case.batch_size)
    assert peers.MAIN in CASES
