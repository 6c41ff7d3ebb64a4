"""Any CSV or TSV whose columns the person names, plain or gzip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from foresee.data.bad_lines import ReportBadLine
from foresee.data.columns import Columns
from foresee.data.formats.delimited import Layout, delimited_chunks
from foresee.data.formats.join import Join, join_chunks
from foresee.data.source import RawChunk, SplitMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    """Files with one sample a line."""

    name: ClassVar[str] = "csv"

    files: tuple[Path, ...]
    columns: Columns
    separator: str = ","
    quoted: bool = True
    header: bool = True
    column_names: tuple[str, ...] | None = None
    """Names of all columns: needed without a header; with one, they replace it (if it is damaged, say)."""
    encoding: str = "utf-8"
    joins: tuple[Join, ...] = ()

    @property
    def default_split(self) -> SplitMode:
        return "random" if self.columns.time is None else "time"

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        yield from join_chunks(self._own_chunks(report), self.joins)

    def _own_chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        layout = Layout(
            separator=self.separator,
            quoted=self.quoted,
            header=self.header,
            names=self.column_names,
            encoding=self.encoding,
        )
        wanted = own_names(self.columns, self.joins)
        for file in self.files:
            yield from delimited_chunks(file, layout, wanted, report)


def own_names(columns: Columns, joins: tuple[Join, ...]) -> tuple[str, ...]:
    """Columns the log itself has to have: those that are not joined, and the keys."""
    joined = {name for join in joins for name in join.columns}
    own = [name for name in columns.names if name not in joined]
    return tuple(dict.fromkeys([*own, *(join.key for join in joins)]))
