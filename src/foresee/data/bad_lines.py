"""Lines that are not what was promised: stop at the first, or set them aside and count.

In: bad lines, as sources and conversion find them. Out: a `DataError`, or a file `bad-lines.txt` with place, reason and
text of each, and an error if their share is too large. Every pass over a log finds the same bad lines, so only the
last pass writes the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

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
