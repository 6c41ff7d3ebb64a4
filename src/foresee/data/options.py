"""Options of preparing a raw log, whatever its format, and the progress that long jobs report.

`PrepareOptions`: how to split, how to number values, what to do with bad lines. `ReportProgress` is called by a job;
`terminal_progress` draws a bar for each stage, and nothing where the output is not a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from foresee.data.order import Shares
from foresee.data.source import SplitMode
from foresee.errors import DataError


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
        tuple[Path, ...], "A file whose samples are the valid split, whatever the shares. May be given several times."
    ] = ()
    test_files: Annotated[
        tuple[Path, ...], "A file whose samples are the test split, whatever the shares. May be given several times."
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


@contextmanager
def terminal_progress(console: Console | None = None) -> Iterator[ReportProgress]:
    """A `ReportProgress` with one bar for each stage."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (TextColumn("{task.description:<6}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bars:

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield report
