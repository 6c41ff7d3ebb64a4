"""Raw samples to score, in whatever form a program has them, read as training read them or refused by column and row.

In: an Arrow table or record batch, a dict of columns, a pandas frame (pandas is not imported here), anything that hands
itself over as an Arrow stream, or a list of records, as a `RawTable`; and what the log says of each feature. Out: the
values that a vocabulary looks up, or numbers for a transform. Text and Arrow cells go through `data.cells.values_of`,
the function that prepared the log. A value of another type is written as the log's values were if there is only one way
to do that: 449818.0 in a column of whole numbers is 449818. Whatever could be two things, such as 7 where the log had
text ("7" or "007"), is refused: scored as an unknown value it would be wrong without a word.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foresee.arrays import Float64
from foresee.data.cells import is_list, numbers_of, raw_cells, to_mask, to_numpy, values_of
from foresee.data.schema import DenseFeature, Feature, RawType
from foresee.errors import DataError

Cells: TypeAlias = Any
"""A pyarrow.Array, or a list of Python values."""
FORMS = "a list of records, a dict of columns, a data frame, or an Arrow table or record batch"


@dataclass(frozen=True, slots=True)
class RawTable:
    """Columns of one length."""

    names: tuple[str, ...]
    column: Callable[[str], Cells]
    """The cells of a column that is among the names."""
    num_rows: int
    place: Callable[[int], str] = "row {}".format
    """Where a row stands, for sentences; rows count from 0."""

    def cells(self, name: str) -> Cells:
        """The cells of a column, if there is exactly one of that name."""
        num_found = self.names.count(name)
        if num_found == 0 and self.num_rows:
            found = ", ".join(self.names[:20]) + (", …" if len(self.names) > 20 else "")
            raise DataError(f"there is no column {name!r}, only {found}; give it, with None where nothing is known")
        if num_found > 1:
            raise DataError(f"column {name!r} stands {num_found} times; rename or leave out all but one")
        return self.column(name) if num_found else []


def raw_table(data: Any) -> RawTable:
    """Any of the forms, or a sentence that names them."""
    if isinstance(data, RawTable):
        return data
    if isinstance(data, pa.Table | pa.RecordBatch):
        return RawTable(tuple(data.schema.names), lambda name: _array(data.column(name)), data.num_rows)
    if isinstance(data, Mapping):
        return _of_columns(data)
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        own = dict(zip(map(str, data.columns), data.columns, strict=True))
        return RawTable(tuple(map(str, data.columns)), lambda name: _array(data[own[name]]), len(data))
    if hasattr(data, "iloc"):  # a pandas Series: one row of a frame, or one column
        raise DataError(f"a {type(data).__name__} is one row or one column; give a frame, such as frame.iloc[[0]]")
    if hasattr(data, "__arrow_c_stream__"):
        return raw_table(_arrow_table(data))
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        return _of_records(list(data))
    raise DataError(f"{type(data).__name__} holds no samples; give {FORMS}")


def _arrow_table(data: Any) -> pa.Table:
    try:
        return pa.table(data)
    except pa.ArrowException:  # a stream of single values, such as a Polars Series
        raise DataError(f"{type(data).__name__} is no table of columns; give {FORMS}") from None


def _of_columns(data: Mapping[Any, Any]) -> RawTable:
    for name, column in data.items():
        if isinstance(column, str | bytes | Mapping) or not hasattr(column, "__len__"):
            raise DataError(f"{name!r} is {_shown(column)}, not a column of cells; to score one sample, give [{{…}}]")
    lengths = Counter(len(column) for column in data.values())
    if len(lengths) > 1:
        usual = lengths.most_common(1)[0][0]
        name = next(name for name, column in data.items() if len(column) != usual)
        raise DataError(f"column {name!r} has {len(data[name])} cells where others have {usual}; give all the same")
    return RawTable(tuple(map(str, data)), lambda name: _array(data[name]), next(iter(lengths), 0))


def _of_records(records: Sequence[Any]) -> RawTable:
    for index, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise DataError(f"row {index} is {_shown(record)}, not a record of names and values; give {FORMS}")

    def column(name: str) -> Cells:
        for index, record in enumerate(records):
            if name not in record:
                raise DataError(f"row {index} has no {name!r}; give it, or None where the value is not known")
        return [record[name] for record in records]

    return RawTable(tuple(dict.fromkeys(name for record in records for name in record)), column, len(records))


def _array(column: Any) -> Cells:
    """A column as Arrow has it; Python values as they are, if Arrow has no type that fits all of them."""
    if isinstance(column, list | tuple):
        return list(column)
    if not isinstance(column, pa.Array | pa.ChunkedArray):
        try:
            column = pa.array(column, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            return list(column)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


EXACT_FLOAT_MAX = 1 << 53
"""Above this a float has lost the last digits of a whole number."""
_WHOLE = r"^(-?[0-9]+)$"
_WHOLE_WITH_POINT = r"^(-?[0-9]+)\.0+$"
_ANY_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"


def read_values(table: RawTable, feature: Feature, *, given_ids: bool = False) -> pa.Array:
    """What the vocabulary of a feature looks up: a large_string for each row, or a large_list of them.

    `given_ids`: raw values are row ids already.
    """
    raw_type: RawType | None = "integer" if given_ids and feature.raw_type is None else feature.raw_type
    cells = table.cells(feature.name)
    if isinstance(cells, pa.Array):
        cells = _arrow_cells(cells, table, feature, raw_type)
    else:
        cells = _python_cells(cells, table, feature, raw_type)
    return _checked_text(values_of(cells, feature), table, feature, raw_type)


def read_numbers(table: RawTable, feature: DenseFeature) -> Float64:
    """The numbers of a dense feature, before its transform."""
    cells = table.cells(feature.name)
    if not isinstance(cells, pa.Array):
        values, missing, wrong = _python_numbers(cells, feature)
    elif is_list(cells.type) or pa.types.is_temporal(cells.type) or pa.types.is_nested(cells.type):
        values, wrong = np.zeros(len(cells)), to_mask(cells.is_valid())
        missing = ~wrong
    else:
        values, missing, wrong = numbers_of(cells, feature.missing_markers)
    if wrong.any():
        row = int(np.argmax(wrong))
        _refuse(table, row, feature.name, f"expected a finite number, found {_found(cells, row)}; correct it")
    if missing.any() and feature.missing is None:
        row = int(np.argmax(missing))
        _refuse(table, row, feature.name, "there is no number, and the log had no rule for missing ones; give a number")
    return np.where(missing, feature.missing or 0.0, values)


def check_ids(values: pa.Array, table: RawTable, feature: Feature) -> None:
    """Refuses what is no row id of the feature's table."""
    bags = values if is_list(values.type) else None
    texts = values if bags is None else bags.values
    ids = to_mask(pc.match_substring_regex(texts, r"^[0-9]{1,10}$"))
    outside = ~ids | (to_numpy(pc.if_else(pa.array(ids), texts, "0").cast(pa.int64())) >= feature.num_rows)
    if outside.any():
        place = int(np.argmax(outside))
        reason = f"{texts[place].as_py()!r:.60} is no id of table {feature.table!r}"
        remedy = f"give a whole number from 0 to {feature.num_rows - 1}"
        _refuse(table, _row_of(bags, place), feature.name, f"{reason}; {remedy}")


