"""What a raw format must offer: a source names its columns, yields chunks of raw cells, and reports bad lines.

A source reads files in order, as often as it is asked, and finds the same lines and the same bad lines each time. It
knows how cells are cut out of lines and nothing about what becomes of them; that is `PrepareOptions` (how to split, how
to number values, what to do with bad lines). `BadLines` raises a `DataError` at the first line that cannot be used, or
counts them and writes place, reason and text of each to `bad-lines.txt`, and raises if their share is too large.
`ReportProgress` is called by long jobs; `terminal_progress` draws a bar for each stage of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal, Protocol, get_args

import pyarrow as pa

from foresee.arrays import Int64
from foresee.data.columns import Columns
from foresee.data.order import Shares
from foresee.errors import DataError
from foresee.io.urls import Place, opened, shown, size_of

BAD_LINES_FILE = "bad-lines.txt"


@dataclass(frozen=True, slots=True)
class BadLine:
    """One line that cannot be used."""

    file: Place
    line: int
    """Counted from 1; in Parquet, the row."""
    reason: str
    """`column NAME: expected ..., found ...; what to do`."""
    text: str

    @property
    def where(self) -> str:
        """`file:line`, for people."""
        return f"{shown(self.file)}:{self.line}"


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
            raise DataError(f"{bad.where}: {bad.reason}, or set bad lines aside with --bad-lines keep.")
        self.count += 1
        self._first = self._first or bad
        if self._path is not None:
            if self._file is None:
                self._file = open(self._path, "w", encoding="utf-8")  # noqa: SIM115
            self._file.write(f"{bad.where}\t{bad.reason}\t{bad.text}\n")

    def check_share(self, num_good: int, share_max: float) -> None:
        """Raise if more than `share_max` of all lines are bad."""
        total = self.count + num_good
        if self._first is None or self.count <= share_max * total:
            return
        first = self._first
        raise DataError(
            f"{self.count} of {total} lines are bad ({self.count / total:.2%}), more than the share of "
            f"{share_max:.2%} that is allowed; the first is {first.where}: {first.reason}, or allow more "
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

    file: Place
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
    def files(self) -> tuple[Place, ...]:
        """Every file with samples, in the order they are read. URLs only if the field says `Place`."""
        ...

    @property
    def columns(self) -> Columns: ...

    @property
    def default_split(self) -> SplitMode:
        """How this format is split if the person does not say."""
        ...

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        """All samples, in order.

        Args:
            report: Takes lines that have no cells to speak of.
        """
        ...


def check_files(files: Sequence[Place]) -> None:
    """Missing and empty files are refused before anything is read."""
    if not files:
        raise DataError("no file is named; name at least one.")
    for file in files:
        if isinstance(file, Path) and file.is_dir():
            raise DataError(f"{file}: this is a folder; name the files in it.")
        size = size_of(file)
        if size is None:
            remedy = "check the path" if isinstance(file, Path) else "check the URL, and that you may read it"
            raise DataError(f"{shown(file)}: there is no such file; {remedy}.")
        if size == 0:
            raise DataError(f"{shown(file)}: the file is empty; leave it out or fetch it again.")


def open_raw(file: Place) -> IO[bytes]:
    """A file to read; what is wrong with it is a sentence."""
    try:
        return opened(file)
    except OSError as error:
        raise DataError(f"{file}: cannot be opened ({error.strerror}); check the path and its permissions.") from None


def check_names(
    wanted: tuple[str, ...], found: tuple[str, ...], where: str, *,
    otherwise: str = "give the columns' names with --column-names",
) -> None:  # fmt: skip
    """Every wanted column has to be there, once; `otherwise` is what else a person can do."""
    for name in wanted:
        if name not in found:
            raise DataError(
                f"{where}: column {name!r} is not among the columns ({_shown(found)}); "
                f"name one of these, or {otherwise}."
            )
        if found.count(name) > 1:
            places = [str(place) for place, other in enumerate(found, 1) if other == name]
            raise DataError(
                f"{where}: column {name!r} stands {len(places)} times in the header (columns {', '.join(places)}), "
                f"so which one is meant is not clear; every column needs a name of its own: {otherwise}."
            )


def _shown(names: tuple[str, ...]) -> str:
    """Names for a sentence, however many and long they are."""
    cut = [name if len(name) <= 40 else f"{name[:40]}…" for name in names[:40]]
    return ", ".join(cut) + (f", … {len(names) - 40} more" if len(names) > 40 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """What to make of a raw log, whatever its format. The texts are also the help of `foresee prepare`."""

    split: Annotated[
        SplitMode | None,
        "Hold out the last samples (order), the latest (time), some at random, or those of the files named by "
        "--valid-file and --test-file (files). Without it: what suits the format.",
    ] = None
    valid_share: Annotated[float, "Share of the samples that go to the valid split."] = 0.1
    test_share: Annotated[float, "Share of the samples that go to the test split."] = 0.0
    valid_files: Annotated[
        tuple[Place, ...], "A file whose samples are the valid split, whatever the shares. May be given several times."
    ] = ()
    test_files: Annotated[
        tuple[Place, ...], "A file whose samples are the test split, whatever the shares. May be given several times."
    ] = ()
    seed: Annotated[int, "Seed of the random split."] = 0
    min_count: Annotated[
        int, "Values that occur less often in the train split share the unknown row of their table."
    ] = 1
    hash_buckets: Annotated[int | None, "Hash each column into so many rows instead of keeping vocabularies."] = None
    bad_lines: Annotated[
        Literal["stop", "keep"], "Stop at the first bad line, or keep them in bad-lines.txt and go on."
    ] = "stop"
    bad_share_max: Annotated[float, "Give up if more than this share of the lines is bad."] = 0.01
    replace: Annotated[bool, "Replace a prepared log that is already there."] = False

    def __post_init__(self) -> None:
        if self.split not in (None, *get_args(SplitMode)):
            known = ", ".join(get_args(SplitMode))
            raise DataError(f"the split {self.split!r} is not known; use one of {known}.")
        if not (self.valid_share >= 0 and self.test_share >= 0 and self.valid_share + self.test_share < 1):
            raise DataError(
                f"valid_share={self.valid_share} and test_share={self.test_share} leave nothing to train "
                "on; give shares from 0 up that sum to less than 1."
            )
        for name, least in (("min_count", 1), ("hash_buckets", 1), ("seed", 0), ("bad_share_max", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise DataError(f"{name}={value} is too small; give {least} or more.")

    @property
    def shares(self) -> Shares:
        return Shares(valid=self.valid_share, test=self.test_share)


ReportProgress = Callable[[str, int, int], None]
"""Called as report(stage, done, total)."""
