"""`foresee init`: the file it writes trains as it is, for logs of every shape, and nothing is written over unasked."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from command_line import foresee
from foresee.data import ClickLog, tiny
from foresee.run.config_file import known_keys, load_run


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("folder", "num_samples", "out"),
    [("data/clicks", 800, "run.yaml"), ("12: my log", 100, "some files/run.yaml"), ("e5", 20, "run.yaml")],
)
def test_the_file_trains_as_it_is(
    folder: str, num_samples: int, out: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(out).parent.mkdir(exist_ok=True)
    tiny(Path(folder), num_samples=num_samples)
    assert foresee("init", folder, "--out", out, monkeypatch=monkeypatch) == 0
    assert f"train {out}" in capsys.readouterr().out.replace("'", "")
    assert foresee("train", out, "--set", "train.num_threads=1", monkeypatch=monkeypatch) == 0
    run = Path(out).parent / "runs" / Path(folder).name
    assert (run / "config.yaml").is_file()


def test_the_cache_holds_the_largest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    log = tiny(Path("log"), num_samples=3000)
    assert foresee("init", "log", monkeypatch=monkeypatch) == 0
    config = load_run("run.yaml")
    stream = log.batches(batch_size=config.train.batch_size, seed=config.train.seed)
    largest = max(len(np.unique(batch.rows)) for batch in stream.batches())
    assert config.cache.rows is not None
    assert largest <= config.cache.rows <= ClickLog.open("log").num_rows
    assert f"touches {largest:,}:" in Path("run.yaml").read_text()


def test_every_key_of_the_file_has_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny(Path("log"))
    assert foresee("init", "log", monkeypatch=monkeypatch) == 0
    lines = Path("run.yaml").read_text().splitlines()
    for before, line in pairwise(lines):
        if re.match(r"  \w+:", line):
            assert "#" in line or "#" in before, line
    named = {match[1] for line in lines if (match := re.match(r" *(\w+):", line))}
    assert named <= {key.rpartition(".")[2] for key in known_keys()}


def test_a_file_that_is_there_stays(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tiny(Path("log"))
    Path("run.yaml").write_text("mine")
    assert foresee("init", "log", monkeypatch=monkeypatch) == 2
    assert "give --replace to write over it" in capsys.readouterr().err
    assert Path("run.yaml").read_text() == "mine"
    assert foresee("init", "log", "--replace", monkeypatch=monkeypatch) == 0
    assert load_run("run.yaml").log == Path("log")


@pytest.mark.parametrize(("arguments", "sentence"), [
    (["none"], "no prepared log is here"), (["log", "--out", "none/run.yaml"], "give another --out FILE"),
])  # fmt: skip
def test_a_mistake_is_one_sentence(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny(Path("log"))
    assert foresee("init", *arguments, monkeypatch=monkeypatch) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
