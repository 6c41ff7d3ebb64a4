"""From raw lines to a prepared log: what goes in comes out, split, numbered and transformed as asked."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from foresee.data import (
    FORMATS,
    Categorical,
    ClickLog,
    Columns,
    Csv,
    Dense,
    Join,
    Layout,
    Libfm,
    Parquet,
    PrepareOptions,
    prepare,
)
from foresee.data.formats import text as text_format
from foresee.errors import DataError
from foresee.tools.cli.terminal import terminal_progress

EVERYTHING = PrepareOptions(valid_share=0.0)


@pytest.mark.parametrize("split", ["order", "time", "random"])
def test_nothing_held_out_leaves_all_samples_to_train(tmp_path: Path, split: Any) -> None:
    columns = Columns(label="y", categorical=(Categorical(name="a"),), time="t")
    source = csv_source(tmp_path / "log.csv", "y,a,t\n1,x,3\n0,y,1\n1,z,2\n", columns=columns)
    log = prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.0, split=split)).log
    assert log.split_sizes == {"train": 3}


def records(log: ClickLog, split: str = "train") -> list[dict[str, Any]]:
    """Samples with ids turned back into values: what a reader of the log and its vocabularies sees."""
    words = {name: table.column("value").to_pylist() for name, table in tables_of(log).items()}
    out = []
    for part in log.description.splits[split].parts:
        for record in pq.read_table(log.path / part.file).to_pylist():
            for feature in log.features:
                if feature.table in words:
                    value, known = record[feature.name], words[feature.table]
                    record[feature.name] = [known[i] for i in value] if isinstance(value, list) else known[value]
            out.append(record)
    return out


def tables_of(log: ClickLog) -> dict[str, Any]:
    found = {table.name: log.vocabulary(table.name) for table in log.tables}
    return {name: table for name, table in found.items() if table is not None}


def csv_source(path: Path, text: str, **options: Any) -> Csv:
    path.write_text(text)
    options.setdefault("columns", Columns(label="y", categorical=(Categorical(name="a"),)))
    return Csv(files=(path,), **options)


def test_values_come_back(tmp_path: Path) -> None:
    text = 'y,x,a,tags,unused\n1,2.5,red,p|q,z\n0,-1,"blue, dark",q| p |,z\n1,3e2,red,,z\n'
    columns = Columns(
        label="y",
        dense=(Dense(name="x"),),
        categorical=(Categorical(name="a"), Categorical(name="tags", pooling="mean", separator="|")),
    )
    log = prepare(csv_source(tmp_path / "raw.csv", text, columns=columns), tmp_path / "log", EVERYTHING).log
    assert records(log) == [
        {"label": 1.0, "x": 2.5, "a": "red", "tags": ["p", "q"]},
        {"label": 0.0, "x": -1.0, "a": "blue, dark", "tags": ["q", "p"]},
        {"label": 1.0, "x": 300.0, "a": "red", "tags": [None]},  # no tag: the unknown row
    ]
    assert log.mean_features == (False, True)
    assert log.features[1].ids_max == 2
    log.check()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.sampled_from("01"), st.text("abäß,\"' é", max_size=4), st.integers(-9, 9)), min_size=1))
def test_any_csv_comes_back(tmp_path: Path, rows: list[tuple[str, str, int]]) -> None:
    quoted = [f'{label},"{value.replace(chr(34), chr(34) * 2)}",{number}' for label, value, number in rows]
    source = csv_source(
        tmp_path / "raw.csv",
        "y,a,x\n" + "\n".join(quoted) + "\n",
        columns=Columns(label="y", dense=(Dense(name="x"),), categorical=(Categorical(name="a"),)),
    )
    log = prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.0, replace=True)).log
    expected = [{"label": float(y), "x": float(x), "a": a or None} for y, a, x in rows]
    assert records(log) == expected


def test_vocabulary_is_by_frequency(tmp_path: Path) -> None:
    values = ["rare"] + ["hot"] * 5 + ["b"] * 2 + ["a"] * 2 + [""]
    source = csv_source(tmp_path / "raw.csv", "y,a\n" + "".join(f"1,{v}\n" for v in values))
    log = prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.0, min_count=2)).log
    assert log.vocabulary("a").to_pylist() == [
        {"id": 0, "value": None, "count": 2},
        {"id": 1, "value": "hot", "count": 5},
        {"id": 2, "value": "a", "count": 2},
        {"id": 3, "value": "b", "count": 2},
    ]
    assert log.tables == (("a", 4),)
    assert [record["a"] for record in records(log)] == [None] + ["hot"] * 5 + ["b"] * 2 + ["a"] * 2 + [None]


def test_vocabulary_sees_the_train_split_only(tmp_path: Path) -> None:
    text = "y,a\n" + "1,old\n" * 8 + "0,new\n" * 2
    source = csv_source(tmp_path / "raw.csv", text)
    log = prepare(source, tmp_path / "log", PrepareOptions(split="order", valid_share=0.2)).log
    assert log.vocabulary("a").column("value").to_pylist() == [None, "old"]
    assert [record["a"] for record in records(log, "valid")] == [None, None]


def test_columns_can_share_a_table(tmp_path: Path) -> None:
    columns = Columns(
        label="y",
        categorical=(
            Categorical(name="item"),
            Categorical(name="seen", table="item", pooling="sum", separator=" "),
        ),
    )
    source = csv_source(tmp_path / "raw.csv", "y,item,seen\n1,a,b c\n0,c,c\n", columns=columns)
    log = prepare(source, tmp_path / "log", EVERYTHING).log
    assert log.tables == (("item", 4),)
    assert [(record["item"], record["seen"]) for record in records(log)] == [("a", ["b", "c"]), ("c", ["c"])]
    assert log.batches(batch_size=2, shuffle=False).batch(0).rows.tolist() == [2, 3, 1, 1, 1]


def test_hashing_is_fixed_for_all_time(tmp_path: Path) -> None:
    """Hashed tables are useless to anyone who hashes differently: these ids may never change."""
    source = csv_source(tmp_path / "raw.csv", "y,a\n1,68fd1e64\n1,Zürich\n1,\n")
    log = prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.0, hash_buckets=1000)).log
    assert next(log.samples()).ids[0].values.tolist() == [658, 486, 0]
    assert log.tables == (("a", 1001),)
    assert log.vocabularies["a"].kind == "hash"
    assert log.vocabulary("a") is None


def test_one_column_hashed_another_counted(tmp_path: Path) -> None:
    columns = Columns(label="y", categorical=(Categorical(name="a", hash_buckets=7), Categorical(name="b")))
    source = csv_source(tmp_path / "raw.csv", "y,a,b\n1,u,v\n", columns=columns)
    log = prepare(source, tmp_path / "log", EVERYTHING).log
    assert log.tables == (("a", 8), ("b", 2))


def test_given_ids_stay_as_they_are(tmp_path: Path) -> None:
    columns = Columns(
        label="y",
        categorical=(
            Categorical(name="a", num_rows=10),
            Categorical(name="b", num_rows=5, pooling="sum", separator=" "),
        ),
    )
    source = csv_source(tmp_path / "raw.csv", "y,a,b\n1,9,4 0\n0,0,\n", columns=columns)
    log = prepare(source, tmp_path / "log", EVERYTHING).log
    ids = next(log.samples()).ids
    assert ids[0].values.tolist() == [9, 0]
    assert ids[1].values.tolist() == [4, 0]
    assert ids[1].offsets is not None
    assert ids[1].offsets.tolist() == [0, 2, 2]


def test_dense_transforms(tmp_path: Path) -> None:
    columns = Columns(
        label="y",
        dense=(
            Dense(name="x", transform="log1p", missing=0.0),
            Dense(name="z", transform="standard"),
            Dense(name="c", transform="standard"),
        ),
        categorical=(Categorical(name="a"),),
    )
    text = "y,a,x,z,c\n1,u,,2,7\n0,u,-5,4,7\n1,u,9,6,7\n0,u,1,1000,7\n"
    source = csv_source(tmp_path / "raw.csv", text, columns=columns)
    log = prepare(source, tmp_path / "log", PrepareOptions(split="order", valid_share=0.25)).log
    got = records(log)
    assert [record["x"] for record in got] == pytest.approx([0.0, 0.0, np.log(10)])
    assert [record["z"] for record in got] == pytest.approx([-np.sqrt(1.5), 0.0, np.sqrt(1.5)])  # 1000 is not train
    assert [record["c"] for record in got] == [0.0, 0.0, 0.0]
    assert log.dense[1].mean == pytest.approx(4.0)


def test_split_by_order(tmp_path: Path) -> None:
    source = csv_source(tmp_path / "raw.csv", "y,a\n" + "".join(f"1,v{i}\n" for i in range(10)))
    options = PrepareOptions(split="order", valid_share=0.2, test_share=0.1, hash_buckets=10**6)
    log = prepare(source, tmp_path / "log", options).log
    assert log.split_sizes == {"train": 7, "valid": 2, "test": 1}


@pytest.mark.parametrize("stamp", ["{}", "2024-01-01 00:00:{:02}", "2024-01-{:02}"])
def test_split_by_time_holds_out_the_latest(tmp_path: Path, stamp: str) -> None:
    moments = np.random.default_rng(1).permutation(np.arange(1, 21))
    text = "y,a,t\n" + "".join(f"{int(m > 16)},v,{stamp.format(m)}\n" for m in moments)
    columns = Columns(label="y", categorical=(Categorical(name="a"),), time="t")
    source = csv_source(tmp_path / "raw.csv", text, columns=columns)
    log = prepare(source, tmp_path / "log", PrepareOptions(valid_share=0.1, test_share=0.1)).log
    assert log.split_sizes == {"train": 16, "valid": 2, "test": 2}
    assert sum(record["label"] for record in records(log)) == 0
    assert log.description.source["split"] == "time"


def test_equal_times_stay_together(tmp_path: Path) -> None:
    text = "y,a,t\n" + "0,v,1\n" * 5 + "1,v,2\n" * 5
    columns = Columns(label="y", categorical=(Categorical(name="a"),), time="t")
    log = prepare(
        csv_source(tmp_path / "r.csv", text, columns=columns), tmp_path / "log", PrepareOptions(valid_share=0.3)
    ).log
    assert log.split_sizes == {"train": 5, "valid": 5}


def test_split_at_random_follows_the_seed(tmp_path: Path) -> None:
    source = csv_source(tmp_path / "raw.csv", "y,a\n" + "".join(f"1,v{i}\n" for i in range(2000)))
    logs = [
        prepare(source, tmp_path / f"log{i}", PrepareOptions(split="random", valid_share=0.2, seed=seed)).log
        for i, seed in enumerate((0, 0, 1))
    ]
    assert logs[0].digest == logs[1].digest != logs[2].digest
    assert 320 < logs[0].split_sizes["valid"] < 480


def test_split_by_files(tmp_path: Path) -> None:
    files = tuple(tmp_path / name for name in ("a.csv", "b.csv", "c.csv"))
    for number, file in enumerate(files):
        file.write_text("y,a\n" + "1,v\n" * (number + 1))
    source = Csv(files=files, columns=Columns(label="y", categorical=(Categorical(name="a"),)))
    options = PrepareOptions(split="files", valid_files=files[1:2], test_files=files[2:])
    assert prepare(source, tmp_path / "log", options).log.split_sizes == {"train": 1, "valid": 2, "test": 3}


def test_gzip_equals_plain(tmp_path: Path) -> None:
    text = "y,a\n" + "".join(f"{i % 2},v{i % 7}\n" for i in range(300))
    plain = csv_source(tmp_path / "raw.csv", text)
    packed = tmp_path / "raw_without_an_ending"
    packed.write_bytes(gzip.compress(text[:99].encode()) + gzip.compress(text[99:].encode()))  # two members
    zipped = Csv(files=(packed,), columns=plain.columns)
    digests = {prepare(it, tmp_path / f"log{i}").log.digest for i, it in enumerate((plain, zipped))}
    assert len(digests) == 1


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_and_byte_order_mark(tmp_path: Path, ending: str, last: bool) -> None:
    text = ending.join(["\ufeffy,a", "1,u", "0,v"]) + (ending if last else "")
    (tmp_path / "raw.csv").write_bytes(text.encode())
    columns = Columns(label="y", categorical=(Categorical(name="a"),))
    log = prepare(Csv(files=(tmp_path / "raw.csv",), columns=columns), tmp_path / "log", EVERYTHING).log
    assert [(record["label"], record["a"]) for record in records(log)] == [(1.0, "u"), (0.0, "v")]


def test_blocks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same log, whether it is read in one block or in many that end in the middle of lines."""
    text = "y,a\n" + "".join(f"{i % 2},value{i * i % 31}\n" for i in range(500))
    source = csv_source(tmp_path / "raw.csv", text)
    whole = prepare(source, tmp_path / "whole").log
    small_blocks(monkeypatch)
    assert prepare(source, tmp_path / "cut").log.digest == whole.digest


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    original = text_format._pieces
    monkeypatch.setattr(text_format, "_pieces", lambda stream, path, kind, _: original(stream, path, kind, 37))


