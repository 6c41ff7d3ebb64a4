"""What the columns of a raw log mean: label, dense, categorical, time.

Said by the person or by a format; no file is touched here. A `Columns` is checked when it is made, so a wrong
combination is one sentence before any file is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from foresee.errors import DataError

Transform = Literal["none", "log1p", "standard"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """A column of numbers."""

    name: str
    transform: Transform = "none"
    """`log1p`: ln(1 + x), negative numbers counting as 0. `standard`: mean 0 and deviation 1 over the train split."""
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

    label: str
    dense: tuple[Dense, ...] = ()
    categorical: tuple[Categorical, ...]
    time: str | None = None
    """When the sample happened: a number, or an ISO date and time. Needed to split by time."""
    label_threshold: float | None = None
    """A rating of at least this is a positive sample. None: labels are 0 and 1."""
    label_skip: tuple[str, ...] = ()
    """Samples whose label cell is one of these are left out (a rating of 0 that means `not rated`)."""

    def __post_init__(self) -> None:
        if not self.categorical:
            raise DataError("no categorical column is named, so there would be no table; name at least one.")
        settings: dict[str, tuple[object, ...]] = {}
        for column in self.categorical:
            found = (column.min_count, column.hash_buckets, column.num_rows)
            if settings.setdefault(column.table_name, found) != found:
                raise DataError(
                    f"column {column.name}: table {column.table_name} is shared, but with other min_count, "
                    "hash_buckets or num_rows; give all its columns the same."
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that has to be read, once."""
        every = [self.label, *(it.name for it in self.dense), *(it.name for it in self.categorical), self.time]
        return tuple(dict.fromkeys(name for name in every if name is not None))
