"""`foresee prepare`: each format by its command line, and a sentence with exit code 2 for what is wrong."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from foresee.data import FORMATS, ClickLog
from foresee.errors import DataError
from foresee.tools.cli.commands import app

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


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("tags:mean:separator=|", ""),
        ("tags:mean:|", ""),
        (
            "tags:mean:separator=;",
            "warning: column tags: no cell has several values with ';' between them; if cells hold",
        ),
        (
            "tags:mean",
            "warning: column tags: no cell has several values, and no separator is given; if cells hold several",
        ),
    ],
)
def test_a_separator_that_no_cell_has_is_a_warning(tmp_path: Path, column: str, words: str) -> None:
    source = tmp_path / "clicks.csv"
    source.write_text(LINES)
    columns = ("--label", "clicked", "--categorical", column, "--valid-share", "0")
    said = " ".join(prepare("csv", str(source), "--out", str(tmp_path / "log"), *columns).split())
    assert words in said
    assert ("warning" in said) == bool(words)


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
    assert "train 4 samples; 1 dense feature; 4 rows" in said
    assert "1 bad line was set aside in " in said


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


def written(tmp_path: Path, text: str, *arguments: str, encoding: str = "utf-8") -> ClickLog:
    """The log of a CSV with a column `y`, nothing held out."""
    (tmp_path / "raw.csv").write_text(text, encoding)
    prepare("csv", str(tmp_path / "raw.csv"), "--out", str(tmp_path / "log"), "--label", "y", *arguments)
    return ClickLog.open(tmp_path / "log")


def values(log: ClickLog, table: str) -> list[str | None]:
    return log.vocabulary(table).column("value").to_pylist()  # type: ignore[no-any-return]


NOTHING_HELD_OUT = ("--valid-share", "0")


def test_empty_cells_and_markers_are_typed(tmp_path: Path) -> None:
    text = "y,u,t,price (€)\n1,a,x|NULL,\n0,NULL,NULL,NULL\n1,-,y,3\n"
    with pytest.raises(DataError) as caught:
        written(tmp_path, text, "--categorical", "u", "--dense", "price (€):log1p")
    assert "with --dense 'price (€):log1p:empty=0'" in str(caught.value)
    log = written(
        tmp_path, text, "--categorical", "u:missing=-", "--categorical", "t:mean:|", "--dense",
        "price (€):log1p:empty=0", "--missing", "NULL", *NOTHING_HELD_OUT,
    )  # fmt: skip
    assert (values(log, "u"), values(log, "t")) == ([None, "a"], [None, "x", "y"])
    assert log.dense[0].missing == 0
    assert log.features[0].missing_markers == ("NULL", "-")


def test_shared_tables_own_counts_and_colons_in_names(tmp_path: Path) -> None:
    text = "y,id:token,friend,c,g,t\n1,a,b,x,0,p:q\n0,b,b,x,2,q\n1,c,a,z,1,\n"
    log = written(
        tmp_path, text, "--categorical", "id\\:token:table=user", "--categorical", "friend:table=user", "--categorical",
        "c:min_count=2", "--categorical", "g:num_rows=3", "--categorical", "t:sum::", *NOTHING_HELD_OUT,
    )  # fmt: skip
    assert [(it.name, it.table, it.num_rows) for it in log.features] == [
        ("id:token", "user", 4), ("friend", "user", 4), ("c", "c", 2), ("g", "g", 3), ("t", "t", 3),
    ]  # fmt: skip
    assert values(log, "t") == [None, "q", "p"]


def test_encodings_names_without_a_header_and_joins(tmp_path: Path) -> None:
    (tmp_path / "films.tsv").write_text("f1\tdrame|été\nf2\tété\n", "latin-1")
    log = written(
        tmp_path, "1;é;f1\n0;b;f2\n", "--no-header", "--column-names", "y,u,film", "--separator", ";", "--encoding",
        "utf-16", "--categorical", "u", "--categorical", "genres:mean:|", "--join",
        f"{tmp_path}/films.tsv:film=id:genres:names=id,genres:separator=\\t:encoding=latin-1:quoted=no",
        *NOTHING_HELD_OUT, encoding="utf-16",
    )  # fmt: skip
    assert (values(log, "u"), values(log, "genres")) == ([None, "b", "é"], [None, "été", "drame"])


def test_files_held_out_are_named(tmp_path: Path) -> None:
    for name, count in (("monday", 3), ("tuesday", 2), ("wednesday", 1)):
        (tmp_path / f"{name}.csv").write_text("y,u\n" + "1,a\n" * count)
    prepare(
        "csv", str(tmp_path / "monday.csv"), "--valid-file", str(tmp_path / "tuesday.csv"), "--test-file",
        str(tmp_path / "wednesday.csv"), "--out", str(tmp_path / "log"), "--label", "y", "--categorical", "u",
    )  # fmt: skip
    assert ClickLog.open(tmp_path / "log").split_sizes == {"train": 3, "valid": 2, "test": 1}


def test_negative_numbers_under_a_logarithm_are_said(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("y,u,[x]\n1,a,-3.5\n0,a,2\n")
    said = prepare(
        "csv", str(tmp_path / "raw.csv"), "--out", str(tmp_path / "log"), "--label", "y", "--categorical", "u",
        "--dense", "[x]:log1p", *NOTHING_HELD_OUT,
    )  # fmt: skip
    assert "[x]: 1 negative number counted as 0 before log1p" in said


def test_every_format_is_a_command_with_all_options() -> None:
    for name, source in FORMATS.items():
        result = CliRunner().invoke(app, ["prepare", name, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0
        assert (inspect.getdoc(source) or "").splitlines()[0][:60] in " ".join(result.output.split())
        for option in ("--out", "--split", "--valid-file", "--test-file", "--bad-lines", "--replace"):
            assert option in result.output
        for field in fields(source):  # type: ignore[arg-type]
            assert field.name in HANDLED or f"--{field.name.replace('_', '-')}" in result.output, (name, field.name)


HANDLED = {"files": "FILE...", "columns": "--categorical", "joins": "--join"}


def test_words_to_type(tmp_path: Path) -> None:
    text = "y,u\n1,a\n0,b\n"
    written(tmp_path, text, "--categorical", "u", *NOTHING_HELD_OUT)
    for arguments, words in (
        (["--categorical", "u"], "replace it with --replace"),
        (["--categorical", "u:median"], "'median' is no pooling; use one, sum or mean"),
        (["--categorical", "y"], "'y' is the label and a feature too"),
        (["--categorical", "v"], "give the columns' names with --column-names"),
        (["--categorical", "u", "--split", "time"], "name one with --time"),
    ):
        out = [] if "replace it" in words else ["--replace"]
        with pytest.raises(DataError) as caught:
            written(tmp_path, text, *arguments, *out)
        assert words in str(caught.value)
