"""What the columns of a raw log mean: labels, weight, dense, categorical, time.

Said by the person or by a format; no file is touched here. A `Columns` is checked when it is made, so a wrong
combination is one sentence before any file is opened.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal, get_args

from foresee.errors import DataError

Transform = Literal["none", "log1p", "standard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """Something to learn: a click, a number, or one of several classes."""

    name: str
    column: str | None = None
    """Where it stands; None: in a column of its own name. Two labels may come from one column."""
    kind: Literal["binary", "number", "class"] = "binary"
    """`binary`: 0 and 1, -1 and 1, or true and false. `number`: a finite number. `class`: one of `classes`."""
    threshold: float | None = None
    """Of a binary label: numbers of at least this are 1, others 0."""
    classes: tuple[str, ...] = ()
    """What cells may say; the first is class 0."""
    optional: bool = False
    """An empty cell is no bad line: the label of that sample is not known, and its task learns nothing from it."""

    def __post_init__(self) -> None:
        if self.threshold is not None and self.kind != "binary":
            raise DataError(f"label {self.name}: a threshold makes a click of a number; leave it out, or {self.kind}.")
        if (self.kind == "class") != bool(self.classes) or len(self.classes) == 1:
            raise DataError(f"label {self.name}: a label of classes, and no other, says which: at least two of them.")
        if len(set(self.classes)) < len(self.classes):
            raise DataError(f"label {self.name}: a class stands there twice; name each once.")

    @property
    def column_name(self) -> str:
        return self.column or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A column of numbers."""

    name: str
    transform: Transform = "none"
    """`log1p`: ln(1 + x), negative numbers counting as 0 (the report says how many). `standard`: mean 0 and deviation 1
    over the train split."""
    missing: float | None = None
    """What an empty cell counts as, before the transform; None: an empty cell is a bad line."""
    missing_markers: tuple[str, ...] = ()
    """Texts that count as an empty cell, such as NULL."""

    def __post_init__(self) -> None:
        if self.transform not in get_args(Transform):
            known = ", ".join(get_args(Transform))
            raise DataError(f"column {self.name}: transform {self.transform!r} is not known; use one of {known}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Categorical:
    """A column of values that become ids: one per sample, or several separated by `separator`."""

    name: str
    table: str | None = None
    """Columns that name the same table share its rows and its vocabulary. None: a table of the column's own name."""
    pooling: Literal["one", "sum", "mean"] = "one"
    """`one`: a single value. `sum` or `mean`: any number of values and how their vectors become one."""
    separator: str | None = None
    """What stands between the values of a cell; None: cells are lists already (Parquet) or single values."""
    min_count: int | None = None
    """Values seen less often share the unknown row; None: as the options say for all columns."""
    hash_buckets: int | None = None
    """Hash values into this many rows instead of keeping a vocabulary; None: as the options say."""
    num_rows: int | None = None
    """Cells are row ids from 0 to num_rows - 1 already: keep them, without a vocabulary or an unknown row."""
    missing_markers: tuple[str, ...] = ()
    """Texts that count as an empty cell or are no value of a list, such as NULL."""

    def __post_init__(self) -> None:
        if self.pooling not in ("one", "sum", "mean"):
            raise DataError(f"column {self.name}: pooling {self.pooling!r} is not known; use one, sum or mean.")
        if self.separator is not None and (self.pooling == "one" or not self.separator):
            raise DataError(
                f"column {self.name}: a separator ({self.separator!r}) needs characters and pooling sum or "
                "mean; give both or neither."
            )
        for option, least in (("min_count", 1), ("hash_buckets", 1), ("num_rows", 1)):
            value = getattr(self, option)
            if value is not None and value < least:
                raise DataError(f"column {self.name}: {option}={value} is too small; give {least} or more.")

    @property
    def table_name(self) -> str:
        return self.table or self.name

    @property
    def multi_valued(self) -> bool:
        return self.pooling != "one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """All columns that are read; others are left out."""

    label: str = ""
    """The column that says whether it was a click. Left out where `labels` say what is to be learned."""
    dense: tuple[Dense, ...] = ()
    categorical: tuple[Categorical, ...]
    time: str | None = None
    """When the sample happened: a number, or an ISO date and time, with or without a zone (then UTC). Needed to split
    by time."""
    label_threshold: float | None = None
    """A rating of at least this is a positive sample. None: labels are 0 and 1, -1 and 1, or true and false."""
    label_skip: tuple[str, ...] = ()
    """Samples whose (first) label cell is one of these are left out (a rating of 0 that means `not rated`)."""
    labels: tuple[Label, ...] = ()
    """Several labels, or one that is no click."""
    weight: str | None = None
    """A column of numbers from 0 up: how much each sample counts in the loss."""

    def __post_init__(self) -> None:
        if bool(self.label) == bool(self.labels):
            raise DataError("no label is named, or both a column of clicks and labels; name either, with --label.")
        if self.labels and self.label_threshold is not None:
            raise DataError(
                "a threshold of all labels is given beside labels of their own; write it to the label it belongs to, "
                "as in --label liked:column=rating:threshold=4."
            )
        if not self.categorical:
            raise DataError(
                "no categorical column is named, so there would be no table; name at least one with --categorical."
            )
        self._check_once()
        settings: dict[str, tuple[object, ...]] = {}
        for column in self.categorical:
            found = (column.min_count, column.hash_buckets, column.num_rows)
            if settings.setdefault(column.table_name, found) != found:
                raise DataError(
                    f"column {column.name}: table {column.table_name} is shared, but with other min_count, "
                    "hash_buckets or num_rows; give all its columns the same."
                )

    def _check_once(self) -> None:
        features = [*(it.name for it in self.dense), *(it.name for it in self.categorical)]
        names = [it.name for it in self.targets]
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"label {name!r} is named twice; give each a name of its own.")
        answer = next((it.column_name for it in self.targets if it.column_name in features), None)
        if answer is not None:
            raise DataError(
                f"column {answer!r} is the label and a feature too, so the model would be told the answer; "
                "leave it out of the features."
            )
        for name in features:
            if features.count(name) > 1:
                raise DataError(f"column {name!r} is named as a feature twice; leave out one of them.")

    @property
    def targets(self) -> tuple[Label, ...]:
        """What is to be learned."""
        return self.labels or (Label(name=self.label, threshold=self.label_threshold),)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that has to be read, once."""
        labels = [it.column_name for it in self.targets]
        every = [
            *labels,
            self.weight,
            *(it.name for it in self.dense),
            *(it.name for it in self.categorical),
            self.time,
        ]
        return tuple(dict.fromkeys(name for name in every if name is not None))


def spelled(column: Dense | Categorical, setting: str) -> str:
    """A column with one more setting, as it can be typed into a shell; `column_syntax` reads it."""
    own = column.transform if isinstance(column, Dense) else column.pooling
    words = [column.name.replace(":", "\\:"), *([own] if own not in ("none", "one") else []), setting]
    return shlex.quote(":".join(words))
