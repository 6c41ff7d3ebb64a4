"""One raw cell to what a table looks up and what a transform gets: the same for preparing a log and for scoring.

In: an Arrow array of raw cells, or Python values of a raw sample, and how the column is read (`separator`, `pooling`,
`missing_markers`, `raw_type`). Out: text values ("" where there is none), lists of them, or numbers. Pure. What comes
out is hashed or looked up byte for byte, so `values_of` is part of the format: a change here is another log.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from foresee.arrays import Float64
from foresee.data.schema import RawType

Mask = NDArray[np.bool_]

_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_TEXTS: Mapping[RawType, str] = {"digits": r"^(0|-?[1-9][0-9]*)$", "digits.0": r"^(0|-?[1-9][0-9]*)\.0$"}


class Readable(Protocol):
    """How the cells of one categorical column are read: a `Categorical` before, a `Feature` after preparing."""

    @property
    def multi_valued(self) -> bool: ...

    @property
    def separator(self) -> str | None: ...

    @property
    def missing_markers(self) -> tuple[str, ...]: ...


def values_of(cells: pa.Array, column: Readable) -> pa.Array:
    """The values that a vocabulary counts and looks up: one large_string for each cell, or a large_list of them.

    A missing cell is "" or an empty list. Values of a list lose surrounding spaces, missing ones among them are left
    out. A single value is kept as it stands, spaces and case included.
    """
    if not column.multi_valued:
        return _without(as_strings(cells), column.missing_markers)
    if not is_list(cells.type):
        strings = _without(as_strings(cells), column.missing_markers)
        if column.separator is not None:
            cells = pc.split_pattern(strings, column.separator)
        else:
            cells = pa.LargeListArray.from_arrays(np.arange(len(strings) + 1), strings)
    cells = cells.fill_null([]) if cells.null_count else cells
    lengths = to_numpy(pc.list_value_length(cells)).astype(np.int64)
    values = _without(pc.utf8_trim_whitespace(as_strings(cells.flatten())), column.missing_markers)
    present = to_mask(pc.not_equal(values, ""))
    owner = np.repeat(np.arange(len(lengths)), lengths)[present]
    ends = np.searchsorted(owner, np.arange(len(lengths) + 1))
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values.filter(pa.array(present)))


def numbers_of(cells: pa.Array, missing_markers: tuple[str, ...] = ()) -> tuple[Float64, Mask, Mask]:
    """(values, missing, wrong) of number cells; values are 0 where the cell is missing or wrong.

    Null, "", a marker, and NaN of a column of floats are missing; text that is no finite float32 number is wrong.
    """
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.int8())
    marked = to_mask(pc.equal(_without(as_strings(cells), missing_markers), "")) if missing_markers else False
    if pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type) or pa.types.is_decimal(cells.type):
        values = to_numpy(cells.cast(pa.float64(), safe=False).fill_null(np.nan))
        missing = np.isnan(values) | marked
    else:
        values, missing = _parsed(_without(as_strings(cells), missing_markers))
    wrong = ~missing & ~(np.abs(values) <= _FLOAT32_MAX)  # NaN compares false: it is wrong too
    return np.where(wrong | missing, 0.0, values), missing, wrong


def _parsed(strings: pa.Array) -> tuple[Float64, Mask]:
    missing = to_mask(pc.equal(strings, ""))
    try:
        return to_numpy(pc.if_else(pa.array(missing), "0", strings).cast(pa.float64())), missing
    except pa.ArrowInvalid:
        usable = to_mask(pc.match_substring_regex(strings, _NUMBER))
        values = to_numpy(pc.if_else(pa.array(usable), strings, "0").cast(pa.float64()))
        return np.where(usable | missing, values, np.nan), missing


def raw_type_of(kind: pa.DataType, values: pa.Array) -> RawType | None:
    """What cells of this Arrow type are, so that a value of another type can be written as they were.

    `values` is what `values_of` made of them: text is told apart by how it looks. None: nothing but missing cells.
    """
    while is_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not is_text(kind):
        return None if pa.types.is_null(kind) else _typed(kind)
    found = values.flatten() if is_list(values.type) else values.filter(pc.not_equal(values, ""))
    if not len(found):
        return None
    if _all_digits(found):
        return "digits"
    fits = (name for name, pattern in _TEXTS.items() if pc.all(pc.match_substring_regex(found, pattern)).as_py())
    return next(fits, "text")


def _all_digits(texts: pa.Array) -> bool:
    """Are all of them whole numbers without a sign? Most ids are, and this is faster than the expression."""
    if not pc.all(pc.ascii_is_decimal(texts)).as_py():
        return False
    zeros = texts.filter(pc.starts_with(texts, "0"))
    return bool(len(zeros) == 0 or pc.max(pc.binary_length(zeros)).as_py() == 1)


def merged_type(one: RawType | None, other: RawType | None) -> RawType | None:
    """The type of two pieces of a column: text, if they differ."""
    return one if other is None or one == other else other if one is None else "text"


def raw_cells(values: Sequence[Any], column: Readable, raw_type: RawType | None) -> pa.Array:
    """Python values of raw samples as cells, written as training read them; for `values_of`.

    None and NaN are missing. A list, tuple, set or array is a list of values; text is cut where the column has a
    separator. A number is written as the column's numbers were: 449818 and 449818.0 are the same id.
    """
    if not column.multi_valued:
        return pa.array([written(value, raw_type) for value in values], pa.large_string())
    bags = [_bag(value, column, raw_type) for value in values]
    return pa.array(bags, pa.large_list(pa.large_string()))


def _bag(value: Any, column: Readable, raw_type: RawType | None) -> list[str | None] | None:
    if isinstance(value, str):
        if value in column.missing_markers:
            return []
        return list(value.split(column.separator)) if column.separator is not None else [value]
    if isinstance(value, list | tuple | set | frozenset | np.ndarray):
        return [written(entry, raw_type) for entry in value]
    text = written(value, raw_type)
    return None if text is None else [text]


def written(value: Any, raw_type: RawType | None) -> str | None:
    """One Python value as the text that training saw; None if it is missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if raw_type in ("float32", "float64", "integer", "boolean"):
        return _as_typed(value, raw_type)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value == int(value):
        return f"{int(value)}.0" if raw_type == "digits.0" else str(int(value))
    return str(value)