def test_lines_are_counted_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    source = csv_source(tmp_path / "raw.csv", "y,a\n" + "1,v\n" * 200 + "1\n")
    with pytest.raises(DataError, match=r"raw\.csv:202: expected 2 columns, found 1"):
        prepare(source, tmp_path / "log")


def test_statistics_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    values = np.random.default_rng(0).normal(5000.0, 3.0, 300)
    columns = Columns(label="y", dense=(Dense(name="x", transform="standard"),), categorical=(Categorical(name="a"),))
    text = "y,a,x\n" + "".join(f"1,v,{value}\n" for value in values)
    log = prepare(csv_source(tmp_path / "raw.csv", text, columns=columns), tmp_path / "log", EVERYTHING).log
    assert log.dense[0].mean == pytest.approx(values.mean(), rel=1e-12)
    assert log.dense[0].deviation == pytest.approx(values.std(), rel=1e-9)


def test_libfm_comes_back(tmp_path: Path) -> None:
    (tmp_path / "raw.libfm").write_bytes(b"1 5:1 70:1 9:1.0\r\n-1 6:1 70:1 8:1\r\n\n+1 5:1 71:1 8:1\n")
    files = (tmp_path / "raw.libfm",)
    log = prepare(Libfm(files=files, field_names=("user", "item", "day")), tmp_path / "fields", EVERYTHING).log
    assert records(log) == [
        {"label": 1.0, "user": "5", "item": "70", "day": "9"},
        {"label": 0.0, "user": "6", "item": "70", "day": "8"},
        {"label": 1.0, "user": "5", "item": "71", "day": "8"},
    ]
    log = prepare(Libfm(files=files, shape="bag"), tmp_path / "bag", EVERYTHING).log
    assert [record["indices"] for record in records(log)] == [["5", "70", "9"], ["6", "70", "8"], ["5", "71", "8"]]


