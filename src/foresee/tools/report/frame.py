"""A table of answers: one list of columns, shown in a terminal, written as CSV, or put on a page.

In: flat records and the columns to show of them. Out: cells, a `rich` table, CSV text, a table of a page. A figure that
does not exist is None in a record, a dash in a table and empty in a CSV.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foresee.tools.report.page import PageTable

if TYPE_CHECKING:
    from rich.table import Table

Value = str | int | float | None
Record = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of a record, and how it is shown."""

    key: str
    label: str
    form: str | None = None
    """A format of numbers; None for text, which is on the left."""
    scale: float = 1.0
    unit: str = ""

    def cell(self, record: Record) -> str:
        """Return the figure as text; a dash if the record has none."""
        value = record[self.key]
        if value is None:
            return "–"
        if self.form is None or isinstance(value, str):
            return str(value)
        return format(value if self.scale == 1.0 else value * self.scale, self.form) + self.unit


@dataclass(frozen=True, slots=True)
class Frame:
    """Records and the columns to show of them."""

    columns: Sequence[Column]
    records: Sequence[Record]

    def rows(self) -> list[list[str]]:
        """Return the cells of every record."""
        return [[column.cell(record) for column in self.columns] for record in self.records]

    def table(self, style: Callable[[Record], str | None] = lambda record: None) -> Table:
        """Return a table for a terminal; `style` highlights records."""
        from rich.table import Table

        table = Table()
        for column in self.columns:
            table.add_column(column.label, justify="left" if column.form is None else "right")
        for record, cells in zip(self.records, self.rows(), strict=True):
            table.add_row(*cells, style=style(record))
        return table

    def page_table(self, marked: Callable[[Record], bool] = lambda record: False) -> PageTable:
        """Return a table for a page; `marked` highlights records."""
        places = frozenset(place for place, record in enumerate(self.records) if marked(record))
        return PageTable(columns=[column.label for column in self.columns], rows=self.rows(), marked=places)


def as_csv(records: Sequence[Record], keys: Sequence[str] | None = None) -> str:
    """Write one line for each record; `keys` are all of the first one by default."""
    text = io.StringIO()
    writer = csv.DictWriter(text, keys or list(records[0]), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
