"""Training from a configuration: what it leaves, and that a run which stopped ends like one that did not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.engine.planned_step import accesses_of
from foresee.errors import ConfigError, InputError, PlanError, StoreError
from foresee.io import failpoints
from foresee.plan import make_planner, plan
from foresee.plan.format.file import write_plan
from foresee.run import callbacks, checkpoint
from foresee.run.build import plan_header, train_stream
from foresee.run.config import RunConfig
from foresee.run.evaluation import evaluate
from foresee.run.folder import RunFolder
from foresee.run.serving.export import trained, trained_model


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log")


class Noisy(nn.Module):
    """A model of the user's with dropout: it trains alike only if random numbers are kept with a commit."""

    def __init__(self, shape: Any, dim: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape.num_dense + shape.num_features * dim, 1)
        self.drop = nn.Dropout(0.3)

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        logits: Tensor = self.layer(self.drop(torch.cat((dense, embeddings.flatten(1)), dim=1)))
        return logits.squeeze(1)


class Column(Noisy):
    """A model that gives [samples, 1]: broadcasting would train nonsense."""

    def forward(self, dense: Tensor, embeddings: Tensor) -> Tensor:
        return super().forward(dense, embeddings).unsqueeze(1)


def _metrics(config: RunConfig, kind: str) -> list[dict[str, Any]]:
    return [line for line in RunFolder(config.run).read_metrics() if line["kind"] == kind]


