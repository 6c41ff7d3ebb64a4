"""The rows of a raw file, scored piece by piece in bounded memory.

In: an exported model and a file of text or Parquet, which is recognised by its first bytes. Out: probabilities in the
order of the file, as text that reads back to the same float32. Lines are cut into cells by the reader that prepares
logs, and a line that it would report is refused: without it, all scores after it would stand at the wrong line. Pieces
are batches of `evaluate`, wherever the file was cut, so that both come to the same digits.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa

from foresee.arrays import Float32
from foresee.data.formats.delimited import Layout, delimited_chunks
from foresee.data.formats.parquet import is_parquet, open_parquet
from foresee.data.source import BadLine, check_files, check_names
from foresee.errors import DataError
from foresee.io.folders import replace_text
from foresee.io.urls import Place, shown
from foresee.run.evaluation import EVALUATION_BATCH_SIZE
from foresee.run.serving.exported import Exported
from foresee.run.serving.raw_reading import RawTable, raw_table

HEADER = "probability"
PIECE_ROWS = 4 * EVALUATION_BATCH_SIZE
_LINE = "\0line"
"""The column in which the lines of rows travel with them; no raw column has such a name."""


def columns_of(model: Exported) -> list[str]:
    """The names of scores: one for each task, one for each class of a task of classes."""
    tasks = model.tasks.tasks
    if len(tasks) == 1 and tasks[0].loss == "binary":
        return [HEADER]
    return [name for task in tasks for name in ([f"{task.name}:{it}" for it in task.classes] or [task.name])]


def score_file(model: Exported, file: Place, layout: Layout) -> Iterator[Float32]:
    """[rows, columns] of a file's rows; `layout` says how text is cut."""
    check_files((file,))
    typed = is_parquet(file)
    tables = _parquet(file, model.columns) if typed else _text(file, layout, model.columns)
    for table in _in_pieces(tables):
        found = model.predictions(_with_places(table, shown(file), "row " if typed else ""))
        yield np.concatenate([it.reshape(len(it), -1) for it in found.values()], axis=1)


def write_scores(scores: Iterable[Float32], columns: list[str], out: Path | None) -> None:
    """One row a line, below a header; a file appears whole or not at all."""
    if out is None:
        sys.stdout.writelines(_lines(scores, columns))
        return
    try:
        replace_text(out, _lines(scores, columns))
    except OSError as error:
        raise DataError(f"{out} cannot be written ({error.strerror}); give --out another path") from error


def _lines(scores: Iterable[Float32], columns: list[str]) -> Iterator[str]:
    names = io.StringIO()
    csv.writer(names, lineterminator="\n").writerow(columns)
    header = names.getvalue()
    for piece in scores:  # so that a file whose beginning cannot be scored prints nothing
        yield header + "".join(f"{','.join(row)}\n" for row in piece.astype(str))
        header = ""
    yield header


def _text(file: Place, layout: Layout, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    for chunk in delimited_chunks(file, layout, columns, _refuse):
        yield pa.table({**chunk.cells, _LINE: chunk.lines})


def _parquet(file: Place, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    row = 1
    with open_parquet(file, columns) as opened:
        check_names(columns, tuple(opened.schema_arrow.names), shown(file))
        for batch in opened.iter_batches(PIECE_ROWS, columns=list(columns), use_threads=False):
            lines = pa.array(np.arange(row, row + len(batch)))
            yield pa.Table.from_batches([batch]).append_column(_LINE, lines)
            row += len(batch)


def _in_pieces(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of PIECE_ROWS, the last one shorter."""
    rest: pa.Table | None = None
    for table in tables:
        rest = table if rest is None else pa.concat_tables([rest, table])
        while len(rest) >= PIECE_ROWS:
            yield rest.slice(0, PIECE_ROWS)
            rest = rest.slice(PIECE_ROWS)
    if rest is not None and len(rest):
        yield rest


def _with_places(table: pa.Table, file: str, word: str) -> RawTable:
    """The table with sentences that name lines of the file."""
    lines = table.column(_LINE).to_numpy()
    plain = raw_table(table)
    return RawTable(plain.names, plain.column, plain.num_rows, lambda row: f"{file}:{word}{lines[row]}")


def _refuse(bad: BadLine) -> NoReturn:
    raise DataError(f"{bad.where}: {bad.reason}")
