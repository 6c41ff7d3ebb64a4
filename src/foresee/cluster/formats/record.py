"""What a file of jobs gives: the jobs, and what it says about runs that are over.

In: nothing. Out: the types every reader returns, and the one way in which bad rows are reported.
Never: guess a missing value; a reader either has it or says where it expected it.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from foresee.cluster.job import Cluster, Job
from foresee.errors import DataError
from foresee.io.units import counted

YES, NO = ("yes", "true", "1"), ("no", "false", "0")
TEXT_BYTES_MAX = 1 << 30
"""A small compressed file may hold any number of bytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """A job and what was observed of it, where the file knows."""

    job: Job
    wait_seconds: float | None = None
    """Time in the queue before it first ran."""
    num_servers: int | None = None
    utilisation: float | None = None
    """Mean use of its GPUs, 0 to 1."""
    status: str = ""
    finished: bool = False
    """It is over, and beside it in the file are jobs that are not: it is history, not work to plan."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFile:
    records: tuple[JobRecord, ...]
    now_seconds: float = 0.0
    """The moment the file was written, on the clock of the jobs' arrivals: a plan begins there."""
    cluster: Cluster | None = None
    notes: tuple[str, ...] = ()
    """What was left out, and why; one sentence each."""

    @property
    def jobs(self) -> tuple[Job, ...]:
        """What there is to plan."""
        return tuple(record.job for record in self.records if not record.finished)


@dataclass(frozen=True, slots=True)
class Row:
    """Named fields of one row, with its place in the file for complaints."""

    path: Path
    line: int
    fields: Mapping[str, object]

    def complain(self, what: str) -> DataError:
        return DataError(f"{self.path}:{self.line}: {what if len(what) < 1000 else what[:1000] + '…'}")

    def has(self, name: str) -> bool:
        return self.fields.get(name) not in (None, "")

    def text(self, name: str, default: str = "") -> str:
        return str(self.fields[name]).strip() if self.has(name) else default

    def number(
        self, name: str, *, default: float | None = None, least: float = -math.inf, above: float = -math.inf
    ) -> float:
        """A finite number, at least `least` and above `above`."""
        wanted = f"{name} must be a number" + (f" of at least {least:g}" if least > -math.inf else "")
        wanted += f" above {above:g}" if above > -math.inf else ""
        if not self.has(name):
            if default is None:
                raise self.complain(f"{name} is missing; {wanted}")
            return default
        try:
            value = float(str(self.fields[name]))
        except ValueError:
            raise self.complain(f"{name} is {self.fields[name]!r}; {wanted}") from None
        if not math.isfinite(value) or value < least or value <= above:
            raise self.complain(f"{name} is {self.fields[name]!r}; {wanted}")
        return value

    def count(self, name: str, *, least: int = 1) -> int:
        value = self.number(name, least=least)
        if value != int(value):
            raise self.complain(f"{name} is {self.fields[name]!r}; {name} must be a whole number of at least {least}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.text(name, "no").lower()
        if value not in (*YES, *NO):
            raise self.complain(f"{name} is {self.fields[name]!r}; {name} must be yes or no")
        return value in YES

    def moment(self, name: str) -> datetime:
        """A date and time such as 2017-10-09 07:01:55 or 2017-10-09T07:01:55Z."""
        try:
            return datetime.fromisoformat(self.text(name)).replace(tzinfo=None)
        except ValueError:
            raise self.complain(
                f"{name} is {self.text(name)!r}; {name} must be a date and time such as 2017-10-09 07:01:55"
            ) from None


def left_out(number: int, noun: str, reason: str = "") -> list[str]:
    """The note on jobs a reader passed over; none if there were none."""
    what = " ".join(filter(None, [counted(number, noun), reason]))
    return [f"{what} {'was' if number == 1 else 'were'} left out"] if number else []


def read_text(path: Path) -> str:
    """The text of a file, which is compressed if its name ends in .gz."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
        if len(raw) > TEXT_BYTES_MAX:
            raise ValueError(f"it has more than {TEXT_BYTES_MAX:,} bytes")
        return raw.decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path} cannot be read as text: {reason}; give a readable UTF-8 file") from error
