"""Edges as lines of text (TSV, CSV, any separator; plain or packed) or rows of Parquet: pairs or triples.

Columns are found by name, or by their number: two are head and tail, three head, relation and tail, four a weight
more. Nodes may stand in a file of their own, one a line or row, with a label and a split; features are then an array
with one row for each of its lines. Without such a file nodes that are numbers are described in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from foresee.arrays import Bool, Int64
from foresee.data.cells import as_strings, numbers_of, to_mask
from foresee.data.formats.delimited import Layout, delimited_chunks, header_names, tabbed
from foresee.data.formats.parquet import is_parquet, open_parquet, parquet_chunks
from foresee.data.formats.text import line_blocks
from foresee.data.order import SPLIT_NAMES
from foresee.data.source import BadLine, RawChunk, ReportBadLine, check_files, check_names
from foresee.errors import DataError
from foresee.graph.formats.source import (
    DRAWN,
    NOWHERE,
    UNPACKED_MAX_GB,
    EdgeChunk,
    NodeChunk,
    report_rows,
    rows_at_once,
    whole_numbers,
)
from foresee.io.urls import Place, shown, size_of

BY_POSITION = {2: ("head", "tail"), 3: ("head", "relation", "tail"), 4: ("head", "relation", "tail", "weight")}
FIRST_LINE, NAME_COLUMN = "correct the first line", "call the column of names name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A graph in files of lines or rows."""

    name: ClassVar[str] = "tables"
    notes: ClassVar[tuple[str, ...]] = ()

    edge_files: tuple[Place, ...]
    """Those of train, or of all splits."""
    valid_files: Annotated[
        tuple[Place, ...], "A file with the edges of the valid split. May be given several times."
    ] = ()
    test_files: Annotated[
        tuple[Place, ...], "A file with the edges of the test split. May be given several times."
    ] = ()
    head: Annotated[str | None, "The column with the node that an edge leaves."] = None
    relation: Annotated[str | None, "The column with the relation of an edge."] = None
    tail: Annotated[str | None, "The column with the node that an edge enters."] = None
    weight: Annotated[str | None, "The column with the weight of an edge, a number."] = None
    separator: Annotated[
        str | None, r"What stands between cells; \t is a tab. Without it: tab, comma or space, as in the first line."
    ] = None
    header: Annotated[bool, "The first line names the columns. So it does where --head and others name some."] = False
    comment: Annotated[str | None, "Leave out lines that begin with this, such as # in SNAP's files."] = None
    encoding: Annotated[str, "Of the text, such as latin-1 or utf-16."] = "utf-8"
    num_nodes: Annotated[
        int | None, "Nodes are the numbers below this, with edges or without; else they are names."
    ] = None
    node_file: Annotated[
        Place | None,
        "A file with one node a line or row: its name, or columns called name, label and split (train, valid, test "
        "or empty). Names the columns in its first line if it has several.",
    ] = None
    features: Annotated[
        Place | None, "A .npy file with a row of numbers for each line of --node-file, or for each number of a node."
    ] = None
    labels: Annotated[Place | None, "A .npy file with a class for each node, in the same order; below 0: none."] = None
    unpacked_max_gb: Annotated[int, "Refuse an archive that unpacks to more than this many GB."] = UNPACKED_MAX_GB

    def __post_init__(self) -> None:
        own = tuple(path for path in (self.node_file, self.features, self.labels) if path is not None)
        for path in (self.features, self.labels):
            if isinstance(path, str):
                raise DataError(f"{shown(path)}: an array is mapped, so it has to be on this machine; copy it here.")
        check_files(self.files)
        if self.num_nodes is None and self.node_file is None and own:
            raise DataError(
                f"{shown(own[0])}: its rows are those of nodes, but which is whose is not known; name the nodes in the "
                "same order with --node-file, or give --num-nodes if they are numbers."
            )

    @property
    def files(self) -> tuple[Place, ...]:
        nodes = tuple(path for path in (self.features, self.labels, self.node_file) if path is not None)
        return (*self.edge_files, *self.valid_files, *self.test_files, *nodes)

    @property
    def has_nodes(self) -> bool:
        return any(path is not None for path in (self.node_file, self.features, self.labels))

    def edges(self, report: ReportBadLine) -> Iterator[EdgeChunk]:
        held_out = bool(self.valid_files or self.test_files)
        files = [(file, 0 if held_out else DRAWN) for file in self.edge_files]
        files += [(file, 1) for file in self.valid_files] + [(file, 2) for file in self.test_files]
        sizes = [size_of(file) or 0 for file, _ in files]
        for number, (file, split) in enumerate(files):
            for raw, roles in self._raw(file, report):
                done = (sum(sizes[:number]) + raw.bytes_done, sum(sizes))
                yield self._edge_chunk(raw, roles, split, done, report)

    def _raw(self, file: Place, report: ReportBadLine) -> Iterator[tuple[RawChunk, dict[str, str]]]:
        """Chunks of a file, and which column has which role."""
        if is_parquet(file):
            with open_parquet(file) as opened:
                found = tuple(opened.schema_arrow.names)
            roles = self._roles(found, shown(file))
            yield from ((chunk, roles) for chunk in parquet_chunks(file, tuple(roles.values())))
            return
        layout, found = self._layout(file)
        roles = self._roles(found, f"{shown(file)}:1")
        quiet = report if self.comment is None else _without_comments(report, self.comment)
        yield from ((chunk, roles) for chunk in delimited_chunks(file, layout, tuple(roles.values()), quiet))

    def _layout(self, file: Place) -> tuple[Layout, tuple[str, ...]]:
        first = _first_line(file, self.encoding, self.comment)
        separator = tabbed(self.separator or "") or next((mark for mark in "\t, " if mark in first), "\t")
        if self.header or set(self._named.values()) - set(BY_POSITION[4]):
            layout = Layout(separator=separator, quoted=separator == ",", header=True, encoding=self.encoding)
            return layout, header_names(file, layout)
        names = BY_POSITION.get(first.count(separator) + 1)
        if names is None:
            raise DataError(
                f"{shown(file)}:1: expected 2 to 4 columns (head, tail; or head, relation, tail, weight), found "
                f"{first.count(separator) + 1} with {separator!r} between; give another --separator, or a file whose "
                "first line names its columns with --header and --head, --relation, --tail, --weight."
            )
        return Layout(separator=separator, quoted=separator == ",", names=names, encoding=self.encoding), names

    @property
    def _named(self) -> dict[str, str]:
        """Columns that were given by name, by their roles."""
        given = {role: getattr(self, role) for role in BY_POSITION[4]}
        return {role: column for role, column in given.items() if column is not None}

    def _roles(self, found: tuple[str, ...], where: str) -> dict[str, str]:
        named = self._named
        if not named:
            roles = BY_POSITION.get(len(found))
            if roles is None or (set(BY_POSITION[4]) & set(found)) - set(roles):
                roles = tuple(role for role in BY_POSITION[4] if role in found)
            named = dict(zip(roles, roles if set(roles) <= set(found) else found, strict=True))
        for role in ("head", "tail"):
            if role not in named:
                raise DataError(f"{where}: which column is the {role} is not known; say so with --{role} COLUMN.")
        check_names(tuple(named.values()), found, where, otherwise=FIRST_LINE)
        return named

    def _edge_chunk(
        self, raw: RawChunk, roles: dict[str, str], split: int, done: tuple[int, int], report: ReportBadLine
    ) -> EdgeChunk:
        cells: dict[str, Any] = {role: raw.cells[column] for role, column in roles.items()}
        if self.comment is not None:
            told = ~to_mask(pc.starts_with(as_strings(cells["head"]), self.comment))
            cells = {role: column.filter(pa.array(told)) for role, column in cells.items()}
            raw = RawChunk(raw.file, raw.lines[told], {}, _Renumbered(raw, np.flatnonzero(told)), raw.bytes_done)
        bad = np.zeros(len(cells["head"]), bool)
        for role in ("head", "tail", "relation"):
            if role in cells:
                cells[role], wrong = self._node_cells(cells[role]) if role != "relation" else _text_cells(cells[role])
                _report(raw, wrong & ~bad, role, roles[role], self.num_nodes if role != "relation" else None, report)
                bad |= wrong
        weights = None
        if "weight" in cells:
            values, missing, wrong = numbers_of(cells["weight"])
            reason = f"column {roles['weight']}: expected a number as weight; correct the line"
            report_rows(raw, (missing | wrong) & ~bad, reason, report)
            bad |= missing | wrong
            weights = values.astype(np.float32)
        good = pa.array(~bad)
        kept = {role: _filtered(cells.get(role), ~bad, good) for role in ("head", "tail", "relation")}
        return EdgeChunk(
            split=split, heads=kept["head"], tails=kept["tail"], relations=kept["relation"],
            weights=None if weights is None else weights[~bad], done=done,
        )  # fmt: skip

    def _node_cells(self, cells: pa.Array) -> tuple[Any, Bool]:
        if self.num_nodes is None:
            return _text_cells(cells)
        values, wrong = whole_numbers(cells)
        return values, wrong | (values >= self.num_nodes)

    def nodes(self, report: ReportBadLine) -> Iterator[NodeChunk]:
        arrays = _NodeArrays(self.features, self.labels)
        if self.node_file is None:
            assert self.num_nodes is not None
            arrays.check_length(self.num_nodes, "as --num-nodes says")
            size = rows_at_once(arrays.num_features)
            for start in range(0, self.num_nodes, size):
                yield arrays.chunk(start, min(size, self.num_nodes - start), {})
            return
        start = 0
        for columns in self._node_columns(self.node_file, report):
            num = len(columns["names"])
            yield arrays.chunk(start, num, columns)
            start += num
        arrays.check_length(start, f"as {shown(self.node_file)} has nodes")
        if self.num_nodes is not None and start != self.num_nodes:
            raise DataError(
                f"{shown(self.node_file)}: expected {self.num_nodes:,} nodes, as --num-nodes says, found {start:,}; "
                "name every node once."
            )

    def _node_columns(self, file: Place, report: ReportBadLine) -> Iterator[dict[str, Any]]:
        for raw in _node_chunks(file, self.separator, self.encoding, report):
            names, wrong = _text_cells(raw.cells["name"])
            report_rows(raw, wrong, "column name: expected the name of a node, found nothing; correct the line", report)
            columns: dict[str, Any] = {"names": names.filter(pa.array(~wrong))}
            if "label" in raw.cells:
                columns["labels"] = as_strings(raw.cells["label"]).filter(pa.array(~wrong))
            if "split" in raw.cells:
                columns["splits"] = _split_codes(raw, report)[~wrong]
            yield columns


