"""What a raw format must offer: a source names its columns, yields chunks of raw cells, and reports bad lines.

A source reads files in order, as often as it is asked, and finds the same lines and the same bad lines each time. It
knows how cells are cut out of lines and nothing about what becomes of them.

`BadLines` receives the lines that cannot be used: it raises a `DataError` at the first, or counts them and writes
place, reason and text of each to `bad-lines.txt`, and raises if their share is too large. Only the last pass writes the
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

import pyarrow as pa

from foresee.base.arrays import Int64
from foresee.data.columns import Columns
from foresee.errors import DataError

BAD_LINES_FILE = "bad-lines.txt"


@dataclass(frozen=True, slots=True)
class BadLine:
    """One line that cannot be used."""

    file: Path
    line: int
    """Counted from 1; in Parquet, the row."""
    reason: str
    """`column NAME: expected ..., found ...; what to do`."""
    text: str


ReportBadLine = Callable[[BadLine], None]


class BadLines:
    """Receives the bad lines of one pass."""

    def __init__(self, mode: Literal["stop", "keep"], file: Path | None = None) -> None:
        self.count = 0
        self._mode = mode
        self._path = file
        self._file: IO[str] | None = None
        self._first: BadLine | None = None

    def __call__(self, bad: BadLine) -> None:
        if self._mode == "stop":
            raise DataError(f"{bad.file}:{bad.line}: {bad.reason}, or set bad lines aside with --bad-lines keep.")
        self.count += 1
        self._first = self._first or bad
        if self._path is not None:
            if self._file is None:
                self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115
            self._file.write(f"{bad.file}:{bad.line}\t{bad.reason}\t{bad.text}\n")

    def check_share(self, num_good: int, share_max: float) -> None:
        """Raise if more than `share_max` of all lines are bad."""
        total = self.count + num_good
        if self._first is None or self.count <= share_max * total:
            return
        first = self._first
        raise DataError(
            f"{self.count} of {total} lines are bad ({self.count / total:.2%}), more than the share of "
            f"{share_max:.2%} that is allowed; the first is {first.file}:{first.line}: {first.reason}, or allow more "
            "with --bad-share-max."
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


SplitMode = Literal["order", "time", "random", "files"]


@dataclass(frozen=True, slots=True)
class RawChunk:
    """Some lines of one file, as columns of cells."""

    file: Path
    lines: Int64  # [samples]: line (or row) numbers, from 1
    cells: dict[str, pa.Array]
    """Strings, or what a typed format has; "" and null are missing."""
    text: Callable[[int], str]
    """The whole line of the i-th sample, for reports."""
    bytes_done: int
    """How far into the file reading has come."""

    @property
    def num_samples(self) -> int:
        return len(self.lines)


class Source(Protocol):
    """A raw log, as `foresee prepare` reads it: its files, its columns, and its samples as chunks of cells."""

    @property
    def name(self) -> str:
        """The format's name."""
        ...

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file with samples, in the order they are read."""
        ...

    @property
    def columns(self) -> Columns: ...

    @property
    def default_split(self) -> SplitMode:
        """How this format is split if the person does not say."""
        ...

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        """All samples, in order. Lines that have no cells to speak of go to `report`."""
        ...


def check_files(files: tuple[Path, ...]) -> None:
    """Missing and empty files are refused before anything is read."""
    if not files:
        raise DataError("no file is named; name at least one.")
    for file in files:
        if file.is_dir():
            raise DataError(f"{file}: this is a folder; name the files in it.")
        if not file.exists():
            raise DataError(f"{file}: there is no such file; check the path.")
        if file.stat().st_size == 0:
            raise DataError(f"{file}: the file is empty; leave it out or fetch it again.")


def check_names(wanted: tuple[str, ...], found: tuple[str, ...], where: str) -> None:
    """Every wanted column has to be there, once."""
    for name in wanted:
        if name not in found:
            raise DataError(
                f"{where}: column {name!r} is not among the columns ({_shown(found)}); "
                "name one of these, or give the columns' names with --column-names."
            )
        if found.count(name) > 1:
            places = [str(place) for place, other in enumerate(found, 1) if other == name]
            raise DataError(
                f"{where}: column {name!r} stands {len(places)} times in the header (columns {', '.join(places)}), "
                "so which one is meant is not clear; give every column a name of its own with --column-names."
            )


def _shown(names: tuple[str, ...]) -> str:
    """Names for a sentence, however many and long they are."""
    cut = [name if len(name) <= 40 else f"{name[:40]}…" for name in names[:40]]
    return ", ".join(cut) + (f", … {len(names) - 40} more" if len(names) > 40 else "")
