"""Any CSV or TSV whose columns the person names, plain or packed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from foresee.data.columns import Columns
from foresee.data.formats.delimited import Join, Layout, delimited_chunks, join_chunks
from foresee.data.source import RawChunk, ReportBadLine, SplitMode
from foresee.io.urls import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Csv:
    r"""Any delimited text with one sample a line, such as CSV and TSV.

        foresee prepare csv clicks.csv --out data/clicks --label clicked --dense age:standard:empty=0 \
            --categorical user --categorical item --categorical 'tags:mean:separator=|' --time clicked_at
    """

    name: ClassVar[str] = "csv"

    files: tuple[Place, ...]
    columns: Columns
    separator: Annotated[str, r"What stands between cells; \t is a tab."] = ","
    quoted: Annotated[bool, "Cells may stand in double quotes."] = True
    header: Annotated[bool, "The first line names the columns."] = True
    column_names: Annotated[
        tuple[str, ...] | None,
        "Names of all columns, with commas between: needed without a header; with one, they replace it.",
    ] = None
    encoding: Annotated[str, "Of the text, such as latin-1 or utf-16."] = "utf-8"
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
