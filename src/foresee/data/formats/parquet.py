"""Parquet files whose columns the person names. Cells keep their types; lists are bags already.

In errors, "line" is the row, counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foresee.data.columns import Columns
from foresee.data.formats.csv import own_names
from foresee.data.formats.delimited import Join, join_chunks
from foresee.data.source import RawChunk, ReportBadLine, SplitMode, check_names, open_raw
from foresee.errors import DataError
from foresee.io.readahead import StoredStream
from foresee.io.urls import Place, shown, size_of

CHUNK_SAMPLES = 65_536
MAGIC = b"PAR1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parquet:
    """Parquet files with one sample a row; lists are columns with several values (NAME:mean or NAME:sum).

        foresee prepare parquet ratings.parquet --out data/ratings --label rating --label-threshold 8 \\
            --label-skip 0 --categorical user_id --categorical anime_id
    """

    name: ClassVar[str] = "parquet"

    files: tuple[Place, ...]
    columns: Columns
    joins: tuple[Join, ...] = ()

    @property
    def default_split(self) -> SplitMode:
        return "random" if self.columns.time is None else "time"

    def chunks(self, report: ReportBadLine) -> Iterator[RawChunk]:
        wanted = own_names(self.columns, self.joins)
        own = (chunk for file in self.files for chunk in parquet_chunks(file, wanted))
        yield from join_chunks(own, self.joins)


def parquet_chunks(file: Place, wanted: tuple[str, ...]) -> Iterator[RawChunk]:
    """The wanted columns of one file, some rows at a time."""
    with open_parquet(file, wanted) as opened:
        check_names(wanted, tuple(opened.schema_arrow.names), shown(file))
        total, size, row = max(1, opened.metadata.num_rows), size_of(file) or 0, 0
        for batch in opened.iter_batches(CHUNK_SAMPLES, columns=list(wanted), use_threads=False):
            cells = {name: batch.column(name) for name in wanted}
            lines = np.arange(row + 1, row + 1 + len(batch))
            row += len(batch)
            yield RawChunk(file, lines, cells, _RowText(batch), size * row // total)


@contextmanager
def open_parquet(file: Place, wanted: tuple[str, ...] = ()) -> Iterator[pq.ParquetFile]:
    """A file of which these columns will be read, row group by row group; whatever is wrong with it is a sentence.

    At a URL their bytes and no others are fetched, ahead of whoever decodes them.
    """
    try:
        with open_raw(file) as raw:
            _check_magic(raw.read(4), file)
            if isinstance(raw, StoredStream):
                # Or else it reads what lies between columns, too.
                parquet = pq.ParquetFile(pa.PythonFile(raw, "r"), pre_buffer=False)
                raw.expect(column_ranges(parquet.metadata, wanted))
            else:
                parquet = pq.ParquetFile(file)
            with parquet:
                yield parquet
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"{shown(file)}: cannot be read as Parquet ({reason}); check the file or fetch it again."
        ) from None


def is_parquet(file: Place) -> bool:
    """By its first bytes."""
    with open_raw(file) as stream:
        return stream.read(4) == MAGIC


def column_ranges(metadata: pq.FileMetaData, wanted: tuple[str, ...]) -> list[tuple[int, int]]:
    """Where columns lie in their file, in the order in which they are decoded."""
    leaves = [metadata.schema.column(index).path.split(".")[0] for index in range(metadata.num_columns)]
    chosen = [index for name in wanted for index, leaf in enumerate(leaves) if leaf == name]
    found = []
    for number in range(metadata.num_row_groups):
        for column in map(metadata.row_group(number).column, chosen):
            begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
            found.append((begin, begin + column.total_compressed_size))
    return found


def _check_magic(start: bytes, file: Place) -> None:
    if start != MAGIC:
        raise DataError(
            f"{shown(file)}: this is no Parquet file (it does not begin with PAR1); use `foresee prepare csv` if it is "
            "text."
        )


@dataclass(frozen=True, slots=True)
class _RowText:
    batch: pa.RecordBatch

    def __call__(self, index: int) -> str:
        return str(self.batch.slice(index, 1).to_pylist()[0])
