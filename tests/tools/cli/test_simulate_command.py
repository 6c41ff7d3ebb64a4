"""`foresee simulate` as a person types it: tables, CSV, page, and one sentence for what is wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from command_line import foresee
from foresee.data import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulate_command")
    tiny(folder / "log", num_samples=900)
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")


SHORT = ("--batch-size", "16", "--steps", "5", "--dim", "8", "--trainers", "1,4")


def test_a_log_on_paper(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--csv", "out.csv", "--page", "out.html")
    assert foresee("simulate", "log", *SHORT, "--planners", "0", *files, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "log: 189 rows of 40 bytes" in text
    assert "5 steps of 16 samples a trainer planned by lookahead, from empty caches" in text
    assert "a plan that was made before. Timed here:" in text
    with open("out.csv", encoding="utf-8", newline="") as file:
        one, four = csv.DictReader(file)
    assert (one["trainers"], four["trainers"], four["servers"]) == ("1", "4", "1")
    assert float(four["step_ms"]) >= float(one["step_ms"]) >= 8
    assert f"{float(four['step_ms']):,.2f}" in text
    names = ("compute_ms", "waited_ms", "exchange_ms", "dense_ms", "late_ms", "bound_ms")
    assert sum(float(four[name]) for name in names) == pytest.approx(float(four["step_ms"]), rel=0.05)
    page = Path("out.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "Predicted step over trainers" in page


def test_a_synthetic_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert foresee("simulate", "--synthetic", "1e6", *SHORT, "--policy", "none", monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    assert "a synthetic log of 1e+06 rows: " in text
    assert "planned by none" in text
    assert "planning on 1 core." in text
    assert " rows of 40 bytes, " in text
    halves = ("--policy", "none", "--dtype", "bfloat16")
    assert foresee("simulate", "--synthetic", "1e6", *SHORT, *halves, monkeypatch=monkeypatch) == 0
    assert " rows of 24 bytes, " in capsys.readouterr().out
    assert foresee("simulate", "--synthetic", "1e6", *SHORT, "--dtype", "int8", monkeypatch=monkeypatch) == 2


NODES = """
- {name: small, price: 0.5, cores: 8, memory_gb: 5, link_gbit: 1}
- {name: large, price: 4, cores: 64, memory_gb: 64, link_gbit: 25, compute_ms: 2}
- {name: tiny, price: 0.1, cores: 1, memory_gb: 1, link_gbit: 1}
"""


def test_a_bill(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.yaml").write_text(NODES)
    priced = ("--nodes", "nodes.yaml", "--samples", "1e9", "--csv", "bill.csv", "--page", "bill.html")
    assert foresee("simulate", "log", *SHORT, "--planners", "0", *priced, monkeypatch=monkeypatch) == 0
    text = capsys.readouterr().out
    with open("bill.csv", encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(it["node"], it["nodes"]) for it in lines] == [(it, n) for it in ("small", "large", "tiny") for n in "14"]
    for it in lines[:4]:
        hours = 1e9 / float(it["samples_per_second"]) / 3600
        assert float(it["hours"]) == pytest.approx(hours)
        assert float(it["cost"]) == pytest.approx(int(it["nodes"]) * hours * float(it["price"]))
        assert f"{float(it['cost']):,.2f}" in text
        assert it["servers"] == it["nodes"]
    assert float(lines[2]["samples_per_second"]) > 3 * float(lines[0]["samples_per_second"]), "compute_ms of its type"
    assert all(it["cost"] == "" and "of memory and tiny has 1" in it["note"] for it in lines[4:])
    assert sum(it["note"].startswith("knee of all") for it in lines) == 1
    assert sum("knee" in it["note"] for it in lines) == 2
    page = Path("bill.html").read_text("utf-8")
    assert "Predicted cost over hours" in page
    assert "Left out: 1 × tiny: a node needs" in page


def test_nothing_fits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("nodes.yaml").write_text(NODES.splitlines()[-1])
    assert foresee("simulate", "log", *SHORT, "--nodes", "nodes.yaml", monkeypatch=monkeypatch) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "nothing fits: with 4 nodes a node needs" in said
    assert "give more nodes (--trainers), larger ones, or disks (disk_gb)" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give a prepared log or --synthetic ROWS, one of the two"),
        (["log", "--synthetic", "1e6"], "give a prepared log or --synthetic ROWS, one of the two"),
        (["missing"], "missing: no prepared log is here"),
        (["--synthetic", "12"], "a synthetic log of 12 rows cannot be made; give 10,000 to"),
        (["log", "--batch-size", "200", "--trainers", "2"], "too few for four steps of 2 trainers with 200 samples"),
        (["log", *SHORT, "--policy", "belady"], "--policy belady cannot be run (1 trainers); choose another"),
        (["log", *SHORT, "--policy", "owner"], "--policy owner decides between trainers, and there is only one"),
        (["log", *SHORT, "--policy", "oracle"], "there is no policy 'oracle'"),
        (["log", *SHORT, "--link-gbit", "0"], "--link-gbit 0.0: give a number above 0"),
        (["log", *SHORT, "--cache", "1x,2x"], "--cache 1x,2x: give one size"),
        (["log", *SHORT, "--nodes", "no.yaml"], "no.yaml cannot be read (No such file or directory)"),
        (["log", *SHORT, "--nodes", "no.yaml", "--servers", "2"], "--servers: with --nodes there is one on every node"),
        (["--synthetic", "1e6", *SHORT, "--nodes", "no.yaml"], "say with --samples how many the run trains on"),
        (["log", *SHORT, "--nodes", "no.yaml", "--samples", "0"], "--samples 0.0: give a number above 0"),
        (["log", *SHORT, "--cache", "20"], "the smallest cache that works"),
        (["--synthetic", "1e6", "--trainers", "65", "--batch-size", "1"], "a plan for 65 workers cannot be made"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_exit_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert foresee("simulate", *arguments, monkeypatch=monkeypatch) == 2
    assert sentence in " ".join(capsys.readouterr().err.replace("│", " ").split())
