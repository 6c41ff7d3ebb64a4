"""A raw cell is read as training read it, whatever type it comes in, or refused with its column and row."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from foresee.data.schema import Feature, RawType
from foresee.errors import DataError
from foresee.run.serving.raw_reading import raw_table, read_values

NAN = float("nan")


def feature(raw_type: RawType | None, *, bag: bool = False, separator: str | None = None) -> Feature:
    return Feature(
        name="it", table="it", num_rows=9, pooling="mean" if bag else "one", separator=separator, raw_type=raw_type,
        missing_markers=("NULL",),
    )  # fmt: skip


def read(value: Any, of: Feature) -> Any:
    """One value, alone and below another row: what is looked up for it."""
    alone = read_values(raw_table([{"it": value}]), of).to_pylist()
    below = read_values(raw_table({"it": [None, value]}), of).to_pylist()
    assert below[1:] == alone
    return alone[0]


@pytest.mark.parametrize(
    ("raw_type", "value", "expected"),
    [
        ("digits", "449818", "449818"),
        ("digits", 449818, "449818"),
        ("digits", 449818.0, "449818"),
        ("digits", np.float32(449818), "449818"),
        ("digits", np.uint64(1 << 63), "9223372036854775808"),
        ("digits", "449818.0", "449818"),
        ("digits", "NULL", ""),
        ("digits", NAN, ""),
        ("digits", None, ""),
        ("digits", "somebody new", "somebody new"),
        ("integer", 449818.0, "449818"),
        ("integer", "449818", "449818"),
        ("digits.0", 449818, "449818.0"),
        ("digits.0", "449818", "449818.0"),
        ("float64", "0.5", "0.5"),
        ("float64", 3, "3"),
        ("boolean", True, "true"),
        ("boolean", "False", "false"),
        ("text", "007", "007"),
        ("text", b"007", "007"),
        ("other", "2019-11-24", "2019-11-24"),
        (None, 17, "17"),
        (None, "u17", "u17"),
    ],
)
def test_a_single_value(raw_type: RawType | None, value: Any, expected: str) -> None:
    assert read(value, feature(raw_type)) == expected


@pytest.mark.parametrize(
    ("raw_type", "value", "words"),
    [
        ("digits", ["449818"], r"found the list \['449818'\] where a sample has one value"),
        ("digits", 449818.5, "found 449818.5 where the log had whole numbers"),
        ("digits", "4.5e5", "found '4.5e5' where the log had whole numbers"),
        ("digits", True, "found True where the log had whole numbers"),
        ("integer", float(1 << 60), "has lost digits as a floating-point number"),
        ("integer", float("inf"), "found inf where"),
        ("text", 7, "found 7 where the log had text, such as '7' or '007'; give the text"),
        ("text", 7.0, r"found 7\.0 where the log had text"),
        ("boolean", 1, "found 1 where the log had true or false"),
        ("float64", "cheap", "found 'cheap' where the log had numbers"),
        ("other", datetime(2019, 11, 24), "where the log had dates or decimals, which have several forms"),
        (None, 449818.0, "written in a way that is not recorded; give the text"),
        ("digits", {"id": 7}, r"found \{'id': 7\} \(dict\)"),
    ],
)
def test_a_single_value_that_cannot_be_right(raw_type: RawType | None, value: Any, words: str) -> None:
    with pytest.raises(DataError, match=rf"^row 1, column 'it': .*{words}"):
        read_values(raw_table({"it": [None, value]}), feature(raw_type))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7205", ["7205"]),
        ("7205|4377", ["7205", "4377"]),
        (" 7205 | 4377 |", ["7205", "4377"]),
        (["7205", 4377, 12.0, None, NAN], ["7205", "4377", "12"]),
        (np.array([7205, 4377]), ["7205", "4377"]),
        ((7205,), ["7205"]),
        (7205, ["7205"]),
        (NAN, []),
        (None, []),
        ("", []),
        ("NULL", []),
        ("7205|NULL", ["7205"]),
    ],
)
def test_a_bag(value: Any, expected: list[str]) -> None:
    assert read(value, feature("digits", bag=True, separator="|")) == expected


def test_a_bag_of_a_log_that_does_not_say_what_separates_values() -> None:
    unknown, lists = feature(None, bag=True), feature("integer", bag=True)
    assert read(["7205", "4377"], unknown) == ["7205", "4377"]
    assert read("", unknown) == []
    for cells in (["", "7205|4377"], pa.array(["", "7205"])):
        with pytest.raises(DataError, match=r"row 1, column 'it': .* does not say what separates values; give a list"):
            read_values(raw_table({"it": cells}), unknown)
    assert read("7205", lists) == ["7205"], "the log had lists, so a text is one value"
    with pytest.raises(DataError, match=r"row 1, column 'it': found 7\.5 where the log had whole numbers"):
        read_values(raw_table({"it": [[7], [8, 7.5]]}), lists)
    with pytest.raises(DataError, match=r"row 1, column 'it': found '7\.5' where"):
        read_values(raw_table({"it": [["7"], ["8", "7.5"]]}), lists)


@pytest.mark.parametrize(
    ("cells", "raw_type", "expected"),
    [
        (pa.array([1, None], pa.uint64()), "digits", ["1", ""]),
        (pa.array([1.0, None]), "integer", ["1", ""]),
        (pa.array(["a", None]).dictionary_encode(), "text", ["a", ""]),
        (pa.array([0.1, NAN], pa.float32()), "float32", ["0.1", ""]),
        (pa.array([None, None]), "digits", ["", ""]),
        (pa.chunked_array([["1"], [None]]), "digits", ["1", ""]),
        (np.array([1.0, NAN]), "digits", ["1", ""]),
        (np.array(["1", None], object), "digits", ["1", ""]),
        (np.array([1 << 70, "x"], object), "digits", [str(1 << 70), "x"]),
        (pa.array([None, None], pa.list_(pa.int64())), "digits", ["", ""]),
        (pa.array([datetime(2019, 11, 24), None], pa.timestamp("s")), "other", ["2019-11-24 00:00:00", ""]),
    ],
)
def test_columns_of_arrow_and_numpy(cells: Any, raw_type: RawType, expected: list[str]) -> None:
    assert read_values(raw_table({"it": cells}), feature(raw_type)).to_pylist() == expected


@pytest.mark.parametrize(
    ("cells", "raw_type", "words"),
    [
        (pa.array([None, [1]]), "digits", r"found the list \[1\]"),
        (pa.array([None, 7]), "text", "found 7 where the log had text"),
        (pa.array([None, datetime(2019, 11, 24)]), "text", r"a cell of type timestamp\[us\]"),
        (pa.array([None, 1.5]), "digits", r"found 1\.5"),
    ],
)
def test_arrow_cells_that_cannot_be_right(cells: pa.Array, raw_type: RawType, words: str) -> None:
    with pytest.raises(DataError, match=f"row 1, column 'it': .*{words}"):
        read_values(raw_table({"it": cells}), feature(raw_type))


class Series:
    """What is used of a pandas Series."""

    iloc = None


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        ([{"it": "1"}, {"at": "1"}], "row 1 has no 'it'"),
        (pa.table({"at": [1]}), "there is no column 'it', only at"),
        ({"it": "1"}, r"'it' is '1', not a column of cells; to score one sample, give \[\{…\}\]"),
        ({"it": ["1", "2"], "at": ["1"]}, "column 'at' has 1 cells where others have 2|column 'it' has 2 cells"),
        (["1"], "row 0 is '1', not a record"),
        ("1", "str holds no samples; give a list of records"),
        (7, "int holds no samples"),
        (Series(), r"a Series is one row or one column; give a frame, such as frame\.iloc\[\[0\]\]"),
        (pa.chunked_array([[1]]), "ChunkedArray is no table of columns; give a list of records"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["it", "it"]), "column 'it' stands 2 times"),
    ],
)
def test_what_holds_no_samples(samples: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read_values(raw_table(samples), feature("digits"))
