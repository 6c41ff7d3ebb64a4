"""Every way a raw log can be wrong: one sentence with file and line, and nothing half-written."""

import errno
import gzip
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foresee.data import (
    Categorical,
    Columns,
    Criteo,
    Csv,
    Dense,
    Join,
    Layout,
    Libfm,
    MovieLens,
    Parquet,
    PrepareOptions,
    prepare,
    tiny,
)
from foresee.data.writer import LogWriter
from foresee.errors import DataError

COLUMNS = Columns(label="y", dense=(Dense(name="x"),), categorical=(Categorical(name="a"),))


def source_of(path: Path, text: str | bytes, columns: Columns = COLUMNS, **options: Any) -> Csv:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Csv(files=(path,), columns=columns, **options)


def refusal(source: Any, tmp_path: Path, options: PrepareOptions | None = None) -> str:
    """The sentence, after checking that nothing stayed behind."""
    before = sorted(tmp_path.iterdir())
    with pytest.raises(DataError) as caught:
        prepare(source, tmp_path / "log", options or PrepareOptions(valid_share=0.0))
    assert sorted(tmp_path.iterdir()) == before
    sentence = str(caught.value).replace(str(tmp_path) + "/", "")
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


GOOD = "y,x,a\n1,2,u\n0,3,v\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,2", "expected 3 columns, found 2"),
        ("1,2,u,9", "expected 3 columns, found 4"),
        ("7,2,u", "column y: expected a label of 0 or 1, found '7'"),
        (",2,u", "column y: expected a label of 0 or 1, found an empty cell"),
        ("yes,2,u", "column y: expected a label of 0 or 1, found 'yes'"),
        ("1,nan,u", "column x: expected a finite number, found 'nan'"),
        ("1,inf,u", "column x: expected a finite number, found 'inf'"),
        ("1,-inf,u", "column x: expected a finite number, found '-inf'"),
        ("1,1e39,u", "column x: expected a finite number, found '1e39'"),
        ("1,two,u", "column x: expected a finite number, found 'two'"),
        ("1,,u", "column x: expected a number, found an empty cell"),
        ('1,2,"u', "expected every quote to be closed"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_bad_line_is_named(tmp_path: Path, line: str, reason: str, last: bool) -> None:
    text = GOOD + line + "\n" + ("" if last else "1,5,w\n0,6,w\n")
    sentence = refusal(source_of(tmp_path / "raw.csv", text), tmp_path)
    assert sentence.startswith(f"raw.csv:4: {reason}")
    assert "bad lines: keep" in sentence


def test_the_first_bad_line_is_named_whatever_its_column(tmp_path: Path) -> None:
    text = "y,x,a\n1,bad,u\n9,1,u\n"
    assert refusal(source_of(tmp_path / "raw.csv", text), tmp_path).startswith("raw.csv:2: column x")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    sentence = refusal(source_of(tmp_path / "raw.csv", GOOD.encode() + b"1,2,\xe9\n"), tmp_path)
    assert sentence.startswith("raw.csv:4: expected UTF-8 text, found byte 0xe9; name the file's encoding")


def test_ids_out_of_range(tmp_path: Path) -> None:
    columns = Columns(
        label="y",
        categorical=(
            Categorical(name="a", num_rows=5),
            Categorical(name="b", num_rows=5, pooling="sum", separator=" "),
        ),
    )
    sentence = refusal(source_of(tmp_path / "raw.csv", "y,a,b\n1,4,0\n1,5,0\n", columns), tmp_path)
    assert sentence.startswith("raw.csv:3: column a: expected an id from 0 to 4, found '5'")
    sentence = refusal(source_of(tmp_path / "raw.csv", "y,a,b\n1,4,0 -1\n", columns), tmp_path)
    assert sentence.startswith("raw.csv:2: column b: expected ids from 0 to 4, found '0 -1'")


def test_bad_times(tmp_path: Path) -> None:
    columns = Columns(label="y", categorical=(Categorical(name="a"),), time="t")
    for good, bad in (("17", "noon"), ("2024-01-02 03:04:05", "2024-13-01")):
        text = f"y,a,t\n1,u,{good}\n1,u,{good}\n1,u,{bad}\n"
        sentence = refusal(source_of(tmp_path / "raw.csv", text, columns), tmp_path)
        assert sentence.startswith("raw.csv:4: column t: expected a number or a date and time")
        assert repr(bad) in sentence


def test_bad_lines_are_kept_counted_and_shown(tmp_path: Path) -> None:
    text = "y,x,a\n1,2,u\n1,2\n\n0,nan,v\n1,3,w\n"
    source = source_of(tmp_path / "raw.csv", text)
    options = PrepareOptions(valid_share=0.0, bad_lines="keep", bad_share_max=0.5)
    report = prepare(source, tmp_path / "log", options)
    assert (report.num_bad, report.log.split_sizes) == (2, {"train": 2})
    assert report.bad_lines_file == tmp_path / "log" / "bad-lines.txt"
    assert report.bad_lines_file.read_text().replace(str(tmp_path) + "/", "").splitlines() == [
        "raw.csv:3\texpected 3 columns, found 2; correct the line\t1,2",
        "raw.csv:5\tcolumn x: expected a finite number, found 'nan'; correct the line\t0,nan,v",
    ]
    assert report.log.description.source["num_bad"] == 2


def test_a_clean_log_has_no_bad_lines_file(tmp_path: Path) -> None:
    options = PrepareOptions(valid_share=0.0, bad_lines="keep")
    report = prepare(source_of(tmp_path / "raw.csv", GOOD), tmp_path / "log", options)
    assert report.bad_lines_file is None
    assert not (tmp_path / "log" / "bad-lines.txt").exists()


@pytest.mark.parametrize("split", ["random", "order"])
def test_too_many_bad_lines(tmp_path: Path, split: Any) -> None:
    text = "y,x,a\n" + "1,2,u\n" * 18 + "1,two,u\n" * 2
    options = PrepareOptions(split=split, bad_lines="keep", bad_share_max=0.09)
    sentence = refusal(source_of(tmp_path / "raw.csv", text), tmp_path, options)
    assert sentence.startswith("2 of 20 lines are bad (10.00%), more than the share of 9.00%")
    assert "raw.csv:20: column x" in sentence


def test_missing_empty_and_wrong_files(tmp_path: Path) -> None:
    absent = Csv(files=(tmp_path / "none.csv",), columns=COLUMNS)
    assert refusal(absent, tmp_path) == "none.csv: there is no such file; check the path."
    assert "raw.csv: the file is empty" in refusal(source_of(tmp_path / "raw.csv", ""), tmp_path)
    assert "no sample was found" in refusal(source_of(tmp_path / "raw.csv", "y,x,a\n"), tmp_path)
    (tmp_path / "folder").mkdir()
    assert "this is a folder" in refusal(Csv(files=(tmp_path / "folder",), columns=COLUMNS), tmp_path)
    assert refusal(Csv(files=(), columns=COLUMNS), tmp_path) == "no file is named; name at least one."
    text = tmp_path / "text.parquet"
    text.write_text("not parquet")
    assert "cannot be read as Parquet" in refusal(Parquet(files=(text,), columns=COLUMNS), tmp_path)


def test_columns_that_are_not_there(tmp_path: Path) -> None:
    sentence = refusal(source_of(tmp_path / "raw.csv", "..y,x,a\n1,2,u\n"), tmp_path)
    assert sentence.startswith("raw.csv:1: column 'y' is not among the columns (..y, x, a)")
    sentence = refusal(source_of(tmp_path / "raw.csv", GOOD, column_names=("y", "x")), tmp_path)
    assert "2 names are given for a header of 3 columns" in sentence
    pq.write_table(pa.table({"y": [1], "x": [1.0]}), tmp_path / "raw.parquet")
    sentence = refusal(Parquet(files=(tmp_path / "raw.parquet",), columns=COLUMNS), tmp_path)
    assert sentence.startswith("raw.parquet: column 'a' is not among the columns (y, x)")


def test_parquet_rows_are_named(tmp_path: Path) -> None:
    table = pa.table({"y": [1, 0, 1], "x": [1.0, float("nan"), None], "a": ["u", "v", "w"]})
    pq.write_table(table, tmp_path / "raw.parquet")
    sentence = refusal(Parquet(files=(tmp_path / "raw.parquet",), columns=COLUMNS), tmp_path)
    assert sentence.startswith("raw.parquet:2: column x: expected a number, found nan")


def test_lists_need_pooling(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [1], "x": [1.0], "a": [["u", "v"]]}), tmp_path / "raw.parquet")
    sentence = refusal(Parquet(files=(tmp_path / "raw.parquet",), columns=COLUMNS), tmp_path)
    assert "column a: expected one value, found ['u', 'v']; choose pooling sum or mean" in sentence