def test_other_encodings_separators_and_headers(tmp_path: Path) -> None:
    path = tmp_path / "raw.txt"
    path.write_bytes("??y;;a\n1;;Zürich\n".encode("latin-1"))
    source = Csv(
        files=(path,),
        columns=Columns(label="y", categorical=(Categorical(name="a"),)),
        separator=";;",
        quoted=False,
        column_names=("y", "a"),
        encoding="latin-1",
    )
    assert records(prepare(source, tmp_path / "log", EVERYTHING).log) == [{"label": 1.0, "a": "Zürich"}]


def test_joined_columns(tmp_path: Path) -> None:
    (tmp_path / "films.csv").write_text("id,kind,tags\n7,short,x|y\n8,long,\n")
    columns = Columns(
        label="y",
        categorical=(
            Categorical(name="film"),
            Categorical(name="kind"),
            Categorical(name="tags", pooling="sum", separator="|"),
        ),
    )
    layout = Layout(separator=",", header=True)
    join = Join(file=tmp_path / "films.csv", key="film", file_key="id", columns=("kind", "tags"), layout=layout)
    source = csv_source(tmp_path / "raw.csv", "y,film\n1,7\n0,8\n1,9\n", columns=columns, joins=(join,))
    assert records(prepare(source, tmp_path / "log", EVERYTHING).log) == [
        {"label": 1.0, "film": "7", "kind": "short", "tags": ["x", "y"]},
        {"label": 0.0, "film": "8", "kind": "long", "tags": [None]},
        {"label": 1.0, "film": "9", "kind": None, "tags": [None]},
    ]


