"""Logs with several labels, numbers, classes and weights: what was written is what a batch has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foresee.data import (
    Categorical,
    ClickLog,
    Columns,
    Csv,
    Label,
    MovieLens,
    Parquet,
    PrepareOptions,
    prepare,
    tiny,
)
from foresee.errors import DataError
from foresee.tools.cli.columns import parse_label

LABELS = (
    Label(name="click"),
    Label(name="stars", kind="number"),
    Label(name="liked", column="stars", threshold=4),
    Label(name="device", kind="class", classes=("tv", "phone")),
)
ALL = PrepareOptions(valid_share=0)


def columns(**more: Any) -> Columns:
    return Columns(**{"labels": LABELS, "weight": "w", "categorical": (Categorical(name="u"),), **more})


def csv_log(folder: Path, *lines: str, **more: Any) -> ClickLog:
    (folder / "raw.csv").write_text("\n".join(["click,stars,device,u,w", *lines]) + "\n")
    return prepare(Csv(files=(folder / "raw.csv",), columns=columns(**more)), folder / "log", ALL).log


def test_a_batch_has_all_labels_and_the_weight_of_its_samples(tmp_path: Path) -> None:
    lines = [f"{i % 2},{i / 4},{'tv' if i % 3 else 'phone'},u{i},{i}" for i in range(40)]
    log = csv_log(tmp_path, *lines)
    assert [(label.name, label.kind, label.classes) for label in log.labels] == [
        ("click", "binary", ()), ("stars", "number", ()), ("liked", "binary", ()), ("device", "class", ("tv", "phone")),
    ]  # fmt: skip
    seen = []
    for batch in log.batches(batch_size=8, seed=3).batches():
        assert batch.sample_weights is not None
        number = batch.sample_weights
        expected = np.stack([number % 2, number / 4, number / 4 >= 4, number % 3 == 0], axis=1)
        np.testing.assert_array_equal(batch.labels, expected)
        part = batch.part(np.array([5, 0], np.int32))
        assert part.sample_weights is not None
        np.testing.assert_array_equal(part.sample_weights, number[[5, 0]])
        np.testing.assert_array_equal(part.labels, expected[[5, 0]])
        seen += number.tolist()
    assert sorted(seen) == list(range(40))
    log.check()


def test_the_digest_knows_every_label_and_weight(tmp_path: Path) -> None:
    digests = set()
    for name, stars, weight in (("a", "3", "1"), ("b", "2", "1"), ("c", "3", "2")):
        (tmp_path / name).mkdir()
        digests.add(csv_log(tmp_path / name, f"1,{stars},tv,u,{weight}", "0,1,phone,v,1").digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("1,many,tv,u,1", "column stars: expected a finite number, found 'many'"),
        ("1,,tv,u,1", "column stars: expected a finite number, found an empty cell"),
        ("1,2,car,u,1", "column device: expected one of the classes tv, phone, found 'car'"),
        ("1,2,tv,u,-1", "column w: expected a weight: a number from 0 up, found '-1'"),
        ("1,2,tv,u,", "column w: expected a weight: a number from 0 up, found an empty cell"),
        ("2,2,tv,u,1", "column click: expected a label of 0 or 1"),
        ("1,1e300,tv,u,1", "column stars: expected a finite number"),
    ],
)
def test_bad_cells_are_named(tmp_path: Path, line: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        csv_log(tmp_path, "0,1,tv,u,1", line)
    assert not (tmp_path / "log").exists()


def test_parquet_has_typed_labels(tmp_path: Path) -> None:
    cells = {"click": [True, False], "stars": pa.array([4.5, 2], pa.float32()), "device": ["phone", "tv"]}
    pq.write_table(pa.table({**cells, "u": [7, 8], "w": [1, 3]}), tmp_path / "raw.parquet")
    source = Parquet(files=(tmp_path / "raw.parquet",), columns=columns())
    batch = prepare(source, tmp_path / "log", ALL).log.batches(batch_size=2, shuffle=False).batch(0)
    np.testing.assert_array_equal(batch.labels, [[1, 4.5, 1, 1], [0, 2, 0, 0]])
    np.testing.assert_array_equal(batch.sample_weights, [1, 3])


def test_ratings_of_movielens_are_numbers_if_asked(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n1,10,4.5,1\n1,11,2,2\n2,10,4,3\n")
    found = {}
    for learn in ("click", "rating", "both"):
        source = MovieLens(files=(tmp_path / "ratings.csv",), learn=learn)
        log = prepare(source, tmp_path / learn, ALL).log
        found[learn] = log.batches(batch_size=3, shuffle=False).batch(0).labels.tolist()
    assert found == {"click": [1, 0, 1], "rating": [4.5, 2, 4], "both": [[1, 4.5], [0, 2], [1, 4]]}


def test_a_log_of_clicks_is_what_it_was(tmp_path: Path) -> None:
    """Version 1, with a digest that no label has changed; and one that says nothing of labels is read."""
    log = tiny(tmp_path / "log")
    file = tmp_path / "log" / "log.json"
    content = json.loads(file.read_text())
    assert content["version"] == 1
    del content["labels"], content["sample_weights"]
    file.write_text(json.dumps(content))
    again = ClickLog.open(tmp_path / "log")
    assert (again.digest, again.labels) == (log.digest, log.labels)
    batch = again.batches(batch_size=8).batch(0)
    assert batch.labels.ndim == 1
    assert batch.sample_weights is None


def test_labels_as_they_are_typed() -> None:
    assert parse_label("y") == Label(name="y")
    assert parse_label("y:number") == Label(name="y", kind="number")
    assert parse_label("y:classes=3") == Label(name="y", kind="class", classes=("0", "1", "2"))
    assert parse_label("y:classes=a|b:column=z").column_name == "z"
    assert parse_label(r"a\:b:threshold=2.5") == Label(name="a:b", threshold=2.5)
    for text, sentence in (
        ("y:numbr", "'numbr' is not known"),
        ("y:classes=1", "at least two"),
        ("y:classes=a|a", "stands there twice"),
        ("y:number:threshold=2", "a threshold makes a click"),
        ("y:threshold=x", "threshold=x is no number"),
    ):
        with pytest.raises(DataError, match=sentence):
            parse_label(text)


def test_labels_that_cannot_be(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"label": "click"}, "no label is named, or both"),
        ({"labels": ()}, "no label is named"),
        ({"labels": (LABELS[0], LABELS[0])}, "label 'click' is named twice"),
        ({"label_threshold": 3.0}, "write it to the label it belongs to"),
        ({"categorical": (Categorical(name="stars"),)}, "'stars' is the label and a feature too"),
    ]
    for given, sentence in wrong:
        with pytest.raises(DataError, match=sentence):
            columns(**given)
