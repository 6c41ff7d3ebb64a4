"""Lines with separators (TSV, CSV, `::`) as chunks of string cells.

The fast path gives a whole block to Arrow's CSV parser. If Arrow refuses it, or sees another number of rows than there
are lines, the block is taken line by line: good lines go through the fast path together, bad ones are reported with
their numbers. One line is one sample: cells may be quoted but cannot hold a newline.

Columns of a second, small file added to a log by a key: a film's genres, a user's age.

The second file is held in memory. A key that it does not have gives missing cells, so the unknown row; a key that it
has twice is an error.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from foresee.arrays import Int64
from foresee.data.cells import as_strings
from foresee.data.formats.text import LineBlock, line_blocks
from foresee.data.source import BadLine, RawChunk, ReportBadLine, check_files, check_names
from foresee.errors import DataError
from foresee.io.urls import Place, shown

_UNIT_SEPARATOR = b"\x1f"  # stands in for separators of several characters, which Arrow does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How lines are cut into cells."""

    separator: str
    quoted: bool = False
    """Cells may stand in double quotes."""
    header: bool = False
    """The first line names the columns."""
    names: tuple[str, ...] | None = None
    """The columns' names, if there is no header or it is wrong; then they replace it."""
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        if not self.separator:
            raise DataError("the separator is empty; give the character that stands between cells.")
        if not self.header and self.names is None:
            raise DataError("without a header the columns' names have to be given, with --column-names A,B,C.")


def delimited_chunks(path: Place, layout: Layout, wanted: tuple[str, ...], report: ReportBadLine) -> Iterator[RawChunk]:
    """The wanted columns of all good lines of a file."""
    names: tuple[str, ...] | None = None
    for block in line_blocks(path, encoding=layout.encoding):
        if names is None:
            block, names = _header(path, block, layout)
            check_names(wanted, names, f"{shown(path)}:1")
        if block.data:
            yield _chunk(path, block, layout, names, wanted, report)


def header_names(path: Place, layout: Layout) -> tuple[str, ...]:
    """The names in a file's first line."""
    for block in line_blocks(path, encoding=layout.encoding, block_bytes=1 << 16):
        return _header(path, block, layout)[1]
    raise DataError(f"{shown(path)}: the file is empty; leave it out or fetch it again.")


def _header(path: Place, block: LineBlock, layout: Layout) -> tuple[LineBlock, tuple[str, ...]]:
    if not layout.header:
        return block, layout.names or ()
    first, rest = block.data.split(b"\n", 1)
    try:
        found = _cells(first.rstrip(b"\r").decode("utf-8"), layout)
    except UnicodeDecodeError as error:
        raise DataError(f"{shown(path)}:1: {_not_utf8(first, error)}.") from None
    except csv.Error as error:
        remedy = f"correct it, or check that {layout.separator!r} stands between cells"
        raise DataError(f"{shown(path)}:1: the header cannot be cut into names ({error}); {remedy}.") from None
    if layout.names is not None and len(layout.names) != len(found):
        raise DataError(
            f"{shown(path)}:1: {len(layout.names)} names are given for a header of {len(found)} columns; "
            "give one name for each column with --column-names."
        )
    return LineBlock(2, rest, block.bytes_done), layout.names or tuple(found)


def _chunk(
    path: Place,
    block: LineBlock,
    layout: Layout,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    report: ReportBadLine,
) -> RawChunk:
    num_lines = block.data.count(b"\n")
    table = _parse(block.data, layout, names, wanted) if _ends_whole(block, layout, len(names)) else None
    if table is not None and len(table) == num_lines:
        lines: Int64 = np.arange(block.first_line, block.first_line + num_lines)
        return _raw_chunk(path, lines, table, block)
    kept = _good_lines(path, block, layout, names, report)
    good = b"".join(text + b"\n" for _, text in kept)
    table = _parse(good, layout, names, wanted)
    if table is None or len(table) != len(kept):
        raise DataError(
            f"{shown(path)}:{block.first_line}: the lines after this one cannot be cut into {len(names)} cells; "
            "check the separator and the quotes."
        )
    return _raw_chunk(path, np.array([line for line, _ in kept], np.int64), table, LineBlock(0, good, block.bytes_done))


def _ends_whole(block: LineBlock, layout: Layout, num_columns: int) -> bool:
    # A quote left open swallows the lines after it, so rows are missing; in the last line there is nothing to miss.
    if not layout.quoted or b'"' not in block.data:
        return True
    last = block.data[block.data.rfind(b"\n", 0, -1) + 1 : -1]
    return _reason(last.rstrip(b"\r"), layout, num_columns) is None


def _raw_chunk(path: Place, lines: Int64, table: pa.Table, block: LineBlock) -> RawChunk:
    def text(index: int) -> str:
        return block.data.split(b"\n", index + 1)[index].decode("utf-8", "replace").rstrip("\r")

    cells = {name: table.column(name).combine_chunks() for name in table.column_names}
    return RawChunk(path, lines, cells, text, block.bytes_done)