def test_parquet_keeps_types_and_lists(tmp_path: Path) -> None:
    table = pa.table(
        {
            "rating": pa.array([5.0, 2.0, 0.0, 4.0]),
            "x": pa.array([1, None, 3, 4], pa.int16()),
            "a": pa.array(["u", None, "u", "v"]).dictionary_encode(),
            "b": pa.array([10, 11, 10, 10]),
            "c": pa.array([[1, 2], [], None, [3]]),
            "t": pa.array([4, 3, 2, 1], pa.timestamp("s")),
            "f": pa.array([True, False, True, True]),
        }
    )
    pq.write_table(table, tmp_path / "raw.parquet")
    columns = Columns(
        label="rating",
        label_threshold=4.0,
        label_skip=("0",),
        dense=(Dense(name="x", missing=-1.0), Dense(name="f")),
        categorical=(Categorical(name="a"), Categorical(name="b"), Categorical(name="c", pooling="sum")),
        time="t",
    )
    report = prepare(Parquet(files=(tmp_path / "raw.parquet",), columns=columns), tmp_path / "log", EVERYTHING)
    assert report.num_skipped == 1
    assert records(report.log) == [
        {"label": 1.0, "x": 1.0, "f": 1.0, "a": "u", "b": "10", "c": ["1", "2"]},
        {"label": 0.0, "x": -1.0, "f": 0.0, "a": None, "b": "11", "c": [None]},
        {"label": 1.0, "x": 4.0, "f": 1.0, "a": "v", "b": "10", "c": ["3"]},
    ]