@dataclass(frozen=True, slots=True)
class _Renumbered:
    """Texts of the rows that were kept."""

    raw: RawChunk
    rows: NDArray[np.intp]

    def __call__(self, index: int) -> str:
        return self.raw.text(int(self.rows[index]))


class _NodeArrays:
    """Features and labels of nodes in some order, out of `.npy` files."""

    def __init__(self, features: Place | None, labels: Place | None) -> None:
        self._paths = (features, labels)
        self._features = None if features is None else load_npy(features, 2, "fiub")
        self._labels = None if labels is None else load_npy(labels, 1, "iu")

    @property
    def num_features(self) -> int:
        return 0 if self._features is None else int(self._features.shape[1])

    def check_length(self, num_nodes: int, why: str) -> None:
        for path, array in zip(self._paths, (self._features, self._labels), strict=True):
            if array is not None and len(array) != num_nodes:
                raise DataError(
                    f"{path}: expected {num_nodes:,} rows, {why}, found {len(array):,}; give a row for every node."
                )

    def chunk(self, start: int, num: int, columns: dict[str, Any]) -> NodeChunk:
        stop, more = start + num, dict(columns)
        if self._features is not None:
            more["features"] = np.array(self._features[start:stop], np.float32)
        if self._labels is not None:
            more["labels"] = np.array(self._labels[start:stop], np.int64)
        return NodeChunk(num=num, **more)


