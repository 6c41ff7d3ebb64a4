"""How results are printed: tables whole at any width, never a cut number or name.

In: a rich table. Out: the same on a terminal, columns folded at words until it fits; where even that is too wide, as
several tables one below the other, each with the first column. A pipe or file has no width, so lines are as long as
they need to be; COLUMNS gives one a width.

Numbers in sentences: 1 shard, 2 shards, 1,000 shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

from foresee.data.source import ReportProgress

UNBOUNDED = 100_000

FRAME = 3
"""Characters that a column takes beside its content: a space on each side and a line."""


def terminal(*, stderr: bool = False, file: IO[str] | None = None) -> Console:
    """The terminal that results go to; what is no terminal is as wide as its content."""
    console = Console(stderr=stderr, file=file)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = UNBOUNDED
    return console


def show(console: Console, *parts: RenderableType) -> None:
    """Prints texts as they are, to be wrapped by the terminal, and tables so that nothing of them is cut."""
    for part in parts:
        if isinstance(part, Table):
            for table in fitted(console, part):
                console.print(table, highlight=False, markup=False)
        else:
            console.print(part, highlight=False, markup=False, soft_wrap=True)


def fitted(console: Console, table: Table) -> list[Table]:
    """The table, or parts of it with as many columns as fit."""
    sizes = [_size(console, column, header=table.show_header) for column in table.columns]
    groups = _groups([needed for needed, _ in sizes], console.width - 1)
    return [_part(table, group, sizes, console.width - 1, first=group is groups[0]) for group in groups]


def _size(console: Console, column: Column, *, header: bool) -> tuple[int, int]:
    """(least width that cuts nothing, width that folds nothing) of a column; numbers, on the right, do not fold."""
    least = most = 1
    for place, cell in enumerate([column.header, *column.cells]):
        if place == 0 and not header:
            continue
        found = Measurement.get(console, console.options.update(width=UNBOUNDED, markup=False), cell)
        whole = column.justify == "right" and place > 0
        least, most = max(least, found.maximum if whole else found.minimum), max(most, found.maximum)
    return least, most


def _groups(needed: Sequence[int], width: int) -> list[list[int]]:
    """Columns that go side by side. The first one names the rows, so it begins every group."""
    groups, used = [[0]], FRAME + needed[0]
    for index in range(1, len(needed)):
        if used + FRAME + needed[index] > width and len(groups[-1]) > 1:
            groups.append([0])
            used = FRAME + needed[0]
        groups[-1].append(index)
        used += FRAME + needed[index]
    return groups


def _part(table: Table, group: Sequence[int], sizes: Sequence[tuple[int, int]], width: int, *, first: bool) -> Table:
    part = Table(
        title=table.title if first else None,
        title_justify="left",
        caption=table.caption if first else None,
        show_header=table.show_header,
        header_style=table.header_style,
    )
    widths = _widths([sizes[index] for index in group], width - FRAME * len(group))
    for index, size in zip(group, widths, strict=True):
        column = table.columns[index]
        part.add_column(column.header, justify=column.justify, style=column.style, overflow="fold", width=size)
    cells = [list(table.columns[index].cells) for index in group]
    for number, row in enumerate(table.rows):
        part.add_row(*(column[number] for column in cells), style=row.style, end_section=row.end_section)
    return part


def _widths(sizes: Iterable[tuple[int, int]], room: int) -> list[int]:
    """What is left after the least goes first to columns that lack least."""
    least, most = map(list, zip(*sizes, strict=True))
    if sum(least) > room:  # a single word longer than the whole width is folded, as there is no other way
        least = [min(size, max(1, room // len(least))) for size in least]
    spare = max(0, room - sum(least))
    order: list[Any] = sorted(range(len(least)), key=lambda index: most[index] - least[index])
    for done, index in enumerate(order):
        given = min(most[index] - least[index], spare // (len(order) - done))
        least[index], spare = least[index] + max(0, given), spare - max(0, given)
    return least


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
