"""Raw cells in, checked values out: labels, numbers, values of categories, times.

In: a `RawChunk` of strings or typed cells and what the columns mean. Out: a `Chunk` of the samples that are fine; the
others are reported by line, with what was expected and what was found. Nothing is rounded, clipped or guessed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from foresee.arrays import Float32, Float64
from foresee.data.cells import Mask, as_strings, is_list, is_text, numbers_of, to_mask, to_numpy, values_of
from foresee.data.columns import Categorical, Columns, Dense, Label, spelled
from foresee.data.order import Times
from foresee.data.source import BadLine, RawChunk, ReportBadLine
from foresee.io.urls import Place


@dataclass(frozen=True, slots=True)
class Chunk:
    """Checked samples of one file."""

    file: Place
    labels: Float32  # [samples], or [samples, labels]
    dense: tuple[Float64, ...]  # one [samples] per dense column, before any transform
    categories: tuple[pa.Array, ...]  # one per categorical column: large_string, or a large_list of them
    times: Times | None
    num_skipped: int
    """Samples left out on request (label_skip)."""
    cell_types: tuple[pa.DataType, ...]
    """What the cells of each categorical column were."""
    weights: Float32 | None = None  # [samples]

    @property
    def num_samples(self) -> int:
        return len(self.labels)


class NegativeLabel:
    """What stands for `no click` in a log, 0 or -1: the first one decides, so that a stray -1 is no 0."""

    def __init__(self) -> None:
        self._value: float | None = None

    def of(self, labels: Float64) -> float:
        if self._value is None and (labels < 1).any():
            self._value = float(labels[labels < 1][0])
        return self._value or 0.0

    def __str__(self) -> str:
        return f"{self._value or 0:.0f}"


def convert(
    raw: RawChunk, columns: Columns, report: ReportBadLine, negatives: dict[str, NegativeLabel] | None = None
) -> Chunk:
    """Check every cell; report bad samples in line order; keep the rest.

    `negatives` go from chunk to chunk of one pass, since what stands for a negative label has to stay the same.
    """
    negatives = {} if negatives is None else negatives
    work = _Work(raw)
    skipped = work.skip(columns)
    labels = [
        work.label(label, ~skipped, negatives.setdefault(label.name, NegativeLabel())) for label in columns.targets
    ]
    weights = None if columns.weight is None else work.weights(columns.weight)
    dense = [work.dense(column) for column in columns.dense]
    categories = [work.category(column) for column in columns.categorical]
    times = None if columns.time is None else work.times(columns.time)
    work.send(report, ~skipped)
    good = work.good & ~skipped
    keep = pa.array(good)
    return Chunk(
        raw.file,
        (labels[0] if len(labels) == 1 else np.stack(labels, axis=1))[good],
        tuple(column[good] for column in dense),
        tuple(column.filter(keep) for column in categories),
        None if times is None else times[good],
        int(skipped.sum()),
        tuple(raw.cells[column.name].type for column in columns.categorical),
        None if weights is None else weights[good],
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
        cells = as_strings(self.raw.cells[columns.targets[0].column_name])
        wanted = pa.array(columns.label_skip, pa.large_string())
        return np.asarray(pc.is_in(cells, value_set=wanted).to_numpy(zero_copy_only=False), bool)

    def label(self, label: Label, wanted: Mask, negative: NegativeLabel) -> Float32:
        """Where it may be unknown and its cell is empty: NaN."""
        if not label.optional:
            return self._label(label, wanted, negative, np.zeros(self.raw.num_samples, bool))
        cells = self.raw.cells[label.column_name]
        unknown = to_mask(pc.equal(as_strings(cells), "")) if label.kind == "class" else numbers_of(cells)[1]
        return np.where(unknown, np.float32(np.nan), self._label(label, wanted, negative, unknown))

    def _label(self, label: Label, wanted: Mask, negative: NegativeLabel, unknown: Mask) -> Float32:
        name = label.column_name
        cells = self.raw.cells[name]
        if label.kind == "class":
            return self._classes(label, cells, unknown)
        if label.kind == "number" or label.threshold is not None:
            what = "a finite number" if label.threshold is None else "a number to compare with the threshold"
            values, missing, wrong = numbers_of(cells)
            numbers = values if label.threshold is None else values >= label.threshold
            with np.errstate(over="ignore"):
                found = numbers.astype(np.float32)
            self.reject((missing | wrong | ~np.isfinite(found)) & ~unknown, name, what, "correct the line")
            return found
        values, missing, wrong = numbers_of(_without_words(cells))
        bad = (missing | wrong | ~np.isin(values, (0.0, 1.0, -1.0))) & ~unknown
        remedy = "correct the line, give --label-threshold if it is a rating, leave such lines out with --label-skip"
        self.reject(bad, name, "a label of 0 or 1", remedy)
        known = ~bad & ~unknown
        other = known & (values < 1) & (values != negative.of(values[known & wanted]))
        self.reject(other, name, f"a label of {negative} or 1, as on the lines before", remedy)
        return np.where(values == 1, 1.0, 0.0).astype(np.float32)

    def _classes(self, label: Label, cells: pa.Array, unknown: Mask) -> Float32:
        found = pc.index_in(as_strings(cells), value_set=pa.array(label.classes, pa.large_string()))
        shown = ", ".join(label.classes[:20])
        bad = to_mask(found.is_null()) & ~unknown
        self.reject(bad, label.column_name, f"one of the classes {shown}", "correct the line")
        return to_numpy(found.fill_null(0)).astype(np.float32)

    def weights(self, name: str) -> Float32:
        values, missing, wrong = numbers_of(self.raw.cells[name])
        with np.errstate(over="ignore"):
            bad = missing | wrong | (values < 0) | ~np.isfinite(values.astype(np.float32))
        self.reject(bad, name, "a weight: a number from 0 up", "correct the line")
        return np.where(bad, 0.0, values).astype(np.float32)

    def dense(self, column: Dense) -> Float64:
        values, missing, wrong = numbers_of(self.raw.cells[column.name], column.missing_markers)
        remedy = "correct the line, name a marker of missing values with --missing"
        self.reject(wrong, column.name, "a finite number", remedy)
        if column.missing is None:
            remedy = f"correct the line, say what an empty cell counts as with --dense {spelled(column, 'empty=0')}"
            self.reject(missing, column.name, "a number", remedy)
        return np.where(missing, column.missing or 0.0, values)

    def category(self, column: Categorical) -> pa.Array:
        cells = self.raw.cells[column.name]
        if column.multi_valued:
            return self._bag(cells, column)
        if is_list(cells.type):
            remedy = f"choose how lists are pooled with --categorical {spelled(column, 'mean')}"
            self.reject(np.ones(len(cells), bool), column.name, "one value", remedy)
            return pa.array([""] * len(cells), pa.large_string())
        values = values_of(cells, column)
        if column.num_rows is not None:
            self._reject_ids(_outside(values, column.num_rows), column, "an id")
        return values

    def _bag(self, cells: pa.Array, column: Categorical) -> pa.Array:
        bags = values_of(cells, column)
        if column.num_rows is not None:
            outside = _outside(bags.values, column.num_rows)
            owner = np.repeat(np.arange(len(bags)), np.diff(bags.offsets.to_numpy()))
            bad = np.bincount(owner[outside], minlength=len(bags)) > 0
            self._reject_ids(bad, column, "ids")
        return bags

    def _reject_ids(self, bad: Mask, column: Categorical, what: str) -> None:
        last = (column.num_rows or 0) - 1
        self.reject(bad, column.name, f"{what} from 0 to {last}", f"correct the line, raise num_rows={last + 1}")

    def times(self, name: str) -> Times:
        values, bad = times_of(self.raw.cells[name])
        self.reject(bad, name, "a number or a date and time such as 2017-11-07 09:30:38", "correct the line")
        return values


def times_of(cells: pa.Array) -> tuple[Times, Mask]:
    """(seconds or plain numbers, bad). Dates and times count as seconds since 1970, in UTC unless they name a zone."""
    if pa.types.is_temporal(cells.type):
        try:
            stamps = cells.cast(pa.timestamp("us"), safe=False)
        except pa.ArrowException:  # a time of day without a date, a duration
            return np.zeros(len(cells)), np.ones(len(cells), bool)
    else:
        values, missing, wrong = numbers_of(cells)
        if wrong.sum() * 2 <= (~missing).sum():  # most cells decide what the column is, so that bad ones stand out
            return values, missing | wrong
        stamps = _stamps(pc.replace_substring_regex(as_strings(cells), r"\s*(UTC|GMT)$", "Z"))
    seconds = to_numpy(stamps.cast(pa.int64()).fill_null(0)).astype(np.float64) / 1e6
    return seconds, to_mask(stamps.is_null())


def _stamps(strings: pa.Array) -> pa.Array:
    present = pc.if_else(pc.equal(strings, ""), None, strings).cast(pa.string())
    for zone in (None, "UTC"):
        try:
            return present.cast(pa.timestamp("us", zone)).cast(pa.timestamp("us"))
        except pa.ArrowInvalid:
            continue
    return pa.array([_stamp(cell) for cell in present], pa.timestamp("us"))


def _stamp(cell: Any) -> int | None:
    """Microseconds since 1970 of one cell; None if it cannot be read."""
    for unit, zone in (("us", None), ("us", "UTC"), ("ns", None), ("ns", "UTC")):
        try:
            stamp = cell.cast(pa.timestamp(unit, zone))
        except pa.ArrowInvalid:
            continue
        if stamp.value is None:
            return None
        return int(stamp.value) if unit == "us" else int(stamp.value) // 1000
    return None


def _without_words(cells: pa.Array) -> pa.Array:
    """Text that says true or false becomes 1 or 0."""
    if not is_text(cells.type):
        return cells
    strings = as_strings(cells)
    words = pc.ascii_lower(strings)
    return pc.if_else(pc.equal(words, "true"), "1", pc.if_else(pc.equal(words, "false"), "0", strings))


def _outside(values: pa.Array, num_rows: int) -> Mask:
    digits = to_mask(pc.match_substring_regex(values, r"^[0-9]{1,10}$"))
    ids = to_numpy(pc.if_else(pa.array(digits), values, "0").cast(pa.int64()))
    return ~digits | (ids >= num_rows)