@pytest.mark.parametrize("keep", [30, -9, -1])
def test_gzip_that_ends_early(tmp_path: Path, keep: int) -> None:
    packed = gzip.compress(("y,x,a\n" + "".join(f"1,{i},u{i}\n" for i in range(2000))).encode())
    sentence = refusal(source_of(tmp_path / "raw.csv.gz", packed[:keep]), tmp_path)
    assert "the gzip file ends early" in sentence


def test_gzip_that_is_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(("y,x,a\n" + "".join(f"1,{i},u{i}\n" for i in range(2000))).encode()))
    packed[200:220] = bytes(20)
    assert "the gzip file is damaged" in refusal(source_of(tmp_path / "raw.csv.gz", bytes(packed)), tmp_path)


def test_a_key_twice_in_a_joined_file(tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text("film,kind\n7,a\n8,b\n7,c\n")
    columns = Columns(label="y", categorical=(Categorical(name="film"), Categorical(name="kind")))
    join = Join(file=tmp_path / "films.csv", key="film", columns=("kind",), layout=Layout(separator=",", header=True))
    sentence = refusal(source_of(tmp_path / "raw.csv", "y,film\n1,7\n", columns, joins=(join,)), tmp_path)
    assert sentence.startswith("films.csv:4: column film: '7' stands here a second time")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 5:1", "expected a label and 2 indices, found 2 cells"),
        ("1 5:1 6:1 7:1", "expected a label and 2 indices, found 4 cells"),
        ("1 5:1 6:0.5", "column field2: expected index:1, found '6:0.5'"),
        ("1 5:1 x:1", "column field2: expected index:1, found 'x:1'"),
        ("2 5:1 6:1", "column label: expected a label of 0 or 1, found '2'"),
    ],
)
def test_bad_libfm_lines(tmp_path: Path, line: str, reason: str) -> None:
    (tmp_path / "raw.libfm").write_text(f"1 1:1 2:1\n-1 1:1 3:1\n{line}\n")
    sentence = refusal(Libfm(files=(tmp_path / "raw.libfm",)), tmp_path)
    assert sentence.startswith(f"raw.libfm:3: {reason}")


