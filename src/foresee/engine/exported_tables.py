"""The tables of an export, mapped and not loaded: safetensors files of all rows, or of those that were ever written.

In: a folder and what its `export.json` says of each table. Out: a store that can only be read. Rows that a file leaves
out have their initial values, which follow from the seed: the same bytes as the store had them that was exported.
Anybody may have made these files, so each is checked against its own length and shapes before a row is read.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from foresee import documents
from foresee.errors import DataError, UsageError
from foresee.store.contract import Float32, Int64, Layout, Rows, Table
from foresee.store.initial import initial_values
from foresee.store.layouts import WIDTH_MAX

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
        name=documents.text_of(content, "name"),
        file=documents.file_name(content, "file"),
        num_rows=(num_rows := documents.whole(content, "num_rows", 0, documents.LARGE_MAX)),
        num_written=documents.whole({"num_written": num_rows, **content}, "num_written", 0, num_rows),
        width=documents.whole(content, "width", 1, WIDTH_MAX),
    )


class ExportedRows:
    """The exported tables as a store that can only be read."""

    def __init__(self, folder: Path, tables: tuple[ExportedTable, ...], *, seed: int, init_scale: float) -> None:
        self._files = [map_table(folder / table.file, table) for table in tables]
        self._starts = np.array(list(accumulate((table.num_rows for table in tables), initial=0)))
        self.layout = Layout(
            tables=tuple(Table(table.name, table.num_rows) for table in tables),
            width=tables[0].width,
            state_width=0,
            optimizer="sgd",
            seed=seed,
            init_scale=init_scale,
        )
        self.committed_step = 0

    def read(self, rows: Int64, out: Rows) -> None:
        """Rows by global id, which ascend."""
        bounds = np.searchsorted(rows, self._starts)
        for file, start, begin, end in zip(self._files, self._starts[:-1], bounds[:-1], bounds[1:], strict=True):
            wanted = rows[begin:end]
            if file.rows is None:
                out.values[begin:end] = file.values[wanted - start]
                continue
            places = np.searchsorted(file.rows, wanted - start)
            there = places < len(file.rows)
            there[there] = file.rows[places[there]] == (wanted - start)[there]
            out.values[begin:end][there] = file.values[places[there]]
            out.values[begin:end][~there] = initial_values(self.layout, wanted[~there])

    def write(self, rows: Int64, source: Rows) -> None:
        raise UsageError("exported tables can only be read; train the run they came from instead")

    def commit(self, step: int) -> None:
        raise UsageError("exported tables can only be read; train the run they came from instead")

    def close(self) -> None:
        self._files = []


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table file, mapped."""

    values: Float32  # [rows in the file, width]
    rows: Int64 | None
    """Which rows those are, ascending; None: all."""


def map_table(path: Path, table: ExportedTable) -> TableFile:
    """The contents of a table file, if they are of this shape and all there."""
    whole, shape = table.num_written == table.num_rows, (table.num_written, table.width)
    rows_bytes = 0 if whole else 8 * table.num_written
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_BYTES_MAX:
                raise ValueError(f"a header of {length:,} bytes")
            tensors = documents.parse_object(file.read(length))
            num_bytes = os.fstat(file.fileno()).st_size
        _check_tensor(tensors, "values", "F32", list(shape), rows_bytes)
        if not whole:
            _check_tensor(tensors, "rows", "I64", [table.num_written], 0)
        if num_bytes != (expected := 8 + length + rows_bytes + 4 * shape[0] * shape[1]):
            raise ValueError(f"it has {num_bytes:,} bytes where {expected:,} are expected")
        values: Float32 = np.empty(shape, np.float32)
        rows: Int64 = np.empty(0, np.int64)
        if shape[0]:
            values = np.memmap(path, "<f4", "r", 8 + length + rows_bytes, shape)
            rows = rows if whole else np.memmap(path, "<i8", "r", 8 + length, (shape[0],))
        if len(rows) and (rows[0] < 0 or rows[-1] >= table.num_rows or not (np.diff(rows) > 0).all()):
            raise ValueError("its row ids do not ascend")
    except (OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: this is not an exported table, or it is damaged ({error}); export again") from None
    return TableFile(values, None if whole else rows)


def _check_tensor(tensors: dict[str, Any], name: str, dtype: str, shape: list[int], begin: int) -> None:
    entry = documents.object_of(tensors, name)
    found, offsets = (entry.get("dtype"), entry.get("shape")), entry.get("data_offsets")
    if found != (dtype, shape):
        raise ValueError(f"`{name}` is not {dtype} of shape {shape}")
    if not isinstance(offsets, list) or offsets[:1] != [begin]:
        raise ValueError(f"`{name}` does not begin at {begin:,}")
