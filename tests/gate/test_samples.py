"""Folders and files of every format version that can be read, kept as they were written: all still open, same content.

Samples are never rewritten. When a format gets a new version, add a sample of it, and its line in `expected.json`:

    FORESEE_RECORD_SAMPLES=1 pytest -n 0 tests/gate/test_samples.py

Commands are called as `python -m foresee`; else only the public API is used.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import runpy
import shutil
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import foresee

SAMPLES = Path(__file__).with_name("samples")
EXPECTED = SAMPLES / "expected.json"
OLD_TABLES = SimpleNamespace(tables=[SimpleNamespace(name="a", num_rows=90), SimpleNamespace(name="b", num_rows=40)])


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """A copy, as reading table folders locks them."""
    return Path(shutil.copytree(SAMPLES, tmp_path / "samples"))


def command(*arguments: object, monkeypatch: pytest.MonkeyPatch) -> int:
    """Exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["foresee", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("foresee", run_name="__main__")
    code = ended.value.code
    assert isinstance(code, int | None)
    return code or 0


def digest(*arrays: Any) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def check(name: str, found: Any) -> None:
    """Compare with what was recorded: digests exactly, numbers to five digits, as processors round differently."""
    recorded = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
    if os.environ.get("FORESEE_RECORD_SAMPLES"):
        lines = [f"{json.dumps(key)}: {json.dumps(it)}" for key, it in {**recorded, name: found}.items()]
        EXPECTED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return
    assert found.keys() == recorded[name].keys()
    for key, value in found.items():
        assert value == (value if isinstance(value, str) else pytest.approx(recorded[name][key], rel=1e-5)), key
        assert not isinstance(value, str) or value == recorded[name][key], key


def rows_of(tables: foresee.Tables) -> dict[str, Any]:
    """Rows of tables of one width as digests."""
    rows_type = typing.get_type_hints(foresee.Store.read)["out"]
    rows = rows_type.empty(tables.layout.num_rows, tables.layout)
    tables.store.read(np.arange(tables.layout.num_rows, dtype=np.int64), rows)
    found = {name: digest(getattr(rows, name)) for name in ("values", "state", "versions")}
    return {**found, "step": tables.store.committed_step}


@pytest.mark.parametrize("name", ["log-1", "log-2"])
def test_logs(samples: Path, name: str) -> None:
    log = foresee.ClickLog.open(samples / name)
    batches = list(log.batches(batch_size=16).batches())
    labels = [digest(it.labels) for it in batches]
    content = {f"batch {k}": digest(it.dense, it.rows, it.bag_offsets) for k, it in enumerate(batches)}
    tables = ", ".join(f"{it.name} {it.num_rows}" for it in log.tables)
    check(name, {**content, "labels": " ".join(labels), "tables": tables, "digest": log.digest})


@pytest.mark.parametrize("name", ["tables-1", "tables-2", "tables-2-prepared"])
def test_table_folders_before_the_log(samples: Path, name: str) -> None:
    options: dict[str, Any] = {"dim": 6, "optimizer": foresee.RowwiseAdagrad(lr=0.1), "seed": 3, "init_scale": 0.01}
    with foresee.Tables.on_disk(samples / name, OLD_TABLES, **options) as tables:
        check(name, rows_of(tables))
        if name.endswith("prepared"):
            return  # only the run that was interrupted knows whether its commit stands
        tables.commit(9)
    with foresee.Tables.on_disk(samples / name, OLD_TABLES, **options) as tables:
        assert tables.store.committed_step == 9, "a folder of an older version takes new commits"


@pytest.mark.parametrize("name", ["run", "run-2"])
def test_runs_with_rows_in_the_log(
    samples: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run-2` has checkpoints of version 2."""
    log = foresee.ClickLog.open(samples / "log-1")
    assert (samples / name / "tables" / "log.bin").stat().st_size
    with foresee.Tables.on_disk(
        samples / name / "tables", log, dim=4, optimizer=foresee.RowwiseAdagrad(lr=0.05)
    ) as tables:
        found = rows_of(tables)
    assert command("evaluate", samples / name, "--json", monkeypatch=monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out)
    check(name, {**found, "log_loss": figures["log_loss"], "samples": figures["num_samples"]})
    assert command("check", samples / name, monkeypatch=monkeypatch) == 0
    monkeypatch.chdir(samples)
    resumed = ("train", "run.yaml", "--set", f"run={name}", "--resume", "--stop-after", 10)
    assert command(*resumed, monkeypatch=monkeypatch) == 0
    assert command("fold", name, monkeypatch=monkeypatch) == 0
    assert "stopped after 10 of" in capsys.readouterr().out
    assert np.load(samples / name / "tables" / "rows.npy")["version"].max() == 10


def test_a_run_of_two_widths_and_two_bytes(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = foresee.ClickLog.open(samples / "log-2")
    options: dict[str, Any] = {"dim": {"user": 3, "default": 4}, "dtype": "bfloat16"}
    with foresee.Tables.on_disk(
        samples / "tasks" / "tables", log, optimizer=foresee.Adagrad(lr=0.05), **options
    ) as tables:
        found: dict[str, Any] = {it.name: digest(tables.values(it.name)) for it in log.tables}
    assert command("evaluate", samples / "tasks", "--json", monkeypatch=monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out)
    numbers = {name: value for name, value in figures.items() if name.endswith((".log_loss", ".rmse"))}
    check("tasks", {**found, **numbers})


@pytest.mark.parametrize("name", ["export-1", "export-2", "export-3"])
def test_exports(samples: Path, name: str) -> None:
    exported = foresee.load_exported(samples / name)
    with open(samples / "clicks.csv", newline="") as file:
        raw = list(csv.DictReader(file))[:5]
    wanted = [{**it, "tags": it["tags"].split("|") if it["tags"] else []} for it in raw]
    scores = exported.score(wanted)
    columns = scores if isinstance(scores, dict) else {"score": scores}
    found = {f"{key} {k}": float(it) for key, column in columns.items() for k, it in enumerate(np.ravel(column))}
    check(name, found)


@pytest.mark.parametrize(("name", "workers"), [("plan-1.arrow", 1), ("plan-2.arrow", 1), ("plan-folder-1", 2)])
def test_plans(samples: Path, name: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run by the plan: rows are those of a run that plans by itself. Several workers: the plan is whole."""
    monkeypatch.chdir(samples)
    assert command("check", name, monkeypatch=monkeypatch) == 0
    assert command("plan", "show", name, monkeypatch=monkeypatch) == 0
    if workers > 1:
        return
    settings = ("train.epochs=1", "train.batch_size=18", "cache.rows=113", "tables.fold=at_end")
    options = [word for it in settings for word in ("--set", it)]
    for run, plan in (("planned", ("--plan", name)), ("itself", ())):
        assert command("train", "run.yaml", *options, "--set", f"run={run}", *plan, monkeypatch=monkeypatch) == 0
    assert (samples / "planned/tables/rows.npy").read_bytes() == (samples / "itself/tables/rows.npy").read_bytes()


def test_a_graph_a_run_over_it_and_its_export(
    samples: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = samples / "graph-run"
    assert command("graph", "evaluate", run, "--split", "test", "--json", monkeypatch=monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out)
    assert command("graph", "export", run, "--out", samples / "again", "--format", "npy", monkeypatch=monkeypatch) == 0
    vectors = next(it for it in (samples / "again").rglob("*.npy"))
    check("graph-run", {"mrr": figures["mrr"], "mean_rank": figures["mean_rank"], "vectors": digest(np.load(vectors))})
    for name in ("nodes.parquet", "relations.parquet"):
        assert (samples / "graph-export-1" / name).exists()


def test_every_sample_has_its_values() -> None:
    names = {it.name for it in SAMPLES.iterdir()} - {"expected.json", "README.md", "run.yaml", "clicks.csv"}
    covered = {
        *json.loads(EXPECTED.read_text()),
        "graph-1",
        "graph-export-1",
        "plan-1.arrow",
        "plan-2.arrow",
        "plan-folder-1",
    }
    assert names == covered
    expected = json.loads(EXPECTED.read_text())
    assert expected["export-1"] == pytest.approx(expected["export-2"], rel=1e-5), "the same model in two versions"
    assert expected["run-2"] == expected["run"]