def _as_typed(value: Any, raw_type: RawType) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value).lower() if raw_type == "boolean" else str(value)
    if raw_type in ("float32", "float64"):
        kind = pa.float32() if raw_type == "float32" else pa.float64()
        return str(pa.array([number]).cast(kind, safe=False).cast(pa.large_string())[0].as_py())
    if isinstance(value, str):  # "0449818" is another text than any integer, "449818.0" is one
        return value.removesuffix(".0")
    return str(int(value)) if math.isfinite(number) and number == int(number) else str(value)


def as_strings(cells: pa.Array) -> pa.Array:
    """Cells as text; null and NaN become the empty string."""
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if pa.types.is_floating(cells.type):
        cells = pc.if_else(pc.is_nan(cells), pa.scalar(None, cells.type), cells)
    if cells.type != pa.large_string():
        cells = cells.cast(pa.large_string())
    return cells.fill_null("") if cells.null_count else cells


def is_list(kind: pa.DataType) -> bool:
    """Does a cell hold a list?"""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def to_numpy(array: pa.Array) -> Float64:
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def to_mask(array: pa.Array) -> Mask:
    return np.array(array.to_numpy(zero_copy_only=False), bool)


def _without(strings: pa.Array, markers: tuple[str, ...]) -> pa.Array:
    if not markers:
        return strings
    return pc.if_else(pc.is_in(strings, value_set=pa.array(markers, pa.large_string())), "", strings)


def is_text(kind: pa.DataType) -> bool:
    """Is a cell text? Text in bytes counts."""
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in (*texts, pa.types.is_binary, pa.types.is_large_binary))


def _typed(kind: pa.DataType) -> RawType:
    if pa.types.is_integer(kind):
        return "integer"
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_floating(kind):
        return "float64" if kind == pa.float64() else "float32"
    return "other"
