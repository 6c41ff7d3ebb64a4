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

from foresee.data.bad_lines import BadLine, ReportBadLine
from foresee.data.batch import Float32
from foresee.data.cells import (
    Float64,
    Mask,
    as_strings,
    is_list,
    numbers_of,
    to_mask,
    to_numpy,
    values_of,
)
from foresee.data.columns import Categorical, Columns, Dense
from foresee.data.source import RawChunk
from foresee.data.split import Times


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
    cell_types: tuple[pa.DataType, ...]
    """What the cells of each categorical column were."""

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
        tuple(raw.cells[column.name].type for column in columns.categorical),
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
        values, missing, wrong = numbers_of(self.raw.cells[columns.label])
        if columns.label_threshold is not None:
            self.reject(missing | wrong, columns.label, "a number to compare with the threshold", "correct the line")
            return (values >= columns.label_threshold).astype(np.float32)
        bad = missing | wrong | ~np.isin(values, (0.0, 1.0))
        self.reject(bad, columns.label, "a label of 0 or 1", "correct the line, give a threshold if it is a rating")
        return np.where(bad, 0.0, values).astype(np.float32)

    def dense(self, column: Dense) -> Float64:
        values, missing, wrong = numbers_of(self.raw.cells[column.name], column.missing_markers)
        self.reject(wrong, column.name, "a finite number", "correct the line")
        if column.missing is None:
            self.reject(missing, column.name, "a number", "correct the line, say what an empty cell counts as")
        return np.where(missing, column.missing or 0.0, values)

    def category(self, column: Categorical) -> pa.Array:
        cells = self.raw.cells[column.name]
        if column.multi_valued:
            return self._bag(cells, column)
        if is_list(cells.type):
            self.reject(np.ones(len(cells), bool), column.name, "one value", "choose pooling sum or mean for lists")
            return pa.array([""] * len(cells), pa.large_string())
        values = values_of(cells, column)
        if column.num_rows is not None:
            self.reject(
                _outside(values, column.num_rows),
                column.name,
                f"an id from 0 to {column.num_rows - 1}",
                "correct the line, raise num_rows",
            )
        return values

    def _bag(self, cells: pa.Array, column: Categorical) -> pa.Array:
        bags = values_of(cells, column)
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


def times_of(cells: pa.Array) -> tuple[Times, Mask]:
    """(seconds or plain numbers, bad). Dates and times count as seconds since 1970."""
    if pa.types.is_temporal(cells.type):
        stamps = cells.cast(pa.timestamp("us"))
    else:
        values, missing, wrong = numbers_of(cells)
        if wrong.sum() * 2 <= (~missing).sum():  # most cells decide what the column is, so that bad ones stand out
            return values, missing | wrong
        strings = as_strings(cells)
        try:
            stamps = pc.if_else(pc.equal(strings, ""), None, strings).cast(pa.string()).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            stamps = pa.array([_stamp(cell) for cell in strings.to_pylist()], pa.timestamp("us"))
    seconds = to_numpy(stamps.cast(pa.int64()).fill_null(0)).astype(np.float64) / 1e6
    return seconds, to_mask(stamps.is_null())


def _stamp(cell: str) -> object:
    try:
        return pa.scalar(cell).cast(pa.timestamp("us")).as_py()
    except pa.ArrowInvalid:
        return None


def _outside(values: pa.Array, num_rows: int) -> Mask:
    digits = to_mask(pc.match_substring_regex(values, r"^[0-9]{1,10}$"))
    ids = to_numpy(pc.if_else(pa.array(digits), values, "0").cast(pa.int64()))
    return ~digits | (ids >= num_rows)