def _row_of(bags: pa.Array | None, place: int) -> int:
    """The row that a value belongs to."""
    return place if bags is None else int(np.searchsorted(to_numpy(bags.offsets), place, side="right")) - 1


def _arrow_cells(cells: pa.Array, table: RawTable, feature: Feature, raw_type: RawType | None) -> pa.Array:
    """Typed cells as they are, where they are of the type that training read; otherwise one by one."""
    kind = cells.type
    if is_list(kind) and not feature.multi_valued:
        row = int(np.argmax(to_mask(cells.is_valid())))
        if cells[row].is_valid:
            _refuse_list(table, row, feature, cells[row].as_py())
        return pa.nulls(len(cells), pa.large_string())
    while is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not is_list(cells.type) and _is_text(kind):
        _check_separable(cells, table, feature, raw_type)
    if pa.types.is_null(kind) or _same_type(kind, raw_type):
        return cells
    if pa.types.is_temporal(kind) or pa.types.is_nested(kind):
        row = int(np.argmax(to_mask(cells.is_valid())))
        if cells[row].is_valid:
            _refuse(table, row, feature.name, _other_than(raw_type, f"a cell of type {kind}"))
        return pa.nulls(len(cells), pa.large_string())
    return _python_cells(cells.to_pylist(), table, feature, raw_type)