def test_progress_is_reported(tmp_path: Path) -> None:
    source = csv_source(tmp_path / "raw.csv", "y,a\n" + "1,v\n" * 20)
    seen: list[tuple[str, int, int]] = []
    prepare(source, tmp_path / "log", PrepareOptions(split="order"), lambda *call: seen.append(call))
    size = (tmp_path / "raw.csv").stat().st_size
    assert seen == [(stage, size, size) for stage in ("scan", "count", "write")]


def test_progress_is_drawn_on_terminals_only() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with terminal_progress(console) as report:
            report("scan", 5, 10)
            report("scan", 10, 10)
        assert isinstance(console.file, io.StringIO)
        assert ("100 %" in console.file.getvalue()) == terminal


def test_every_format_has_its_name() -> None:
    assert {name: getattr(source, "name", None) for name, source in FORMATS.items()} == {name: name for name in FORMATS}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: PrepareOptions(valid_share=0.6, test_share=0.4), "leave nothing to train on"),
        (lambda: PrepareOptions(min_count=0), "min_count=0 is too small"),
        (lambda: Columns(label="y", categorical=()), "no categorical column"),
        (lambda: Categorical(name="a", separator="|"), "column a: a separator"),
        (lambda: Categorical(name="a", pooling="max"), "pooling 'max' is not known"),  # type: ignore[arg-type]
        (lambda: Dense(name="x", transform="sqrt"), "transform 'sqrt' is not known"),  # type: ignore[arg-type]
        (lambda: Layout(separator=""), "the separator is empty"),
        (lambda: Layout(separator=","), "names have to be given"),
        (
            lambda: Columns(
                label="y", categorical=(Categorical(name="a", table="t"), Categorical(name="t", min_count=2))
            ),
            "table t is shared",
        ),
    ],
)
def test_unusable_options(make: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        make()