def _parse(data: bytes, layout: Layout, names: tuple[str, ...], wanted: tuple[str, ...]) -> pa.Table | None:
    if not data:
        return pa.table({name: pa.array([], pa.large_string()) for name in wanted})
    separator = layout.separator.encode()
    if len(separator) > 1:
        data, separator = data.replace(separator, _UNIT_SEPARATOR), _UNIT_SEPARATOR
    # Positions instead of names: a header may name two columns alike, only the wanted ones are checked to be unique.
    places = [names.index(name) for name in wanted]
    columns = [str(place) for place in range(len(names))]
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(column_names=columns, use_threads=False, block_size=len(data) + 1),
            parse_options=pa_csv.ParseOptions(
                delimiter=separator.decode(),
                quote_char='"' if layout.quoted else False,
                ignore_empty_lines=False,
            ),
            convert_options=pa_csv.ConvertOptions(
                include_columns=[str(place) for place in dict.fromkeys(places)],
                column_types=dict.fromkeys(columns, pa.large_string()),
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowException:
        return None
    return pa.table({name: table.column(str(place)) for name, place in zip(wanted, places, strict=True)})


def _good_lines(
    path: Place, block: LineBlock, layout: Layout, names: tuple[str, ...], report: ReportBadLine
) -> list[tuple[int, bytes]]:
    kept = []
    for number, raw in enumerate(block.data.split(b"\n")[:-1], block.first_line):
        line = raw.rstrip(b"\r")
        if not line.strip():
            continue  # blank lines, most often the last, carry nothing
        reason = _reason(line, layout, len(names))
        if reason is None:
            kept.append((number, line))
        else:
            report(BadLine(path, number, reason, line.decode("utf-8", "replace")))
    return kept


def _reason(line: bytes, layout: Layout, num_columns: int) -> str | None:
    """Why a line cannot be cut into cells; None if it can."""
    try:
        cells = _cells(line.decode("utf-8"), layout)
    except UnicodeDecodeError as error:
        return _not_utf8(line, error)
    except csv.Error as error:
        return f"expected every quote to be closed in its line ({error}); correct the line"
    if b"\r" in line:
        return "expected no carriage return inside a line; correct the line"
    if len(cells) == 1 and num_columns > 1:
        remedy = f"correct the line, check that {layout.separator!r} stands between cells"
        return f"expected {num_columns} columns, found 1; {remedy}"
    if len(cells) != num_columns:
        return f"expected {num_columns} columns, found {len(cells)}; correct the line"
    return None


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    found = f"found byte 0x{line[error.start]:02x}"
    return f"expected UTF-8 text, {found}; name the file's encoding, such as --encoding latin-1"


def _cells(line: str, layout: Layout) -> list[str]:
    if layout.quoted and len(layout.separator) == 1:
        return next(csv.reader([line], delimiter=layout.separator, strict=True), [""])
    return line.split(layout.separator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Which columns come from which file."""

    file: Place
    key: str
    """A column of both: of the log, and of the file (unless `file_key` says otherwise)."""
    columns: tuple[str, ...]
    layout: Layout
    file_key: str | None = None


@dataclass(frozen=True, slots=True)
class _Side:
    join: Join
    keys: pa.Array
    cells: dict[str, pa.Array]


def join_chunks(chunks: Iterator[RawChunk], joins: tuple[Join, ...]) -> Iterator[RawChunk]:
    """Every chunk with the joined columns beside its own."""
    sides = [_load(join) for join in joins]
    for chunk in chunks:
        cells = dict(chunk.cells)
        for side in sides:
            places = pc.index_in(as_strings(cells[side.join.key]), value_set=side.keys)
            cells |= {name: column.take(places) for name, column in side.cells.items()}
        yield replace(chunk, cells=cells)


def _load(join: Join) -> _Side:
    check_files((join.file,))
    key = join.file_key or join.key
    pieces = list(delimited_chunks(join.file, join.layout, (key, *join.columns), _stop))
    cells = {name: pa.concat_arrays([piece.cells[name] for piece in pieces]) for name in (key, *join.columns)}
    _check_unique(join.file, key, cells[key], np.concatenate([piece.lines for piece in pieces]))
    return _Side(join, cells[key], {name: cells[name] for name in join.columns})


def _check_unique(file: Place, key: str, keys: pa.Array, lines: Int64) -> None:
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    firsts = np.unique(codes, return_index=True)[1]
    if len(firsts) < len(codes):
        again = int(np.setdiff1d(np.arange(len(codes)), firsts)[0])
        raise DataError(
            f"{shown(file)}:{lines[again]}: column {key}: {keys[again].as_py()!r} stands here a second time; "
            "keep one line for each key."
        )


def _stop(bad: BadLine) -> None:
    raise DataError(f"{bad.where}: {bad.reason}.")


def tabbed(separator: str) -> str:
    r"""A separator as typed: \t is a tab."""
    return separator.replace("\\t", "\t")
