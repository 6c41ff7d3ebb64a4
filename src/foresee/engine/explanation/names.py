"""Rows by the names a person uses: TABLE:ID as the prepared log numbers them, TABLE:=VALUE as the raw log wrote them.

In: an opened log and such a name. Out: the row, and for any row its name, with the raw value where the log kept one.
A plain number is a row id as it stands in plans and in messages. What cannot be found is a DataError that says what
the log has instead.
"""

from __future__ import annotations

import bisect
import difflib
from functools import cached_property
from typing import Any

import pyarrow.compute as pc

from foresee.data.click_log import ClickLog
from foresee.errors import DataError

TABLES_SHOWN = 8


class RowNames:
    """The names of one log's rows."""

    def __init__(self, log: ClickLog) -> None:
        self._log = log
        self._vocabularies: dict[str, Any] = {}

    @cached_property
    def _offsets(self) -> list[int]:
        return list(self._log.table_offsets.values())

    def find(self, name: str) -> int:
        """The row of TABLE:ID, TABLE:=VALUE or a plain row id."""
        if name.isdecimal():
            return self._checked(int(name))
        table, separator, value = name.partition(":=")
        if separator:
            return self._log.table_offsets[self._table(table, name)] + self._id_of_value(table, value)
        table, separator, number = name.rpartition(":")
        if not separator:
            raise DataError(f"--row {name}: this names no row; give TABLE:ID, TABLE:=VALUE or a row id")
        num_rows = dict(self._log.tables)[self._table(table, name)]
        if not number.isdecimal() or int(number) >= num_rows:
            raise DataError(
                f"--row {name}: {number!r} is no id of table {table}, whose ids are 0 to {num_rows - 1}; "
                f"for a value of the raw log write {table}:={number}"
            )
        return self._log.table_offsets[table] + int(number)

    def name(self, row: int) -> str:
        """TABLE:ID of a row."""
        table, number = self._split(row)
        return f"{table}:{number}"

    def value(self, row: int) -> str | None:
        """What the raw log had for this row; None if that is not known, or if the row stands for all rare values."""
        table, number = self._split(row)
        vocabulary = self._vocabulary(table)
        return None if vocabulary is None else vocabulary.column("value")[number].as_py()

    def _split(self, row: int) -> tuple[str, int]:
        # An empty table begins where the next one does: the last that begins here is the one that holds the row.
        place = bisect.bisect_right(self._offsets, row) - 1
        return self._log.tables[place].name, row - self._offsets[place]

    def _checked(self, row: int) -> int:
        if row >= self._log.num_rows:
            raise DataError(f"--row {row}: the log's rows are 0 to {self._log.num_rows - 1}; give one of these")
        return row

    def _table(self, table: str, name: str) -> str:
        known = [entry.name for entry in self._log.tables]
        if table in known:
            return table
        close = difflib.get_close_matches(table, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(known[:TABLES_SHOWN])}"
        hint += f" and {len(known) - TABLES_SHOWN} more" if not close and len(known) > TABLES_SHOWN else ""
        raise DataError(f"--row {name}: the log {self._log.path} has no table {table!r}; {hint}")

    def _id_of_value(self, table: str, value: str) -> int:
        vocabulary = self._vocabulary(table)
        if vocabulary is None:
            kind = self._log.vocabularies[table].kind
            why = "its values were hashed" if kind == "hash" else "its values are ids already"
            raise DataError(f"--row {table}:={value}: table {table} keeps no values ({why}); give {table}:ID")
        place = pc.index(vocabulary.column("value"), value).as_py()
        if place < 0:
            raise DataError(
                f"--row {table}:={value}: the vocabulary of {table} has no value {value!r}; rare and unseen values "
                f"share the row {table}:0"
            )
        return int(vocabulary.column("id")[place].as_py())

    def _vocabulary(self, table: str) -> Any:
        if table not in self._vocabularies:
            self._vocabularies[table] = self._log.vocabulary(table)
        return self._vocabularies[table]