def test_a_run_learns_and_writes_down_what_it_did(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", train={"epochs": 4, "evaluate_every_steps": 40, "commit_every_steps": 30})
    outcome, text = train_quietly(config)
    assert outcome.finished
    assert outcome.steps_done == 100
    assert outcome.valid is not None
    assert outcome.valid.auc is not None
    assert outcome.valid.auc > 0.6
    assert "memory needed, at most" in text
    assert "done: 100 steps" in text
    lines = _metrics(config, "train")
    assert [line["step"] for line in lines] == list(range(5, 101, 5))
    assert lines[-1]["samples"] == 3200
    assert lines[-1]["loss"] < lines[0]["loss"]
    assert lines[-1]["rows_fetched"] == outcome.counters.num_fetched
    assert [line["step"] for line in _metrics(config, "valid")] == [40, 80, 100]
    assert [line["step"] for line in _metrics(config, "commit")] == [30, 60, 90, 100]
    assert len(list((config.run / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize(
    ("optimizer", "dense", "planner", "model"),
    [
        ("rowwise_adagrad", "adam", "lookahead", "dlrm"),
        ("lazy_adam", "adagrad", "lru", "deepfm"),
        ("adagrad", "sgd", "none", "dcn_v2"),
        ("sgd", "adam", "static", "test_training:Noisy"),
    ],
)
def test_stopped_and_resumed_ends_with_the_same_bytes(
    log: ClickLog, tmp_path: Path, optimizer: str, dense: str, planner: str, model: str
) -> None:
    sections: dict[str, Any] = {
        "model": {"name": model, "options": {}},
        "tables": {"optimizer": {"name": optimizer, "lr": 0.05}},
        "cache": {"planner": planner},
        "train": {"optimizer": {"name": dense, "lr": 0.01}, "epochs": 2},
    }
    whole, parts = small_run(log, tmp_path / "whole", **sections), small_run(log, tmp_path / "parts", **sections)
    train_quietly(whole)
    for stop_after in (7, 8, 31):
        outcome, _ = train_quietly(parts, resume=stop_after > 7, stop_after=stop_after)
        assert outcome.steps_done == stop_after
    outcome, _ = train_quietly(parts, resume=True)
    assert outcome.finished
    assert everything(parts) == everything(whole)
    assert [line["step"] for line in _metrics(parts, "train")] == sorted({*range(5, 51, 5), 7, 8, 31})


def test_other_cache_other_interval_same_bytes(log: ClickLog, tmp_path: Path) -> None:
    one = small_run(log, tmp_path / "one")
    other = small_run(
        log, tmp_path / "other", cache={"rows": 170, "planner": "lfu"},
        train={"commit_every_steps": 3, "evaluate_every_steps": 4},
    )  # fmt: skip
    train_quietly(one)
    train_quietly(other)
    assert everything(one) == everything(other)


def test_a_cache_larger_than_the_tables_has_a_slot_for_every_row(log: ClickLog, tmp_path: Path) -> None:
    _, text = train_quietly(small_run(log, tmp_path / "run", cache={"rows": 10**12}))
    assert "cache of 189 rows (100.0%)" in text


def test_a_resumed_run_may_have_another_cache_and_more_epochs(log: ClickLog, tmp_path: Path) -> None:
    whole = small_run(log, tmp_path / "whole", train={"epochs": 2})
    train_quietly(whole)
    first = small_run(log, tmp_path / "parts")
    train_quietly(first)
    more = small_run(log, tmp_path / "parts", train={"epochs": 2}, cache={"rows": 189, "planner": "lru"})
    train_quietly(more, resume=True)
    assert everything(more) == everything(whole)
    _, text = train_quietly(more, resume=True)
    assert "all 50 steps were done already" in text


@pytest.mark.parametrize(
    ("point", "goes_on_from"),
    [
        (failpoints.FLUSHED, 12),
        (failpoints.PREPARED, 12),
        (failpoints.CHECKPOINT_WRITTEN, 12),
        (failpoints.DECIDED, 18),
        (failpoints.SETTLED, 18),
        (failpoints.MARKED, 18),
    ],
)
def test_a_stop_inside_a_commit_leaves_a_pair(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, goes_on_from: int
) -> None:
    """The manifest of the dense half decides: before it the commit before stands, and after it this one."""
    whole = small_run(log, tmp_path / "whole")
    train_quietly(whole)
    config = small_run(log, tmp_path / "parts", train={"commit_every_steps": 6})
    reached = []

    def stop_at_third(name: str) -> None:
        reached.append(name)
        if name == point and reached.count(point) == 3:
            raise SystemExit

    with monkeypatch.context() as patch:
        for module in (checkpoint, callbacks):
            patch.setattr(module, "failpoint", stop_at_third)
        with pytest.raises(SystemExit):
            train_quietly(config)
    outcome, _ = train_quietly(config, resume=True)
    assert outcome.counters.num_steps == 25 - goes_on_from
    assert everything(config) == everything(whole)
    assert json.loads((config.run / "_SUCCESS").read_text())["step"] == 25


@pytest.mark.parametrize("file", [checkpoint.MODEL_FILE, checkpoint.OPTIMIZER_FILE, checkpoint.STATE_FILE, None])
def test_a_damaged_checkpoint_makes_the_one_before_it_count(log: ClickLog, tmp_path: Path, file: str | None) -> None:
    whole = small_run(log, tmp_path / "whole")
    train_quietly(whole)
    config = small_run(log, tmp_path / "parts", train={"commit_every_steps": 6})
    train_quietly(config, stop_after=18)
    newest = config.run / "checkpoints" / "step-000000018"
    if file is None:
        (newest / checkpoint.MANIFEST_FILE).unlink()
    else:
        content = bytearray((newest / file).read_bytes())
        content[len(content) // 2] ^= 1
        (newest / file).write_bytes(content)
    outcome, _ = train_quietly(config, resume=True)
    assert outcome.counters.num_steps == 25 - 12
    assert everything(config) == everything(whole)


def test_a_missing_half_is_a_sentence(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", train={"commit_every_steps": 6})
    train_quietly(config, stop_after=18)
    for step in (12, 18):
        (config.run / "checkpoints" / f"step-{step:09d}" / checkpoint.MANIFEST_FILE).unlink()
    with pytest.raises(StoreError, match=r"no commit is complete: the tables have that of step 12, 18, .* was not"):
        train_quietly(config, resume=True)


def test_beginning_over_a_run_is_refused_unless_asked_for(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=3)
    before = everything(config)
    with pytest.raises(ConfigError, match="already holds a run; continue it with --resume"):
        train_quietly(config)
    assert everything(config) == before
    (config.run / "notes.txt").write_text("mine")
    outcome, _ = train_quietly(config, replace=True)
    assert outcome.finished
    assert (config.run / "notes.txt").read_text() == "mine"


def test_a_folder_that_holds_no_run_is_never_touched(log: ClickLog, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for replace in (False, True):
        with pytest.raises(ConfigError, match="is not empty and holds no run"):
            train_quietly(small_run(log, tmp_path), replace=replace)
    with pytest.raises(ConfigError, match="is a file"):
        train_quietly(small_run(log, tmp_path / "thesis.txt"))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("section", "change", "key"),
    [
        ("model", {"dim": 8}, "model.dim is 8, but the run in .* was started with 4"),
        ("tables", {"optimizer": {"name": "sgd"}}, "tables.optimizer.name is 'sgd'"),
        ("tables", {"store": "memory"}, "tables.store is 'memory'"),
        ("train", {"batch_size": 16}, "train.batch_size is 16"),
        ("train", {"optimizer": {"lr": 0.5}}, "train.optimizer.lr is 0.5"),
    ],
)
def test_resuming_with_a_changed_result_is_refused_by_key(
    log: ClickLog, tmp_path: Path, section: str, change: dict[str, Any], key: str
) -> None:
    train_quietly(small_run(log, tmp_path / "run"), stop_after=3)
    with pytest.raises(ConfigError, match=key):
        train_quietly(small_run(log, tmp_path / "run", **{section: change}), resume=True)


def test_resuming_another_log_nothing_or_a_run_in_memory_is_refused(log: ClickLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        train_quietly(small_run(log, tmp_path / "none"), resume=True)
    train_quietly(small_run(log, tmp_path / "run"), stop_after=3)
    other = tiny(tmp_path / "other", seed=5)
    with pytest.raises(ConfigError, match="is not the one that the run in"):
        train_quietly(small_run(other, tmp_path / "run"), resume=True)
    in_memory = small_run(log, tmp_path / "memory", tables={"store": "memory"})
    train_quietly(in_memory)
    with pytest.raises(ConfigError, match="were in memory and ended with their process"):
        train_quietly(in_memory, resume=True)
    with pytest.raises(StoreError, match="were in memory"):
        trained(in_memory, log)


def test_a_lost_checkpoint_is_a_sentence(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=3)
    (config.run / "checkpoints" / "step-000000003" / checkpoint.STATE_FILE).unlink()
    sentence = r"the tables have that of step 0, 3, the checkpoints .* none \(.*state.json is missing"
    with pytest.raises(StoreError, match=sentence):
        train_quietly(config, resume=True)


def test_a_cache_too_small_names_the_smallest_that_works_and_leaves_nothing(log: ClickLog, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"the smallest cache that works for this log is (\d+) rows") as caught:
        train_quietly(small_run(log, tmp_path / "run", cache={"rows": 20}))
    assert "cache.rows" in str(caught.value)
    assert "train.batch_size" in str(caught.value)
    smallest = int(re.findall(r"is (\d+) rows", str(caught.value))[0])
    # One less passes the first batches and fails in the middle: that too leaves nothing.
    with pytest.raises(PlanError, match=f"the smallest cache that works for this log is {smallest} rows"):
        train_quietly(small_run(log, tmp_path / "run", cache={"rows": smallest - 1}))
    assert list(tmp_path.iterdir()) == []
    outcome, _ = train_quietly(small_run(log, tmp_path / "run", cache={"rows": smallest}))
    assert outcome.finished


def test_a_diverging_run_stops_with_the_step_and_keeps_nothing_after(log: ClickLog, tmp_path: Path) -> None:
    wild = {"optimizer": {"name": "sgd", "lr": 1e30}}
    config = small_run(log, tmp_path / "run", tables=wild)
    with pytest.raises(InputError, match=r"step \d+: training diverged, .*lower train.optimizer.lr"):
        train_quietly(config)
    assert list(tmp_path.iterdir()) == []
    kept = small_run(log, tmp_path / "run", tables=wild, train={"commit_every_steps": 1})
    with pytest.raises(InputError, match="training diverged"):
        train_quietly(kept)
    with trained(kept, log) as tables:
        step = tables.store.committed_step
        assert step >= 1
        weights = trained_model(kept, log, tables).state_dict()
        values = [tables.values(table.name) for table in log.tables]
    assert weights
    assert all(bool(torch.isfinite(tensor).all()) for tensor in weights.values())
    assert all(bool(torch.from_numpy(rows).isfinite().all()) for rows in values)
    assert [line["step"] for line in _metrics(kept, "commit")][-1] == step


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"cache": {"planner": "oracle"}}, "cache.planner: there is no planner 'oracle'; choose one of none"),
        ({"tables": {"optimizer": {"name": "sgd", "eps": 0.1}}}, "tables.optimizer.eps: sgd has no such number"),
        ({"model": {"name": "dlrn"}}, "model 'dlrn' is unknown"),
        ({"model": {"options": {"tops": [3]}}}, "model 'dlrm' has no option 'tops'"),
        ({"model": {"name": "test_training:Column", "options": {}}}, "logits of shape \\(32, 1\\) for 32 samples"),
        ({"train": {"device": "cuda:7"}}, "train.device: this machine has no 'cuda:7'"),
        ({"train": {"batch_size": 100_000}}, "fewer than one batch of 100000"),
        ({"cache": {"plan_file": "none.plan"}}, "none.plan"),
    ],
)
def test_what_cannot_be_trained_is_a_sentence_and_leaves_nothing(
    log: ClickLog, tmp_path: Path, sections: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        train_quietly(small_run(log, tmp_path / "run", **sections))
    assert list(tmp_path.iterdir()) == []


def test_tables_of_another_shape_are_refused(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "one", tables={"folder": str(tmp_path / "tables")})
    train_quietly(config)
    with pytest.raises(ConfigError, match="already holds tables, and a new run needs new ones"):
        train_quietly(small_run(log, tmp_path / "two", tables={"folder": str(tmp_path / "tables")}))
    # Somebody else's tables in the place of the run's own.
    other = small_run(log, tmp_path / "other", model={"dim": 8})
    train_quietly(other, stop_after=2)
    moved = small_run(log, tmp_path / "one", tables={"folder": str(other.tables_folder)})
    with pytest.raises(StoreError, match="have width 8, this run wants 4"):
        train_quietly(moved, resume=True)


def test_tensorboard_that_is_not_installed_is_a_sentence(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match="tensorboard is not installed"):
        train_quietly(small_run(log, tmp_path / "run", train={"tensorboard": True}))
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_gets_the_lines_of_the_metrics_file(
    log: ClickLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[str, float, int]] = []
    module = ModuleType("torch.utils.tensorboard")

    class SummaryWriter:
        def __init__(self, folder: str) -> None:
            assert folder == str(tmp_path / "run" / "tensorboard")

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def close(self) -> None:
            written.append(("closed", 0.0, 0))

    monkeypatch.setattr(module, "SummaryWriter", SummaryWriter, raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    config = small_run(log, tmp_path / "run", train={"tensorboard": True})
    train_quietly(config)
    losses = [(line["loss"], line["step"]) for line in _metrics(config, "train")]
    assert [(value, step) for name, value, step in written if name == "train/loss"] == losses
    assert any(name == "valid/auc" for name, _, _ in written)
    assert written[-1][0] == "closed"


def test_nothing_is_done_when_the_run_is_beyond_the_stop(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=6)
    outcome, _ = train_quietly(config, resume=True, stop_after=4)
    assert outcome.steps_done == 6


def test_a_kept_plan_trains_the_same_and_a_resumed_run_plans_the_rest(log: ClickLog, tmp_path: Path) -> None:
    live = small_run(log, tmp_path / "live")
    _keep_plan(live, log, tmp_path / "run.plan")
    train_quietly(live)
    kept = small_run(log, tmp_path / "kept", cache={"plan_file": str(tmp_path / "run.plan")})
    _, text = train_quietly(kept, stop_after=9)
    assert "planner lookahead as kept" in text
    train_quietly(kept, resume=True)
    assert everything(kept) == everything(live)
    other = small_run(log, tmp_path / "other", cache={"plan_file": str(tmp_path / "run.plan")}, train={"seed": 1})
    with pytest.raises(PlanError, match=r"run.plan was made for another log, seed, batch size or number of epochs"):
        train_quietly(other)


def _keep_plan(config: RunConfig, log: ClickLog, path: Path) -> None:
    stream = train_stream(config, log)
    header = plan_header(config, log, stream)
    accesses = (accesses_of(batch) for batch in stream.batches())
    write_plan(path, header, plan(make_planner(header, lambda _: ()), accesses))


def test_evaluation_in_the_middle_sees_what_a_stop_there_would_keep(log: ClickLog, tmp_path: Path) -> None:
    through = small_run(log, tmp_path / "through", train={"evaluate_every_steps": 10})
    train_quietly(through)
    stopped = small_run(log, tmp_path / "stopped")
    train_quietly(stopped, stop_after=10)
    with trained(stopped, log) as tables:
        metrics = evaluate(trained_model(stopped, log, tables), tables.store, log, batch_size=7)
    line = _metrics(through, "valid")[0]
    assert line["step"] == 10
    assert line["num_samples"] == metrics.num_samples == log.split_sizes["valid"]
    # Batches of another size may add in another order, so the last bits may differ.
    assert line["log_loss"] == pytest.approx(metrics.log_loss, rel=1e-6)
    assert line["auc"] == pytest.approx(metrics.auc, abs=1e-3)


def test_evaluation_changes_nothing_and_needs_no_more_samples_than_asked(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run", model={"name": "test_training:Noisy", "options": {}})
    train_quietly(config, stop_after=5)
    with trained(config, log) as tables:
        model = trained_model(config, log, tables).train()
        state = torch.get_rng_state()
        first = evaluate(model, tables.store, log, batch_size=16, samples_max=20)
        assert torch.equal(torch.get_rng_state(), state)
        assert model.training
        assert first.num_samples == 32
        assert evaluate(model, tables.store, log, batch_size=16, samples_max=20) == first


def test_half_a_line_at_the_end_of_the_metrics_is_forgotten(log: ClickLog, tmp_path: Path) -> None:
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=10)
    with open(config.run / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"kind": "train", "step": 15}) + '\n{"kind": "tra')
    train_quietly(config, resume=True, stop_after=20)
    assert [line["step"] for line in _metrics(config, "train")] == [5, 10, 15, 20]
