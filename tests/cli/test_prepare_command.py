"""`foresee prepare`: each format by its command line, and a sentence with exit code 2 for what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foresee.cli.commands import app
from foresee.data import ClickLog
from foresee.errors import DataError

LINES = "user,tags,age,clicked\nann,a|b,31,1\nbob,,40,0\nann,b,31,0\ncid,c|a,22,1\n"


def prepare(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["prepare", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_csv_with_numbers_and_several_values_in_a_cell(tmp_path: Path) -> None:
    source = tmp_path / "clicks.csv"
    source.write_text(LINES)
    out = tmp_path / "log"
    said = prepare(
        "csv", str(source), "--out", str(out), "--label", "clicked", "--categorical", "user", "--categorical",
        "tags:mean:|", "--dense", "age:standard", "--valid-share", "0.25", "--split", "order",
    )  # fmt: skip
    log = ClickLog.open(out)
    assert log.split_sizes == {"train": 3, "valid": 1}
    assert [feature.pooling for feature in log.features] == ["one", "mean"]
    assert log.dense_names == ("age",)
    assert "train 3, valid 1 samples" in " ".join(said.split())


def test_bad_lines_are_kept_when_asked(tmp_path: Path) -> None:
    source = tmp_path / "clicks.csv"
    source.write_text(LINES + "dan,a,x,1\n")
    columns = ("--label", "clicked", "--categorical", "user", "--dense", "age", "--valid-share", "0")
    with pytest.raises(DataError, match=r"clicks\.csv:6: column age"):
        prepare("csv", str(source), "--out", str(tmp_path / "log"), *columns)
    assert not (tmp_path / "log").exists()
    said = prepare(
        "csv", str(source), "--out", str(tmp_path / "log"), *columns, "--bad-lines", "keep", "--bad-share-max", "0.5"
    )
    assert "1 bad lines were set aside" in " ".join(said.split())


def test_an_unknown_transform_is_a_sentence(tmp_path: Path) -> None:
    source = tmp_path / "clicks.csv"
    source.write_text(LINES)
    with pytest.raises(DataError, match="transform 'cube' is not known"):
        prepare(
            "csv", str(source), "--out", str(tmp_path / "log"), "--label", "clicked", "--categorical", "user",
            "--dense", "age:cube",
        )  # fmt: skip


def test_a_missing_file_exits_with_2_and_one_line(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "foresee", "prepare", "criteo", str(tmp_path / "no"), "--out", str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("foresee: ")
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "log").exists()
