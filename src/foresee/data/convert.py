"""Raw cells in, checked values out: labels, numbers, values of categories, times.

In: a `RawChunk` of strings or typed cells and what the columns mean. Out: a `Chunk` of the samples that are fine; the
others are reported by line, with what was expected and what was found. Nothing is rounded, clipped or guessed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from foresee.data.bad_lines import BadLine, ReportBadLine
from foresee.data.batch import Float32
from foresee.data.columns import Categorical, Columns, Dense
from foresee.data.source import RawChunk
from foresee.data.split import Times

Mask = NDArray[np.bool_]
Float64 = NDArray[np.float64]

_NUMBER = r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$"
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Checked samples of one file."""

    file: Path
    labels: Float32  # [samples]
    dense: tuple[Float64, ...]  # one [samples] per dense column, before any transform
    categories: tuple[pa.Array, ...]  # one per categorical column: large_string, or a large_list of them
    times: Times | None
    num_skipped: int
    """Samples left out on request (label_skip)."""

    @property
    def num_samples(self) -> int:
        return len(self.labels)


def convert(raw: RawChunk, columns: Columns, report: ReportBadLine) -> Chunk:
    """Check every cell; report bad samples in line order; keep the rest."""
    work = _Work(raw)
    skipped = work.skip(columns)
    labels = work.labels(columns)
    dense = [work.dense(column) for column in columns.dense]
    categories = [work.category(column) for column in columns.categorical]
    times = None if columns.time is None else work.times(columns.time)
    work.send(report, ~skipped)
    good = work.good & ~skipped
    keep = pa.array(good)
    return Chunk(
        raw.file,
        labels[good],
        tuple(column[good] for column in dense),
        tuple(column.filter(keep) for column in categories),
        None if times is None else times[good],
        int(skipped.sum()),
    )


class _Work:
    """One chunk under inspection: which samples are bad, and why (the first reason counts)."""

    def __init__(self, raw: RawChunk) -> None:
        self.raw = raw
        self.good: Mask = np.ones(raw.num_samples, bool)
        self._reasons: dict[int, str] = {}

    def reject(self, bad: Mask, column: str, expected: str, remedy: str) -> None:
        for index in np.flatnonzero(bad & self.good):
            cell = self.raw.cells[column][int(index)].as_py()
            found = "an empty cell" if cell is None or cell == "" else repr(cell)
            self._reasons[int(index)] = f"column {column}: expected {expected}, found {found}; {remedy}"
        self.good &= ~bad

    def send(self, report: ReportBadLine, wanted: Mask) -> None:
        for index in sorted(self._reasons):
            if wanted[index]:
                line = int(self.raw.lines[index])
                report(BadLine(self.raw.file, line, self._reasons[index], self.raw.text(index)))

    def skip(self, columns: Columns) -> Mask:
        if not columns.label_skip:
            return np.zeros(self.raw.num_samples, bool)
        cells = as_strings(self.raw.cells[columns.label])
        wanted = pa.array(columns.label_skip, pa.large_string())
        return np.asarray(pc.is_in(cells, value_set=wanted).to_numpy(zero_copy_only=False), bool)

    def labels(self, columns: Columns) -> Float32:
        values, missing, wrong = numbers(self.raw.cells[columns.label])
        if columns.label_threshold is not None:
            self.reject(missing | wrong, columns.label, "a number to compare with the threshold", "correct the line")
            return (values >= columns.label_threshold).astype(np.float32)
        bad = missing | wrong | ~np.isin(values, (0.0, 1.0))
        self.reject(bad, columns.label, "a label of 0 or 1", "correct the line, give a threshold if it is a rating")
        return np.where(bad, 0.0, values).astype(np.float32)

    def dense(self, column: Dense) -> Float64:
        values, missing, wrong = numbers(self.raw.cells[column.name])
        self.reject(wrong, column.name, "a finite number", "correct the line")
        if column.missing is None:
            self.reject(missing, column.name, "a number", "correct the line, say what an empty cell counts as")
        return np.where(missing, column.missing or 0.0, values)

    def category(self, column: Categorical) -> pa.Array:
        cells = self.raw.cells[column.name]
        if column.multi_valued:
            return self._bag(cells, column)
        if _is_list(cells):
            self.reject(np.ones(len(cells), bool), column.name, "one value", "choose pooling sum or mean for lists")
            return pa.array([""] * len(cells), pa.large_string())
        values = as_strings(cells)
        if column.num_rows is not None:
            self.reject(
                _outside(values, column.num_rows),
                column.name,
                f"an id from 0 to {column.num_rows - 1}",
                "correct the line, raise num_rows",
            )
        return values

    def _bag(self, cells: pa.Array, column: Categorical) -> pa.Array:
        bags = bags_of(cells, column.separator)
        if column.num_rows is not None:
            outside = _outside(bags.values, column.num_rows)
            owner = np.repeat(np.arange(len(bags)), np.diff(bags.offsets.to_numpy()))
            bad = np.bincount(owner[outside], minlength=len(bags)) > 0
            self.reject(bad, column.name, f"ids from 0 to {column.num_rows - 1}", "correct the line, raise num_rows")
        return bags

    def times(self, name: str) -> Times:
        values, bad = times_of(self.raw.cells[name])
        self.reject(bad, name, "a number or a date and time such as 2017-11-07 09:30:38", "correct the line")
        return values


