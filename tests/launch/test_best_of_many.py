"""Early stopping, the best, schedules and progress with two workers and two servers, killed and undisturbed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import yaml
from run_results import Bytes, dense_half, num_steps_done, rows_in_folders, rows_of
from warm_commands import Commands, is_alive

from foresee.data import ClickLog
from foresee.run.evaluation import evaluate
from foresee.run.folder import RunFolder, open_run
from foresee.run.serving.export import trained, trained_model
from foresee.store.disk import DiskStore
from waiting import wait_until


def _overfitting(file: Path, log: ClickLog) -> Path:
    """A run that soon gets worse on the valid split; entered in the middle, its caches are filled first."""
    content = yaml.safe_load(file.read_text())
    content["distributed"]["placement"] = "location_aware"
    content["tables"] = {"optimizer": {"name": "adagrad", "lr": 0.3}}
    content["train"] |= {
        "epochs": 12, "evaluate_every_steps": 10, "commit_every_steps": 7,
        "optimizer": {"name": "nadam", "lr": 0.02}, "schedule": {"name": "OneCycleLR", "every": "step",
                                                                 "options": {"max_lr": 0.05, "total_steps": 400}},
        "best": {"metric": "gauc", "patience": 4}, "ranking": {"group": log.features[0].name, "at": [3]},
    }  # fmt: skip
    file.write_text(yaml.safe_dump(content))
    return file


def _valid(run: Path) -> list[tuple[int, float]]:
    return [(line["step"], line["gauc"]) for line in RunFolder(run).read_metrics() if line["kind"] == "valid"]


def _everything(run: Path) -> dict[str, Bytes]:
    store = DiskStore.open(RunFolder(run).best_tables)
    try:
        best, step = rows_of(store), store.committed_step
    finally:
        store.close()
    kept = RunFolder(run).best_checkpoints / f"step-{step:09d}"
    last = _valid(run)[-1][0]
    state = json.loads((run / "checkpoints" / f"step-{last:09d}" / "state.json").read_text())
    return {
        "last": {**rows_in_folders(run), **dense_half(run, last), "state": json.dumps(state).encode()},
        "best": {**best, **{name: (kept / name).read_bytes() for name in ("model.safetensors", "state.json")}},
    }


def test_a_kill_changes_neither_where_a_run_stops_nor_its_best(
    commands: Commands, run_file: Path, small_log: ClickLog
) -> None:
    _overfitting(run_file, small_log)
    run, plain = run_file.parent / "run", run_file.parent / "undisturbed"
    code, text = commands.run("train", run_file, "--set", f"run={plain}")
    assert code == 0, text
    figures = _valid(plain)
    best = max(range(len(figures)), key=lambda at: figures[at][1])
    assert len(figures) == best + 1 + 4
    assert figures[-1][0] < 300
    assert f"stopped early after {figures[-1][0]} of 300 steps" in text

    launched = commands.start("train", run_file)
    wait_until(lambda: num_steps_done(run) >= 23 or not is_alive(launched.process_id), "step 23")
    os.kill(launched.children()["worker1"], signal.SIGKILL)
    assert commands.wait(launched) == 0, launched.text()
    assert "was killed by SIGKILL" in launched.text()
    assert _valid(run) == figures
    assert _everything(run) == _everything(plain)
    rates = [line["hit_rate"] for line in RunFolder(run).read_metrics() if line["kind"] == "train"]
    assert all(rate is None or 0 <= rate <= 1 for rate in rates), rates

    code, text = commands.run("train", run_file, "--resume")
    assert code == 0, text
    assert "stopped early after" in text
    assert _everything(run) == _everything(plain)
    config = open_run(run)
    with trained(config, small_log, best=True) as tables:
        model, step = trained_model(config, small_log, tables, best=True), tables.store.committed_step
        found = evaluate(model, tables.store, small_log, ranking=config.train.ranking)
    assert (step, found.figure("gauc")) == figures[best]
