"""`foresee compare` as a person types it: tables, CSV, page, and one sentence for what is wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare_command")
    tiny(folder / "log", num_samples=900)
    (folder / "file.txt").write_text("no log")
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")


SHORT = ("--batch-size", "16", "--steps", "5")


def test_the_tables(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("compare", "log", *SHORT, "--trainers", "1,4", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "log: the first 5 steps of 16 samples a trainer" in text
    one, four = text.split("4 trainers, cache of")
    for name in ("none", "static", "lru", "lfu", "het 10", "het 100", "fae", "replicated", "lookahead", "belady"):
        assert f"│ {name} " in one
        assert f"│ {name} " in four
    assert "– [1]" in one
    assert "[1] decides between trainers, and there is only one" in one
    assert "– [1]" not in four
    assert "Predicted for 10 ms of compute a step, links of 1000 Mbit/s" in text


def test_csv_and_page_have_the_figures(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--csv", "out.csv", "--page", "out.html")
    assert foresee("compare", "log", *SHORT, "--trainers", "1,2", *files, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    with open("out.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 12 * 2 * 4, "policies, trainers, cache sizes"
    owner = [line for line in lines if line["policy"] == "owner" and line["trainers"] == "1"]
    assert {line["hit_rate"] for line in owner} == {""}
    assert all(line["why_missing"] for line in owner)
    ours = next(line for line in lines if line["policy"] == "lookahead" and line["trainers"] == "2")
    assert f"{float(ours['rows_per_step']):,.0f}" in text
    timed = [float(line["step_ms"]) for line in lines if line["step_ms"]]
    assert min(timed) >= 10
    page = Path("out.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert f"{float(ours['rows_per_step']):,.0f}" in page
    assert not list(folder.glob(".out*"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing"], "missing: no prepared log is here (log.json is missing); make one with `foresee prepare`"),
        (["file.txt"], "file.txt: no prepared log is here"),
        (["log", "--trainers", "two"], "--trainers two: give whole numbers from 1 up"),
        (["log", "--cache", "much"], "--cache much: give rows (50000), shares of the touched rows (0.1)"),
        (["log", "--steps", "1"], "--steps 1: give a whole number from 2 up, or all"),
        (["log", "--policies", "oracle"], "there is no policy 'oracle'; choose one of none, static"),
        (["log", "--optimizer", "adam2"], "--optimizer: there is no 'adam2'; choose one of"),
        (["log", "--compute-ms", "0"], "--compute-ms 0.0: give a number above 0"),
        (["log", "--batch-size", "400"], "too few for two steps of 1 trainers with 400 samples each; lower"),
        (["log", *SHORT, "--csv", "nowhere/out.csv"], "nowhere/out.csv: the figures cannot be written"),
        (["log", *SHORT, "--cache", "0.1", "--page", "nowhere/out.html"], "the page cannot be written"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("compare", *arguments, monkeypatch=monkeypatch) == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())
