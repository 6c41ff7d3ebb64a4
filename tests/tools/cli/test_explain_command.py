"""`foresee explain` as a person types it: sentences for rows and steps, JSON, and one sentence for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explain_command")
    tiny(folder / "log", num_samples=900)
    (folder / "run.yaml").write_text(
        "log: log\nrun: run\nmodel: {name: dlrm, dim: 4, options: {bottom: [8], top: [8]}}\n"
        "cache: {rows: 130}\ntrain: {batch_size: 32, num_threads: 1}\n"
    )
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")


def test_a_row_in_words_and_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("explain", "run.yaml", "--row", "item:84", "--json", monkeypatch=monkeypatch) == 0
    life = json.loads(capsys.readouterr().out)
    assert (life["name"], life["row"]) == ("item:84", 134)
    assert foresee("explain", "run.yaml", "--row", "134", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert f"item:84: row 134 of 189\nused in {len(life['uses'])} of 22 steps" in text
    assert "█ used   ━ kept in a cache   · away" in text
    for stay in life["stays"]:
        assert f"fetched for step {stay['fetched_for']}, " in text
        assert f"written back after step {stay['left']['after']} in version {stay['left']['version']}" in text
    assert f"{life['stays'][0]['left']['kept']['num_rows']} rows that stayed are used again" in text


def test_a_step_in_words_and_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("explain", "run.yaml", "--step", "10", "--json", monkeypatch=monkeypatch) == 0
    worker = json.loads(capsys.readouterr().out)["workers"][0]
    assert foresee("explain", "run.yaml", "--step", "10", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert f"{worker['num_rows']} rows used: {worker['num_hits']} in the cache already" in text
    assert f"fetched {worker['fetching']['num_rows']} rows (" in text
    assert f"once the write-backs of step {worker['fetching']['not_before']} were applied" in text
    assert f"wrote back {worker['leaving']['num_rows']} rows (" in text


def test_several_workers_and_a_fixed_window(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    several = ("--set", "distributed.workers=2", "--set", "cache.rows=90")
    assert foresee("explain", "run.yaml", "--step", "5", *several, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "worker 1: 16 samples" in text
    assert "critical, because step 4 trained those rows too" in text
    assert foresee("explain", "run.yaml", "--row", "item:84", *several, monkeypatch=monkeypatch) == 0
    assert "between 2 workers: moved" in capsys.readouterr().out
    window = ("--set", "cache.window_steps=2", "--set", "cache.rows=189")
    assert foresee("explain", "run.yaml", "--row", "item:84", *window, monkeypatch=monkeypatch) == 0
    assert "because the window ended at step" in capsys.readouterr().out


def test_the_folder_of_a_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("train", "run.yaml", "--stop-after", "4", monkeypatch=monkeypatch) == 0
    capsys.readouterr()
    assert foresee("explain", "run", "--step", "2", monkeypatch=monkeypatch) == 0
    assert "in the recorded run it took" in capsys.readouterr().out
    assert foresee("explain", "run", "--step", "2", "--json", monkeypatch=monkeypatch) == 0
    assert json.loads(capsys.readouterr().out)["measured"][0]["seconds"] > 0
    assert foresee("explain", "run", "--step", "20", monkeypatch=monkeypatch) == 0
    assert "recorded run" not in capsys.readouterr().out, "that step was not trained"
    assert foresee("explain", "run", "--row", "item:84", monkeypatch=monkeypatch) == 0
    from_folder = capsys.readouterr().out
    assert "after the commit of step 4 it lies in rows.npy" in from_folder
    assert foresee("explain", "run.yaml", "--row", "item:84", monkeypatch=monkeypatch) == 0
    assert from_folder.startswith(capsys.readouterr().out.rstrip())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run.yaml"], "give either --row TABLE:ID or --step NUM"),
        (["run.yaml", "--row", "item:1", "--step", "1"], "give either --row TABLE:ID or --step NUM"),
        (["run.yaml", "--row", "itm:1"], "has no table 'itm'; did you mean item?"),
        (["run.yaml", "--row", "item:=shoe"], "table item keeps no values (its values are ids already)"),
        (["run.yaml", "--step", "22"], "the run has steps 0 to 21; give one of these"),
        (["run.yaml", "--step", "-1"], "the run has steps 0 to 21; give one of these"),
        (["run.yaml", "--step", "1", "--set", "cache.rows=10"], "the smallest cache that works for this log is"),
        (["missing.yaml", "--step", "1"], "missing.yaml: there is no such file"),
        (["log", "--step", "1"], "log holds no run (config.yaml is missing)"),
        (["run.yaml", "--step", "1", "--set", "cache.plan_file=run.yaml"], "this is not a plan"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("explain", *arguments, monkeypatch=monkeypatch) == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())
