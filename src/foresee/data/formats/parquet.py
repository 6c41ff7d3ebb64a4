"""Parquet files whose columns the person names. Cells keep their types; lists are bags already.

In errors, "line" is the row, counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foresee.data.columns import Columns
from foresee.data.formats.csv import own_names
from foresee.data.formats.delimited import Join, join_chunks
from foresee.data.source import RawChunk, ReportBadLine, SplitMode, check_names
from foresee.errors import DataError

CHUNK_SAMPLES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Parquet:
    """Parquet files with one sample a row; lists are columns with several values (NAME:mean or NAME:sum).

        foresee prepare parquet ratings.parquet --out data/ratings --label rating --label-threshold 8 \\
            --label-skip 0 --categorical user_id --categorical anime_id
    """

    name: ClassVar[str] = "parquet"

    files: tuple[Path, ...]
    columns: Columns
    joins: tuple[Join, ...] = ()

    @property
    def default_split(self) -> SplitMode:
        return "random" if self.columns.time is None else "time"

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        wanted = own_names(self.columns, self.joins)
        own = (chunk for file in self.files for chunk in parquet_chunks(file, wanted))
        yield from join_chunks(own, self.joins)


def parquet_chunks(file: Path, wanted: tuple[str, ...]) -> Iterator[RawChunk]:
    """The wanted columns of one file, some rows at a time."""
    _check_magic(file)
    try:
        with pq.ParquetFile(file) as opened:
            check_names(wanted, tuple(opened.schema_arrow.names), str(file))
            total, size, row = max(1, opened.metadata.num_rows), file.stat().st_size, 0
            for batch in opened.iter_batches(CHUNK_SAMPLES, columns=list(wanted), use_threads=False):
                cells = {name: batch.column(name) for name in wanted}
                lines = np.arange(row + 1, row + 1 + len(batch))
                row += len(batch)
                yield RawChunk(file, lines, cells, _RowText(batch), size * row // total)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{file}: cannot be read as Parquet ({reason}); check the file or fetch it again.") from None


def _check_magic(file: Path) -> None:
    try:
        with open(file, "rb") as opened:
            start = opened.read(4)
    except OSError as error:
        raise DataError(f"{file}: cannot be opened ({error.strerror}); check the path and its permissions.") from None
    if start != b"PAR1":
        raise DataError(
            f"{file}: this is no Parquet file (it does not begin with PAR1); use `foresee prepare csv` if it is text."
        )


@dataclass(frozen=True, slots=True)
class _RowText:
    batch: pa.RecordBatch

    def __call__(self, index: int) -> str:
        return str(self.batch.slice(index, 1).to_pylist()[0])