def _same_type(kind: pa.DataType, raw_type: RawType | None) -> bool:
    """Whether text of such cells, as Arrow writes it, is what training saw. Text is looked at afterwards."""
    if _is_text(kind):
        return raw_type in (None, "text", "digits", "digits.0", "integer", "other")
    if pa.types.is_integer(kind):
        return raw_type in (None, "digits", "integer")
    if pa.types.is_floating(kind):
        return raw_type == ("float64" if kind == pa.float64() else "float32")
    if pa.types.is_boolean(kind):
        return raw_type == "boolean"
    return raw_type == "other"


def _python_cells(values: list[Any], table: RawTable, feature: Feature, raw_type: RawType | None) -> pa.Array:
    values = [_plain(value) for value in values]
    for row, value in enumerate(values):
        if isinstance(value, list) and not feature.multi_valued:
            _refuse_list(table, row, feature, value)
        if isinstance(value, str) and feature.multi_valued:
            _check_separable([value], table, feature, raw_type, row)
        for entry in value if isinstance(value, list) else [value]:
            if entry is not None and entry not in feature.missing_markers:
                reason = _problem(entry, raw_type)
                if reason is not None:
                    _refuse(table, row, feature.name, reason)
    return raw_cells(values, feature, raw_type)


def _plain(value: Any) -> Any:
    """A Python value: None for what is missing, lists for all that holds several values."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if isinstance(value, list | tuple | set | frozenset | np.ndarray | pa.Array):
        return [_plain(entry) for entry in value]
    # pandas says NA or NaT for what is missing; neither is equal to anything, itself included.
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _problem(value: Any, raw_type: RawType | None) -> str | None:
    """Why a value cannot be what training read there, if it cannot."""
    if isinstance(value, str):
        return _problem_of_text(value, raw_type)
    if isinstance(value, bool):
        return None if raw_type == "boolean" else _other_than(raw_type, repr(value))
    if isinstance(value, int):
        fits = raw_type in (None, "digits", "digits.0", "integer", "float32", "float64")
        return None if fits else _other_than(raw_type, repr(value))
    if not isinstance(value, float):
        return _other_than(raw_type, f"{value!r:.60} ({type(value).__name__})")
    if raw_type in ("float32", "float64"):
        return None
    if raw_type not in ("digits", "digits.0", "integer") or not value.is_integer():
        return _other_than(raw_type, repr(value))
    if abs(value) >= EXACT_FLOAT_MAX:
        return f"{value!r} has lost digits as a floating-point number; give ids as whole numbers or text"
    return None


def _problem_of_text(value: str, raw_type: RawType | None) -> str | None:
    if raw_type == "boolean" and value and value.lower() not in ("true", "false"):
        return _other_than(raw_type, repr(value))
    if raw_type in ("float32", "float64") and value:
        try:
            float(value)
        except ValueError:
            return _other_than(raw_type, repr(value))
    return None


_WORDS: dict[RawType | None, str] = {
    None: "text, or numbers written in a way that is not recorded",
    "text": "text, such as '7' or '007'",
    "digits": "whole numbers",
    "digits.0": "numbers of the form 7.0",
    "integer": "whole numbers",
    "float32": "numbers",
    "float64": "numbers",
    "boolean": "true or false",
    "other": "dates or decimals, which have several forms",
}


def _other_than(raw_type: RawType | None, found: str) -> str:
    remedy = "give the text that the raw log would have" if raw_type in (None, "text", "other") else "give one of these"
    return f"found {found} where the log had {_WORDS[raw_type]}; {remedy}"


def _check_separable(
    cells: Cells, table: RawTable, feature: Feature, raw_type: RawType | None, first_row: int = 0
) -> None:
    """A log that does not say how its bags were cut leaves it open what a text is: one value or several."""
    if not feature.multi_valued or feature.separator is not None or raw_type is not None:
        return
    for row, cell in enumerate(cells):
        text = cell.as_py() if isinstance(cell, pa.Scalar) else cell
        if text:
            _refuse(
                table, first_row + row, feature.name,
                f"found the text {text!r:.60}, and this export does not say what separates values; give a list of "
                "values, or prepare the log and train again",
            )  # fmt: skip


def _checked_text(values: pa.Array, table: RawTable, feature: Feature, raw_type: RawType | None) -> pa.Array:
    """Text of whole numbers in the form that the log had; numbers that are not whole are refused there."""
    if raw_type not in ("digits", "integer", "digits.0"):
        return values
    bags = values if is_list(values.type) else None
    texts = values if bags is None else bags.values
    if raw_type == "digits.0":
        texts, allowed = pc.replace_substring_regex(texts, _WHOLE, r"\1.0"), _WHOLE_WITH_POINT
    else:
        texts, allowed = pc.replace_substring_regex(texts, _WHOLE_WITH_POINT, r"\1"), _WHOLE
    wrong = to_mask(
        pc.and_(pc.match_substring_regex(texts, _ANY_NUMBER), pc.invert(pc.match_substring_regex(texts, allowed)))
    )
    if wrong.any():
        place = int(np.argmax(wrong))
        _refuse(table, _row_of(bags, place), feature.name, _other_than(raw_type, repr(texts[place].as_py())))
    return texts if bags is None else pa.LargeListArray.from_arrays(bags.offsets, texts)


def _python_numbers(cells: list[Any], feature: DenseFeature) -> tuple[Float64, Any, Any]:
    plain = [_plain(cell) for cell in cells]
    is_text = np.array([isinstance(cell, str) for cell in plain], bool)
    is_number = np.array([isinstance(cell, int | float) for cell in plain], bool)
    empty = np.array([cell is None for cell in plain], bool)
    texts = pa.array([cell if isinstance(cell, str) else None for cell in plain], pa.large_string())
    values, missing, wrong = numbers_of(texts, feature.missing_markers)
    numbers = pa.array([_float(cell) if number else None for cell, number in zip(plain, is_number, strict=True)])
    own, _, own_wrong = numbers_of(numbers.cast(pa.float64()))
    wrong = np.where(is_number, own_wrong, wrong & is_text) | ~(is_text | is_number | empty)
    return np.where(is_number, own, values), (missing & is_text) | empty, wrong


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_text(kind: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    return any(test(kind) for test in (*tests, pa.types.is_large_binary))


def _found(cells: Cells, row: int) -> str:
    value = cells[row]
    return f"{value.as_py() if isinstance(value, pa.Scalar) else value!r:.60}"


def _refuse_list(table: RawTable, row: int, feature: Feature, value: Any) -> NoReturn:
    _refuse(
        table, row, feature.name, f"found the list {value!r:.60} where a sample has one value; give the value by itself"
    )


def _refuse(table: RawTable, row: int, column: str, reason: str) -> NoReturn:
    raise DataError(f"{table.place(row)}, column {column!r}: {reason}")
