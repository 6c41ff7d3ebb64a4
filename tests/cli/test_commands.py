"""The commands as a person meets them: exit codes, sentences on the error stream, and a frozen command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from command_line import foresee
from foresee.cli import app, main
from foresee.data import ClickLog, tiny
from foresee.engine.exported import load_exported

GOLDEN = Path(__file__).with_name("commands.golden.txt")
OURS = ("demo", "train", "evaluate", "export", "score")


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    tiny(tmp_path / "log")
    file = tmp_path / "run.yaml"
    file.write_text(
        "log: log\nrun: run\nmodel: {dim: 4, options: {bottom: [8], top: [8]}}\n"
        "cache: {rows: 150}\ntrain: {batch_size: 32, num_threads: 1}\n"
    )
    return file


def test_train_evaluate_export(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = run_file.parent / "run", run_file.parent / "out"
    assert foresee("train", run_file, "--stop-after", 5, monkeypatch=monkeypatch) == 0
    assert "stopped after 5 of 25 steps" in capsys.readouterr().out
    assert foresee("train", run_file, "--resume", monkeypatch=monkeypatch) == 0
    assert "done: 25 steps" in capsys.readouterr().out
    assert foresee("evaluate", run, "--split", "test", "--json", monkeypatch=monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["step"], figures["split"], figures["num_samples"]) == (25, "test", 100)
    assert foresee("evaluate", run, monkeypatch=monkeypatch) == 0
    assert "AUC" in capsys.readouterr().out
    assert foresee("export", run, "--out", out, monkeypatch=monkeypatch) == 0
    assert "4 tables with 189 rows" in capsys.readouterr().out.replace("\n", " ")
    assert (out / "README.md").is_file()


def test_score_says_which_line_and_column_cannot_be_right(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, raw, scores = (run_file.parent / name for name in ("out", "raw.csv", "scores.csv"))
    assert foresee("train", run_file, "--stop-after", 5, monkeypatch=monkeypatch) == 0
    assert foresee("export", run_file.parent / "run", "--out", out, monkeypatch=monkeypatch) == 0
    names = load_exported(out).columns
    good = ",".join("0" for _ in names)
    outside = ",".join("9999" if name == "user" else "0" for name in names)
    capsys.readouterr()
    for last, sentence in (
        (outside, "raw.csv:3, column 'user': '9999' is no id of table 'user'"),
        (good + ",0", "raw.csv:3: expected"),
    ):
        raw.write_text("\n".join([",".join(names), good, last]))
        assert foresee("score", out, raw, "--out", scores, monkeypatch=monkeypatch) == 2
        captured = capsys.readouterr()
        assert sentence in captured.err
        assert captured.out == ""
        assert not list(run_file.parent.glob("*scores*"))
    raw.write_text("\n".join([good, good]))
    columns = ",".join(names)
    assert foresee("score", out, raw, "--no-header", "--column-names", columns, monkeypatch=monkeypatch) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "probability"
    assert lines[1] == lines[2]
    assert foresee("score", out, run_file.parent / "none.csv", monkeypatch=monkeypatch) == 2
    assert "none.csv: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train", "none.yaml"], "none.yaml: there is no such file"),
        (["train", "RUN", "--set", "cache.rowz=3"], "did you mean cache.rows?"),
        (["train", "RUN", "--set", "cache.rows=20"], "the smallest cache that works for this log is"),
        (["train", "RUN", "--set", "log=elsewhere"], "elsewhere: no prepared log is here"),
        (["train", "RUN", "--resume"], "holds no run"),
        (["evaluate", "none"], "none holds no run"),
        (["export", "none", "--out", "out"], "none holds no run"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    assert foresee(*(run_file if it == "RUN" else it for it in arguments), monkeypatch=monkeypatch) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("foresee: ")
    assert sentence in captured.err
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    assert not (run_file.parent / "run").exists()


def test_a_bad_option_is_exit_code_2(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("train", run_file, "--resume", "--replace", monkeypatch=monkeypatch) == 2
    assert "give one of them" in capsys.readouterr().err
    assert foresee("train", run_file, "--stop-after", "0", monkeypatch=monkeypatch) == 2


def test_an_error_of_ours_keeps_its_traceback(run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("foresee.engine.training.open_log", broken)
    monkeypatch.setattr(sys, "argv", ["foresee", "train", str(run_file)])
    with pytest.raises(ZeroDivisionError):
        main()


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_130_and_a_commit(run_file: Path) -> None:
    command = [sys.executable, "-m", "foresee", "train", str(run_file), "--set", "train.epochs=10000"]
    command += ["--set", "train.log_every_steps=1", "--set", "train.commit_every_seconds=1000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    metrics = run_file.parent / "run" / "metrics.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        end = time.monotonic() + 90
        while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < end:
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert err == ""
    assert "go on with --resume" in out
    assert json.loads(metrics.read_text().splitlines()[-1])["kind"] == "commit"


def test_the_demo_makes_a_log_once_trains_and_says_what_came_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    folder = tmp_path / "demo"
    assert foresee("demo", "--folder", folder, "--samples", 20_000, monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    for words in ("best reachable AUC", "gap", "rows in the cache", "hit rate", "waited for rows", "foresee verify"):
        assert words in out
    best = ClickLog.open(folder / "log").best_auc["valid"]
    assert f"{best:.4f}" in out
    run_file = folder / "run.yaml"
    run_file.write_text(run_file.read_text().replace("dim: 16", "dim: 2"))
    assert foresee("demo", "--folder", folder, "--samples", 20_000, monkeypatch=monkeypatch) == 0
    assert "is there already" in capsys.readouterr().out
    assert "dim: 2" in (folder / "run" / "config.yaml").read_text()


def test_every_command_is_there_in_the_order_of_need(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("--help", monkeypatch=monkeypatch) == 0
    out = capsys.readouterr().out
    names = ("demo", "prepare", "plan", "train", "evaluate", "verify", "export", "cluster")
    places = [out.index(f"│ {name} ") for name in names]
    assert places == sorted(places)


def test_the_command_line_is_frozen() -> None:
    """Scripts depend on it. If a change is meant, write the new lines into the golden file and the changelog."""
    assert list(_command_line()) == GOLDEN.read_text("utf-8").splitlines()


def _command_line() -> Iterator[str]:
    group: Any = typer.main.get_command(app)
    for name in OURS:
        for parameter in group.commands[name].params:
            options = "/".join([*parameter.opts, *parameter.secondary_opts])
            yield f"{name} {options} required={parameter.required} default={parameter.default} help={parameter.help}"
