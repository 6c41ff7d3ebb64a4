"""The best evaluation is kept and found again; a run that gets no better stops; both survive a kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import everything, small_run, train_quietly

from foresee.data import ClickLog, tiny
from foresee.errors import ConfigError, StoreError
from foresee.run.callbacks import SaveCheckpoint
from foresee.run.config import BestConfig, RunConfig
from foresee.run.dense_state import Best
from foresee.run.evaluation import evaluate
from foresee.run.folder import RunFolder
from foresee.run.metrics import Metrics, measure
from foresee.run.serving.export import export, trained, trained_model
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore

OVERFITTING: dict[str, Any] = {
    "epochs": 6, "evaluate_every_steps": 20, "log_every_steps": 1, "optimizer": {"name": "adamw", "lr": 0.02},
    "schedule": {"name": "cosine_annealing", "options": {"T_max": 600}},
    "best": {"metric": "gauc", "patience": 3}, "ranking": {"group": "C1", "at": [2]},
}  # fmt: skip


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> ClickLog:
    return tiny(tmp_path_factory.mktemp("log") / "log", num_samples=4000)


def _overfitting(log: ClickLog, run: Path, **train: Any) -> RunConfig:
    """A run that soon gets worse on the valid split."""
    settings = {**OVERFITTING, **train}
    settings["ranking"] = {**settings["ranking"], "group": log.features[0].name}
    return small_run(log, run, train=settings, tables={"optimizer": {"name": "adagrad", "lr": 0.3}})


def _metrics(auc: float | None) -> Metrics:
    found = measure(np.zeros(2, np.float32), np.array([0, 1], np.float32))
    return Metrics(**{name: getattr(found, name) for name in Metrics.__dataclass_fields__} | {"auc": auc})


def _everything_best(config: RunConfig) -> dict[str, bytes]:
    """The rows and files of the best, as the newest commit has them."""
    store = DiskStore.open(RunFolder(config.run).best_tables)
    try:
        rows = Rows.empty(store.layout.num_rows, store.layout)
        store.read(np.arange(store.layout.num_rows), rows)
        kept = RunFolder(config.run).best_checkpoints / f"step-{store.committed_step:09d}"
    finally:
        store.close()
    found = {"values": rows.values.tobytes(), "state": rows.state.tobytes(), "versions": rows.versions.tobytes()}
    return {**found, **{file.name: file.read_bytes() for file in sorted(kept.iterdir())}}


def _valid_lines(config: RunConfig) -> list[dict[str, Any]]:
    return [line for line in RunFolder(config.run).read_metrics() if line["kind"] == "valid"]


def test_the_best_is_the_largest_or_the_smallest_and_patience_counts_the_rest() -> None:
    best = Best(BestConfig(metric="auc", patience=2, min_delta=0.01))
    seen = [best.look(step, _metrics(auc)) for step, auc in enumerate([0.6, 0.605, 0.7, None, 0.69], 1)]
    assert seen == [True, False, True, False, False]
    assert (best.step, best.value, best.num_since, best.exhausted) == (3, 0.7, 2, True)
    again = Best(BestConfig(metric="auc", patience=3))
    again.load_state_dict(best.state_dict())
    assert (again.step, again.value, again.num_since, again.exhausted) == (3, 0.7, 2, False)
    other = Best(BestConfig(metric="auc", mode="min"))
    other.load_state_dict(best.state_dict())
    assert other.step == 0
    assert [other.look(step, _metrics(auc)) for step, auc in enumerate([0.5, 0.6, 0.4], 1)] == [True, False, True]
    smaller = Best(BestConfig(metric="log_loss"))
    assert smaller.look(1, _metrics(None))
    assert not smaller.look(2, _metrics(None))


@pytest.fixture(scope="module")
def stopped(log: ClickLog, tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    config = _overfitting(log, tmp_path_factory.mktemp("whole") / "run")
    train_quietly(config)
    return config


def test_a_run_that_gets_no_better_stops_and_its_best_is_that_of_a_run_that_ended_there(
    log: ClickLog, stopped: RunConfig, tmp_path: Path
) -> None:
    lines = _valid_lines(stopped)
    figures = [line["gauc"] for line in lines]
    best = int(np.argmax(figures))
    assert len(lines) == best + 1 + 3
    assert lines[-1]["step"] < 600, "it should have stopped early"
    assert {"ndcg@2", "recall@2", "num_groups"} <= lines[0].keys()
    plain = _overfitting(log, tmp_path / "plain", best={}, evaluate_every_steps=None)
    train_quietly(plain, stop_after=lines[best]["step"])
    expected, found = everything(plain), _everything_best(stopped)
    for name in ("values", "state", "versions", "model.safetensors", "optimizer.safetensors"):
        assert found[name] == expected[name], name


def test_the_best_is_what_evaluate_and_export_use(log: ClickLog, stopped: RunConfig, tmp_path: Path) -> None:
    best = max(_valid_lines(stopped), key=lambda line: float(line["gauc"]))
    with trained(stopped, log, best=True) as tables:
        model = trained_model(stopped, log, tables, best=True)
        found = evaluate(model, tables.store, log, ranking=stopped.train.ranking)
    assert {name: best[name] for name in found.as_dict() if name in best} == {
        name: value for name, value in found.as_dict().items() if name != "calibration_by_decile"
    } | {"calibration_by_decile": best["calibration_by_decile"]}
    description = export(stopped.run, tmp_path / "export", best=True)
    assert description["step"] == best["step"]
    assert export(stopped.run, tmp_path / "last")["step"] == _valid_lines(stopped)[-1]["step"]


def test_a_stopped_run_goes_on_only_with_more_patience(log: ClickLog, stopped: RunConfig, tmp_path: Path) -> None:
    config = _overfitting(log, tmp_path / "run")
    first, text = train_quietly(config)
    assert "stopped early after" in text
    assert f"kept in {config.run / 'best'}; use it with --best, or raise train.best.patience" in text
    again, text = train_quietly(config, resume=True)
    assert (again.steps_done, again.counters.num_steps) == (first.steps_done, 0)
    assert "stopped early after" in text
    more = _overfitting(log, tmp_path / "run", best={"metric": "gauc", "patience": 4})
    assert train_quietly(more, resume=True)[0].steps_done > first.steps_done


def test_kill_9_changes_neither_the_step_nor_the_best(log: ClickLog, stopped: RunConfig, tmp_path: Path) -> None:
    config = _overfitting(log, tmp_path / "run", commit_every_steps=7)
    for attempt, step in enumerate((19, 21, 45, 70, None)):
        child = os.fork()
        if not child:
            try:
                os._exit(train_quietly(config, resume=attempt > 0)[0].exit_code)
            except BaseException:
                os._exit(99)
        if step is not None:
            _wait_for_step(config, step)
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, -signal.SIGKILL)
    assert code == 0
    assert everything(config) == everything(stopped)
    assert _everything_best(config) == _everything_best(stopped)


def _wait_for_step(config: RunConfig, step: int) -> None:
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        if any(line["step"] >= step for line in RunFolder(config.run).read_metrics()):
            return
        time.sleep(0.002)
    pytest.fail(f"the child did not reach step {step}")


def test_a_kill_between_best_and_commit_goes_back_to_the_best_that_the_run_knows(
    log: ClickLog, stopped: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second best is in its folder, the commit that would tell of it is not."""
    config = _overfitting(log, tmp_path / "run")
    steps = [line["step"] for line in _valid_lines(stopped)]
    figures = [line["gauc"] for line in _valid_lines(stopped)]
    second = next(step for at, step in enumerate(steps) if at and figures[at] > max(figures[:at]))
    keep = SaveCheckpoint.keep

    def stop_before(self: Any) -> None:
        if self._run.steps_done == second:
            raise KeyboardInterrupt
        keep(self)

    monkeypatch.setattr(SaveCheckpoint, "keep", stop_before)
    with pytest.raises(KeyboardInterrupt):
        train_quietly(config)
    monkeypatch.setattr(SaveCheckpoint, "keep", keep)
    assert [line["step"] for line in RunFolder(config.run).read_metrics() if line["kind"] == "commit"][-1] < second
    train_quietly(config, resume=True)
    assert _everything_best(config) == _everything_best(stopped)
    assert everything(config) == everything(stopped)


def test_a_best_of_rows_in_memory_is_kept_on_disk(log: ClickLog, stopped: RunConfig, tmp_path: Path) -> None:
    config = _overfitting(log, tmp_path / "run")
    config = config.model_copy(update={"tables": config.tables.model_copy(update={"store": "memory"})})
    train_quietly(config)
    assert _everything_best(config)["values"] == _everything_best(stopped)["values"]


def test_what_is_wrong_is_a_sentence(log: ClickLog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train.ranking.group: .* has no feature 'nobody'; choose from"):
        train_quietly(small_run(log, tmp_path / "run", train={"ranking": {"group": "nobody"}}))
    assert not (tmp_path / "run").exists()
    config = small_run(log, tmp_path / "run")
    train_quietly(config, stop_after=2)
    with pytest.raises(StoreError, match="keeps no best"):
        trained(config, log, best=True)
