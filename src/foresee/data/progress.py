"""How far a long job is: a callable that jobs call, and one that draws a bar on a terminal.

Silent when the output is not a terminal, so logs of batch jobs stay clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

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