def load_npy(path: Place, num_axes: int, kinds: str) -> NDArray[Any]:
    """An array of numbers in a file, mapped."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as a .npy array ({error}); write it with numpy.save.") from None
    if not isinstance(array, np.ndarray) or array.ndim != num_axes or array.dtype.kind not in kinds:
        what = f"{array.dtype} of shape {array.shape}" if isinstance(array, np.ndarray) else "several arrays"
        words = "rows of numbers" if num_axes == 2 else "one whole number for each node"
        raise DataError(f"{path}: expected {words}, found {what}; write the right array with numpy.save.")
    return array


def _node_chunks(file: Place, separator: str | None, encoding: str, report: ReportBadLine) -> Iterator[RawChunk]:
    known = ("name", "label", "split")
    if is_parquet(file):
        with open_parquet(file) as opened:
            found = tuple(opened.schema_arrow.names)
        check_names(("name",), found, shown(file), otherwise=NAME_COLUMN)
        yield from parquet_chunks(file, tuple(column for column in known if column in found))
        return
    first = _first_line(file, encoding, None)
    mark = separator or next((mark for mark in "\t," if mark in first), "\t")
    if mark not in first:
        layout = Layout(separator=mark, names=("name",), encoding=encoding)
        yield from delimited_chunks(file, layout, ("name",), report)
        return
    layout = Layout(separator=mark, quoted=mark == ",", header=True, encoding=encoding)
    found = header_names(file, layout)
    check_names(("name",), found, f"{shown(file)}:1", otherwise=NAME_COLUMN)
    yield from delimited_chunks(file, layout, tuple(column for column in known if column in found), report)


def _split_codes(raw: RawChunk, report: ReportBadLine) -> Int64:
    texts = as_strings(raw.cells["split"])
    places = pc.index_in(texts, value_set=pa.array([*SPLIT_NAMES, ""], pa.large_string()))
    codes: Int64 = places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    report_rows(raw, codes < 0, "column split: expected train, valid, test or nothing; correct the line", report)
    return np.where((codes < 0) | (codes == len(SPLIT_NAMES)), NOWHERE, codes)


def _report(raw: RawChunk, wrong: Bool, role: str, column: str, num_nodes: int | None, report: ReportBadLine) -> None:
    if num_nodes is None:
        reason = (
            f"column {column}: expected the name of a {'relation' if role == 'relation' else 'node'}, found nothing"
        )
    else:
        reason = f"column {column}: expected a whole number below {num_nodes:,} as {role}, since --num-nodes says so"
    report_rows(raw, wrong, f"{reason}; correct the line", report)


def _text_cells(cells: pa.Array) -> tuple[pa.Array, Bool]:
    texts = as_strings(cells)
    return texts, to_mask(pc.equal(texts, ""))


def _filtered(cells: Any, good: Bool, as_arrow: pa.Array) -> Any:
    if cells is None or good.all():
        return cells
    return cells[good] if isinstance(cells, np.ndarray) else cells.filter(as_arrow)


def _without_comments(report: ReportBadLine, comment: str) -> ReportBadLine:
    def told(bad: BadLine) -> None:
        if not bad.text.startswith(comment):
            report(bad)

    return told


def _first_line(file: Place, encoding: str, comment: str | None) -> str:
    for block in line_blocks(file, encoding=encoding, block_bytes=1 << 16):
        for line in block.data.decode("utf-8", "replace").split("\n"):
            if line.strip() and (comment is None or not line.startswith(comment)):
                return line.rstrip("\r")
    raise DataError(f"{shown(file)}: there is no line with an edge; leave the file out or fetch it again.")
