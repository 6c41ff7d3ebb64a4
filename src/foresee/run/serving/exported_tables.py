"""The table files of an export, as a store that can only be read.

In: the folder and what `export.json` says of its tables. Out: rows by id, straight from the mapped files; where a file
has only the rows that were ever written, the others have their initial values.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int64
from foresee.errors import DataError, UsageError
from foresee.io import bounded_json
from foresee.store.contract import Rows
from foresee.store.halves import SAFETENSORS_DTYPES
from foresee.store.kernels import initial_values
from foresee.store.layout import WIDTH_MAX, Layout, Table
from foresee.store.row_groups import open_groups

HEADER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """One table file."""

    name: str
    file: str
    num_rows: int
    num_written: int
    """Rows in the file: all, or those ever written."""
    width: int


def exported_table(content: dict[str, Any]) -> ExportedTable:
    """A table out of JSON; ValueError for anything else."""
    return ExportedTable(
        name=bounded_json.text_of(content, "name"),
        file=bounded_json.file_name(content, "file"),
        num_rows=(num_rows := bounded_json.whole(content, "num_rows", 0, bounded_json.LARGE_MAX)),
        num_written=bounded_json.whole({"num_written": num_rows, **content}, "num_written", 0, num_rows),
        width=bounded_json.whole(content, "width", 1, WIDTH_MAX),
    )


def exported_rows(folder: Path, described: Sequence[ExportedTable], initial: dict[str, Any]) -> Any:
    """The exported tables as a store that can only be read. `initial`: seed, init_scale, dtype and rounding."""
    tables = {table.name: table for table in described}
    widths = tuple((table.width, 0) for table in described)
    one = len(set(widths)) == 1
    layout = Layout(
        tables=tuple(Table(table.name, table.num_rows) for table in described),
        width=widths[0][0] if one else 0,
        state_width=0,
        optimizer="sgd",
        widths=() if one else widths,
        **initial,
    )
    return open_groups(
        layout, folder,
        lambda _, group: ExportedRows(folder, tuple(tables[table.name] for table in group.tables), group),
    )  # fmt: skip


class ExportedRows:
    """The exported tables of one width."""

    def __init__(self, folder: Path, tables: tuple[ExportedTable, ...], layout: Layout) -> None:
        self._files = [map_table(folder / table.file, table, layout.dtype) for table in tables]
        self._starts = np.array(list(accumulate((table.num_rows for table in tables), initial=0)))
        self.layout = layout
        self.committed_step = 0

    def read(self, rows: Int64, out: Rows) -> None:
        """Rows by global id, which ascend."""
        bounds, values = np.searchsorted(rows, self._starts), self._columns(out)
        for file, start, begin, end in zip(self._files, self._starts[:-1], bounds[:-1], bounds[1:], strict=True):
            wanted = rows[begin:end]
            if file.rows is None:
                values[begin:end] = file.values[wanted - start]
                continue
            places = np.searchsorted(file.rows, wanted - start)
            there = places < len(file.rows)
            there[there] = file.rows[places[there]] == (wanted - start)[there]
            values[begin:end][there] = file.values[places[there]]
            out.values[begin:end][~there] = initial_values(self.layout, wanted[~there])

    def _columns(self, out: Rows) -> NDArray[Any]:
        """[rows, width]: the values of rows as the files have them; what fills up odd widths is zero."""
        columns = out.values if self.layout.dtype == "float32" else out.values.view(np.uint16)
        columns[:, self.layout.width :] = 0
        return columns[:, : self.layout.width]

    def write(self, rows: Int64, source: Rows) -> None:
        raise UsageError("exported tables can only be read; train the run they came from instead")

    def commit(self, step: int) -> None:
        raise UsageError("exported tables can only be read; train the run they came from instead")

    def close(self) -> None:
        self._files = []


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table file, mapped."""

    values: NDArray[Any]  # [rows in the file, width]: float32, or the bits of halves
    rows: Int64 | None
    """Which rows those are, ascending; None: all."""


def map_table(path: Path, table: ExportedTable, dtype: str = "float32") -> TableFile:
    """The contents of a table file, if they are of this shape and all there."""
    whole, shape = table.num_written == table.num_rows, (table.num_written, table.width)
    rows_bytes = 0 if whole else 8 * table.num_written
    (name, item_bytes), kind = SAFETENSORS_DTYPES[dtype], np.dtype("<f4" if dtype == "float32" else "<u2")
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_BYTES_MAX:
                raise ValueError(f"a header of {length:,} bytes")
            tensors = bounded_json.parse_object(file.read(length))
            num_bytes = os.fstat(file.fileno()).st_size
        _check_tensor(tensors, "values", name, list(shape), rows_bytes)
        if not whole:
            _check_tensor(tensors, "rows", "I64", [table.num_written], 0)
        if num_bytes != (expected := 8 + length + rows_bytes + item_bytes * shape[0] * shape[1]):
            raise ValueError(f"it has {num_bytes:,} bytes where {expected:,} are expected")
        values: NDArray[Any] = np.empty(shape, kind)
        rows: Int64 = np.empty(0, np.int64)
        if shape[0]:
            values = np.memmap(path, kind, "r", 8 + length + rows_bytes, shape)
            rows = rows if whole else np.memmap(path, "<i8", "r", 8 + length, (shape[0],))
        if len(rows) and (rows[0] < 0 or rows[-1] >= table.num_rows or not (np.diff(rows) > 0).all()):
            raise ValueError("its row ids do not ascend")
    except (OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: this is not an exported table, or it is damaged ({error}); export again") from None
    return TableFile(values, None if whole else rows)


def _check_tensor(tensors: dict[str, Any], name: str, dtype: str, shape: list[int], begin: int) -> None:
    entry = bounded_json.object_of(tensors, name)
    found, offsets = (entry.get("dtype"), entry.get("shape")), entry.get("data_offsets")
    if found != (dtype, shape):
        raise ValueError(f"`{name}` is not {dtype} of shape {shape}")
    if not isinstance(offsets, list) or offsets[:1] != [begin]:
        raise ValueError(f"`{name}` does not begin at {begin:,}")
