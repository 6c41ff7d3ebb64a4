"""Raw cells as training reads them, and Python values as scoring hands them in: the same text in the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foresee.data import Categorical, ClickLog, Columns, Csv, Dense, Parquet, PrepareOptions, prepare
from foresee.data.cells import numbers_of, raw_cells, raw_type_of, values_of
from foresee.data.schema import Feature, RawType

ALL = PrepareOptions(valid_share=0)


@pytest.mark.parametrize(
    ("raw_type", "values", "texts"),
    [
        ("digits", [449818, 449818.0, "449818", np.int32(7), np.float64(7)], ["449818", "449818", "449818", "7", "7"]),
        ("digits.0", [449818, 449818.0, "449818.0"], ["449818.0"] * 3),
        ("text", [449818.0, "007", True, 0.5], ["449818", "007", "True", "0.5"]),
        (None, [449818.0, "7", None, float("nan")], ["449818", "7", "", ""]),
        ("integer", [2**64 - 1, 7.0, "7.0", "x"], ["18446744073709551615", "7", "7", "x"]),
        ("float64", [0.1, "0.1", 449818, "449818.0", 1e20], ["0.1", "0.1", "449818", "449818", "1e+20"]),
        ("float32", [0.1, np.float32(0.1)], ["0.1", "0.1"]),
        ("boolean", [True, "True", "false"], ["true", "true", "false"]),
    ],
)
def test_a_value_of_any_type_is_written_as_training_saw_it(raw_type: RawType, values: Any, texts: list[str]) -> None:
    column = Feature(name="x", table="x", num_rows=1, raw_type=raw_type)
    assert values_of(raw_cells(values, column, raw_type), column).to_pylist() == texts


def test_bags_are_cut_trimmed_and_rid_of_markers() -> None:
    column = Feature(name="x", table="x", num_rows=1, pooling="sum", separator="|", missing_markers=("NULL",))
    values = ["7205|4377", "7205", ["7205"], (7205, 4377.0), "NULL", "a| NULL |b", None, 7.0, np.array([1, 2])]
    found = values_of(raw_cells(values, column, "digits"), column).to_pylist()
    pair = ["7205", "4377"]
    assert found == [pair, ["7205"], ["7205"], pair, [], ["a", "b"], [], ["7"], ["1", "2"]]


def test_numbers_know_markers_and_nan() -> None:
    values, missing, wrong = numbers_of(pa.array(["1", "NULL", "", "x"]), ("NULL",))
    assert (values.tolist(), missing.tolist()) == ([1, 0, 0, 0], [False, True, True, False])
    assert wrong.tolist() == [False, False, False, True]
    assert numbers_of(pa.array([1.5, float("nan"), None]))[1].tolist() == [False, True, True]
    assert numbers_of(pa.array([1, -1, None]), ("-1",))[1].tolist() == [False, True, True]


def test_the_log_says_how_its_cells_were_read(tmp_path: Path) -> None:
    file = tmp_path / "raw.csv"
    file.write_text("y,id,old,name,tags,price\n1,17,17.0,ann,a|b,3\n0,4,4.0,7,NULL,NULL\n0,,,,,1\n")
    columns = Columns(
        label="y",
        dense=(Dense(name="price", missing=0.0, missing_markers=("NULL",)),),
        categorical=(
            Categorical(name="id"),
            Categorical(name="old"),
            Categorical(name="name"),
            Categorical(name="tags", pooling="mean", separator="|", missing_markers=("NULL",)),
        ),
    )
    log = prepare(Csv(files=(file,), columns=columns), tmp_path / "log", ALL).log
    assert [it.raw_type for it in log.features] == ["digits", "digits.0", "text", "text"]
    assert [it.separator for it in log.features] == [None, None, None, "|"]
    assert log.features[3].missing_markers == log.dense[0].missing_markers == ("NULL",)
    assert log.vocabulary("tags").column("value").to_pylist() == [None, "a", "b"]


@pytest.mark.parametrize(
    ("texts", "raw_type"),
    [
        (["0", "17", ""], "digits"),
        (["-4", "17"], "digits"),
        (["007", "17"], "text"),
        (["-0"], "text"),
        (["4.0", "-17.0"], "digits.0"),
        (["4.0", "17"], "text"),
        (["", ""], None),
    ],
)
def test_text_is_told_apart_by_how_it_looks(texts: list[str], raw_type: RawType | None) -> None:
    values = pa.array(texts, pa.large_string())
    assert raw_type_of(values.type, values) == raw_type


def test_typed_cells_are_recorded(tmp_path: Path) -> None:
    cells = {
        "y": [1, 0],
        "big": pa.array([2**64 - 1, None], pa.uint64()),
        "half": pa.array([0.5, float("nan")], pa.float32()),
        "ids": pa.array([[1, 2], None], pa.list_(pa.int64())),
        "yes": [True, None],
        "kind": pa.array(["x", "y"]).dictionary_encode(),
    }
    pq.write_table(pa.table(cells), tmp_path / "raw.parquet")
    names = [Categorical(name=name, pooling="sum" if name == "ids" else "one") for name in cells if name != "y"]
    source = Parquet(files=(tmp_path / "raw.parquet",), columns=Columns(label="y", categorical=tuple(names)))
    log = prepare(source, tmp_path / "log", ALL).log
    assert [it.raw_type for it in log.features] == ["integer", "float32", "integer", "boolean", "text"]
    assert log.vocabulary("half").column("value").to_pylist() == [None, "0.5"]
    assert log.vocabulary("big").column("value").to_pylist() == [None, str(2**64 - 1)]


def test_a_log_of_before_still_opens(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("y,u\n1,a\n0,b\n")
    columns = Columns(label="y", categorical=(Categorical(name="u"),))
    log = prepare(Csv(files=(tmp_path / "raw.csv",), columns=columns), tmp_path / "log", ALL).log
    body = json.loads((tmp_path / "log" / "log.json").read_text())
    for key in ("separator", "missing_markers", "raw_type"):
        del body["features"][0][key]
    (tmp_path / "log" / "log.json").write_text(json.dumps(body))
    old = ClickLog.open(tmp_path / "log")
    assert (old.digest, old.features[0].raw_type, old.features[0].missing_markers) == (log.digest, None, ())