def test_criteo_with_a_cell_too_few(tmp_path: Path) -> None:
    (tmp_path / "raw.tsv").write_text("\t".join(["1"] * 39) + "\n")
    sentence = refusal(Criteo(files=(tmp_path / "raw.tsv",)), tmp_path)
    assert sentence.startswith("raw.tsv:1: expected 40 columns, found 39")


def test_movielens_needs_its_ratings(tmp_path: Path) -> None:
    (tmp_path / "raw.txt").write_text("x")
    assert "ends in .inter, .dat or .csv" in refusal(MovieLens(files=(tmp_path / "raw.txt",)), tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (PrepareOptions(split="time"), "a split by time needs a time column"),
        (PrepareOptions(split="files"), "name files exactly when the split is 'files'"),
        (PrepareOptions(split="files", valid_files=(Path("other.csv"),)), "not one of the log's files"),
        (PrepareOptions(split="order", valid_share=0.1), "the valid split would be empty"),
    ],
)
def test_splits_that_cannot_be(tmp_path: Path, options: PrepareOptions, sentence: str) -> None:
    assert sentence in refusal(source_of(tmp_path / "raw.csv", GOOD), tmp_path, options)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    columns = Columns(label="y", dense=(Dense(name="a"),), categorical=(Categorical(name="a"),))
    assert "'a' would stand twice" in refusal(source_of(tmp_path / "raw.csv", "y,a\n1,2\n", columns), tmp_path)


# Targets.


def test_a_target_that_holds_something_is_refused(tmp_path: Path) -> None:
    source = source_of(tmp_path / "raw.csv", GOOD)
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "thesis.txt").write_text("years of work")
    assert "the folder exists and is not empty" in refusal(source, tmp_path)
    options = PrepareOptions(valid_share=0.0, replace=True)
    assert "not a prepared log and will not be replaced" in refusal(source, tmp_path, options)
    assert (tmp_path / "log" / "thesis.txt").read_text() == "years of work"


def test_replacing_swaps_the_whole_log(tmp_path: Path) -> None:
    tiny(tmp_path / "log")
    source = source_of(tmp_path / "raw.csv", GOOD)
    log = prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.0, replace=True)).log
    assert log.split_sizes == {"train": 2}
    assert sorted(file.name for file in log.path.iterdir()) == [
        "log.json",
        "train-00000.parquet",
        "vocabulary-000.parquet",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "raw.csv"]


def test_a_failed_replacement_leaves_the_old_log(tmp_path: Path) -> None:
    digest = tiny(tmp_path / "log").digest
    source = source_of(tmp_path / "raw.csv", GOOD + "1,bad,u\n")
    refusal(source, tmp_path, PrepareOptions(valid_share=0.0, replace=True))
    assert tiny(tmp_path / "same").digest == digest


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LogWriter, "append", full)
    assert re.match(r"log: the disk is full", refusal(source_of(tmp_path / "raw.csv", GOOD), tmp_path))


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "write":
            raise KeyboardInterrupt

    source = source_of(tmp_path / "raw.csv", GOOD)
    with pytest.raises(KeyboardInterrupt):
        prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.0), interrupt)
    assert [path.name for path in tmp_path.iterdir()] == ["raw.csv"]


@pytest.mark.parametrize("text", ['1,2,"u\n1,2,v"\n', '1,2,u"x\n1,2,"v\n', '1,2,"u\n\n1,2,v\n'])
def test_quotes_never_swallow_lines(tmp_path: Path, text: str) -> None:
    """An open quote must not turn two lines into one sample, nor a newline into part of a value."""
    options = PrepareOptions(valid_share=0.0, bad_lines="keep", bad_share_max=1.0)
    report = prepare(source_of(tmp_path / "raw.csv", GOOD + text), tmp_path / "log", options)
    values = report.log.vocabulary("a").column("value").to_pylist()
    assert not any("\n" in value for value in values if value is not None)
    assert report.num_bad >= 1
    lines = len([line for line in (GOOD + text).splitlines()[1:] if line])
    assert report.num_bad + sum(report.log.split_sizes.values()) == lines
