"""Columns of a second, small file added to a log by a key: a film's genres, a user's age.

The second file is held in memory. A key that it does not have gives missing cells, so the unknown row; a key that it
has twice is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foresee.data.bad_lines import BadLine
from foresee.data.batch import Int64
from foresee.data.cells import as_strings
from foresee.data.formats.delimited import Layout, delimited_chunks
from foresee.data.source import RawChunk, check_files
from foresee.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Which columns come from which file."""

    file: Path
    key: str
    """A column of both: of the log, and of the file (unless `file_key` says otherwise)."""
    columns: tuple[str, ...]
    layout: Layout
    file_key: str | None = None


@dataclass(frozen=True, slots=True)
class _Side:
    join: Join
    keys: pa.Array
    cells: dict[str, pa.Array]


def join_chunks(chunks: Iterator[RawChunk], joins: tuple[Join, ...]) -> Iterator[RawChunk]:
    """Every chunk with the joined columns beside its own."""
    sides = [_load(join) for join in joins]
    for chunk in chunks:
        cells = dict(chunk.cells)
        for side in sides:
            places = pc.index_in(as_strings(cells[side.join.key]), value_set=side.keys)
            cells |= {name: column.take(places) for name, column in side.cells.items()}
        yield replace(chunk, cells=cells)


def _load(join: Join) -> _Side:
    check_files((join.file,))
    key = join.file_key or join.key
    pieces = list(delimited_chunks(join.file, join.layout, (key, *join.columns), _stop))
    cells = {name: pa.concat_arrays([piece.cells[name] for piece in pieces]) for name in (key, *join.columns)}
    _check_unique(join.file, key, cells[key], np.concatenate([piece.lines for piece in pieces]))
    return _Side(join, cells[key], {name: cells[name] for name in join.columns})


def _check_unique(file: Path, key: str, keys: pa.Array, lines: Int64) -> None:
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    firsts = np.unique(codes, return_index=True)[1]
    if len(firsts) < len(codes):
        again = int(np.setdiff1d(np.arange(len(codes)), firsts)[0])
        raise DataError(
            f"{file}:{lines[again]}: column {key}: {keys[again].as_py()!r} stands here a second time; "
            "keep one line for each key."
        )


def _stop(bad: BadLine) -> None:
    raise DataError(f"{bad.file}:{bad.line}: {bad.reason}.")
