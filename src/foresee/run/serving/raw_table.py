"""Raw samples in whatever form a program has them, as columns of cells.

In: an Arrow table or record batch, a dict of columns, a pandas frame (anything with columns and `iloc`; pandas is not
imported here), anything that hands itself over as an Arrow stream, or a list of records. Out: a `RawTable` whose
columns are Arrow arrays, or lists of Python values where types are mixed. No cell is looked at here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

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
