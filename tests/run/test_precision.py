"""`train.precision: bf16` and `train.clip_norm` of a run file, and metrics of torchmetrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled_logs import labelled_log
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.errors import ConfigError
from foresee.models import MODELS
from foresee.run.config_file import make_run

OPTIONS: dict[str, dict[str, Any]] = {"dlrm": {"bottom": [8], "top": [8]}}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


@pytest.mark.parametrize("name", MODELS)
def test_every_model_trains_in_bf16(log: ClickLog, tmp_path: Path, name: str) -> None:
    model = {"name": name, "dim": 4, "options": OPTIONS.get(name, {"deep": [8]})}
    losses = {}
    for precision in ("float32", "bf16"):
        config = small_run(log, tmp_path / precision, model=model, train={"precision": precision, "batch_size": 64})
        train_quietly(config, stop_after=6)
        lines = [json.loads(line) for line in (config.run / "metrics.jsonl").read_text().splitlines()]
        losses[precision] = next(line["loss"] for line in lines if line["kind"] == "train")
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bf16"] != losses["float32"], "nothing was computed in another precision"


def test_bf16_and_clipping_do_not_depend_on_cache_or_restart(log: ClickLog, tmp_path: Path) -> None:
    how = {"precision": "bf16", "clip_norm": 0.1}
    whole = small_run(log, tmp_path / "whole", train=how)
    train_quietly(whole)
    other = small_run(log, tmp_path / "other", train=how, cache={"rows": 170, "planner": "lru"})
    train_quietly(other, stop_after=9)
    train_quietly(other, resume=True)
    assert everything(whole) == everything(other)
    without = small_run(log, tmp_path / "without", train={"precision": "bf16"})
    train_quietly(without)
    assert everything(without)["values"] != everything(whole)["values"]
    with pytest.raises(ConfigError, match=r"train\.clip_norm"):
        train_quietly(small_run(log, whole.run, train={**how, "clip_norm": 0.2, "epochs": 2}), resume=True)


class Half:
    """A metric of one's own: the share of predictions above a half."""

    def __init__(self, above: float = 0.5) -> None:
        self.above, self.seen = above, list[torch.Tensor]()

    def update(self, predictions: torch.Tensor, labels: torch.Tensor) -> None:
        assert labels.dtype == torch.int64
        self.seen.append(predictions)

    def compute(self) -> torch.Tensor:
        return (torch.cat(self.seen) > self.above).float().mean()

    def reset(self) -> None:
        self.seen = []


def test_a_metric_of_ones_own_by_name_and_as_an_object(log: ClickLog, tmp_path: Path) -> None:
    named = [{"name": "test_precision:Half", "options": {"above": 0.2}, "figure": "above_fifth"}]
    config = small_run(log, tmp_path / "run", train={"metrics": named, "best": {"metric": "above_fifth"}})
    outcome, said = train_quietly(config, metrics=[Half()])
    found = outcome.valid.as_dict()
    assert 0 <= found["half"] <= found["above_fifth"] <= 1
    assert outcome.best.value == found["above_fifth"]
    assert "above_fifth" in said
    assert found["auc"] is not None
    for wrong, sentence in (
        (["nowhere:Metric"], "train.metrics.0: module 'nowhere' cannot be imported"),
        (["Half"], "'Half' is no path to a class"),
        ([{"name": "test_precision:Half", "options": {"over": 1}}], "cannot be made .* correct its options"),
        ([{"name": "test_precision:Half", "task": "x"}], "there is no task 'x'; choose from label"),
        (["collections:OrderedDict"], "a OrderedDict is no metric"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            train_quietly(small_run(log, tmp_path / "no", train={"metrics": wrong}))


def test_torchmetrics_agree_with_our_own_figures(tmp_path: Path) -> None:
    classification = pytest.importorskip("torchmetrics.classification", reason="torchmetrics is not installed")
    log = labelled_log(tmp_path)
    content = small_run(log, tmp_path / "run", cache={"rows": 90}).model_dump(mode="json")
    names = [
        {"name": "torchmetrics.classification:BinaryAUROC", "task": "click", "figure": "auroc"},
        {"name": "torchmetrics:MeanSquaredError", "options": {"squared": False}, "task": "rating", "figure": "error"},
        {"name": "torchmetrics:Accuracy", "task": "device", "figure": "right",
         "options": {"task": "multiclass", "num_classes": 3, "average": "micro"}},
    ]  # fmt: skip
    content["train"]["metrics"] = names
    config = make_run(content, where="test")
    outcome, _ = train_quietly(config, metrics={"liked": [classification.BinaryF1Score()]})
    found = outcome.valid.as_dict()
    # Of probabilities in float32, which are equal more often than logits.
    assert found["click.auroc"] == pytest.approx(found["click.auc"], abs=1e-3)
    assert found["rating.error"] == pytest.approx(found["rating.rmse"], rel=1e-5)
    assert found["device.right"] == pytest.approx(found["device.accuracy"], abs=1e-6)
    assert np.isfinite(found["liked.binary_f1_score"])