def numbers(cells: pa.Array) -> tuple[Float64, Mask, Mask]:
    """(values, missing, wrong) of number cells; values are 0 where the cell is missing or wrong."""
    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.int8())
    if pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type) or pa.types.is_decimal(cells.type):
        missing = _mask(cells.is_null())
        values = _numpy(cells.cast(pa.float64(), safe=False).fill_null(0.0))
    else:
        strings = as_strings(cells)
        missing = _mask(pc.equal(strings, ""))
        try:
            values = _numpy(pc.if_else(pa.array(missing), "0", strings).cast(pa.float64()))
        except pa.ArrowInvalid:
            usable = _mask(pc.match_substring_regex(strings, _NUMBER))
            values = _numpy(pc.if_else(pa.array(usable), strings, "0").cast(pa.float64()))
            wrong = ~usable & ~missing | ~(np.abs(values) <= _FLOAT32_MAX)
            return np.where(wrong, 0.0, values), missing, wrong
    wrong = ~(np.abs(values) <= _FLOAT32_MAX)  # NaN compares false: it is wrong too
    return np.where(wrong, 0.0, values), missing, wrong


def times_of(cells: pa.Array) -> tuple[Times, Mask]:
    """(seconds or plain numbers, bad). Dates and times count as seconds since 1970."""
    if pa.types.is_temporal(cells.type):
        stamps = cells.cast(pa.timestamp("us"))
    else:
        values, missing, wrong = numbers(cells)
        if wrong.sum() * 2 <= (~missing).sum():  # most cells decide what the column is, so that bad ones stand out
            return values, missing | wrong
        strings = as_strings(cells)
        try:
            stamps = pc.if_else(pc.equal(strings, ""), None, strings).cast(pa.string()).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            stamps = pa.array([_stamp(cell) for cell in strings.to_pylist()], pa.timestamp("us"))
    seconds = _numpy(stamps.cast(pa.int64()).fill_null(0)).astype(np.float64) / 1e6
    return seconds, _mask(stamps.is_null())


def _stamp(cell: str) -> object:
    try:
        return pa.scalar(cell).cast(pa.timestamp("us")).as_py()
    except pa.ArrowInvalid:
        return None


def bags_of(cells: pa.Array, separator: str | None) -> pa.Array:
    """Lists of values without surrounding spaces; a missing cell is an empty list, missing values are left out."""
    if not _is_list(cells):
        strings = as_strings(cells)
        if separator is not None:
            cells = pc.split_pattern(strings, separator)
        else:
            cells = pa.LargeListArray.from_arrays(np.arange(len(strings) + 1), strings)
    cells = cells.fill_null([]) if cells.null_count else cells
    lengths = _numpy(pc.list_value_length(cells)).astype(np.int64)
    values = pc.utf8_trim_whitespace(as_strings(cells.flatten()))
    present = _mask(pc.not_equal(values, ""))
    owner = np.repeat(np.arange(len(lengths)), lengths)[present]
    ends = np.searchsorted(owner, np.arange(len(lengths) + 1))
    return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), values.filter(pa.array(present)))


def as_strings(cells: pa.Array) -> pa.Array:
    """Cells as text; null becomes the empty string."""
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    if cells.type != pa.large_string():
        cells = cells.cast(pa.large_string())
    return cells.fill_null("") if cells.null_count else cells


def _outside(values: pa.Array, num_rows: int) -> Mask:
    digits = _mask(pc.match_substring_regex(values, r"^[0-9]{1,10}$"))
    ids = _numpy(pc.if_else(pa.array(digits), values, "0").cast(pa.int64()))
    return ~digits | (ids >= num_rows)


def _is_list(cells: pa.Array) -> bool:
    kind = cells.type
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _numpy(array: pa.Array) -> Float64:
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _mask(array: pa.Array) -> Mask:
    return np.array(array.to_numpy(zero_copy_only=False), bool)
