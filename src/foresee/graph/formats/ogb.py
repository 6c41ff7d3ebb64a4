"""OGB's folder layout: `raw/` with edges, features and labels, `split/NAME/` with the nodes of each split.

Text (`edge.csv.gz`, `num-node-list.csv.gz`, `node-feat.csv.gz`, `node-label.csv.gz`, `edge_reltype.csv.gz`,
`edge_weight.csv.gz`) and binary (`data.npz`, `node-label.npz`) data sets of one graph are read. Link data sets keep
their held-out edges in `.pt` files, which can run code when they are read: those are left alone, and the person is
told so. Features in text become an array on disk first, so that memory does not grow with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foresee.arrays import Int64
from foresee.data.cells import numbers_of
from foresee.data.formats.delimited import Layout, delimited_chunks
from foresee.data.formats.text import line_blocks
from foresee.data.order import SPLIT_NAMES
from foresee.data.source import BadLine, ReportBadLine
from foresee.errors import DataError
from foresee.graph.formats.npz import Members
from foresee.graph.formats.source import DRAWN, NOWHERE, UNPACKED_MAX_GB, EdgeChunk, NodeChunk, rows_at_once
from foresee.graph.npy import ArrayWriter

EDGES_AT_ONCE = 1 << 18


def is_ogb(folder: Path) -> bool:
    """Does a folder look like a data set of OGB?"""
    return (folder / "raw" / "edge.csv.gz").exists() or (folder / "raw" / "data.npz").exists()


@dataclass(frozen=True, slots=True)
class Ogb:
    """One graph of OGB, its parts as arrays that are mapped."""

    name: ClassVar[str] = "ogb"

    files: tuple[Path, ...]
    num_nodes: int
    ends: NDArray[Any]  # [edges, 2]
    relations: NDArray[Any] | None  # [edges]
    weights: NDArray[Any] | None  # [edges]
    labels: NDArray[Any] | None  # [nodes]
    features: NDArray[Any] | None  # [nodes, features]
    splits: NDArray[np.int8] | None  # [nodes]
    notes: tuple[str, ...]

    @staticmethod
    def open(folder: Path, temporary: Path, max_gb: int = UNPACKED_MAX_GB) -> Ogb:
        raw = folder / "raw"
        parts = _binary(raw, temporary, max_gb) if (raw / "data.npz").exists() else _text(raw, temporary)
        graph = Ogb(splits=_splits(folder, parts["num_nodes"]), notes=_notes(folder), **parts)
        graph._check(raw)
        return graph

    @property
    def has_nodes(self) -> bool:
        return any(part is not None for part in (self.labels, self.features, self.splits))

    def _check(self, raw: Path) -> None:
        sizes = {"edge_reltype": self.relations, "edge_weight": self.weights}
        for what, array in sizes.items():
            if array is not None and len(array) != len(self.ends):
                raise DataError(
                    f"{raw}: {what} has {len(array):,} lines for {len(self.ends):,} edges; fetch the data set again."
                )
        for what, array in {"node-label": self.labels, "node-feat": self.features}.items():
            if array is not None and len(array) != self.num_nodes:
                raise DataError(
                    f"{raw}: {what} has {len(array):,} rows for {self.num_nodes:,} nodes; give a row for every node."
                )

    def edges(self, report: ReportBadLine) -> Iterator[EdgeChunk]:
        total = len(self.ends)
        for start in range(0, total, EDGES_AT_ONCE):
            some = slice(start, min(total, start + EDGES_AT_ONCE))
            heads, tails = np.array(self.ends[some], np.int64).T
            wrong = (heads < 0) | (tails < 0) | (heads >= self.num_nodes) | (tails >= self.num_nodes)
            for index in np.flatnonzero(wrong):
                reason = f"expected two numbers below {self.num_nodes:,}; correct the line"
                report(BadLine(self.files[0], start + int(index) + 1, reason, f"{heads[index]},{tails[index]}"))
            relations = None if self.relations is None else np.array(self.relations[some], np.int64)[~wrong]
            weights = None if self.weights is None else np.array(self.weights[some], np.float32)[~wrong]
            yield EdgeChunk(
                split=0 if self.notes else DRAWN, heads=heads[~wrong], tails=tails[~wrong], relations=relations,
                weights=weights, done=(some.stop, total),
            )  # fmt: skip

    def nodes(self, report: ReportBadLine) -> Iterator[NodeChunk]:
        size = rows_at_once(0 if self.features is None else self.features.shape[1])
        for start in range(0, self.num_nodes, size):
            some = slice(start, min(self.num_nodes, start + size))
            yield NodeChunk(
                num=some.stop - start,
                labels=None if self.labels is None else np.array(self.labels[some], np.int64),
                splits=None if self.splits is None else self.splits[some].astype(np.int64),
                features=None if self.features is None else np.array(self.features[some], np.float32),
            )


def _text(raw: Path, temporary: Path) -> dict[str, Any]:
    ends = _array(raw / "edge.csv.gz", temporary, np.int64, 2)
    assert ends is not None
    counts = _array(raw / "num-node-list.csv.gz", temporary, np.int64, 1)
    if counts is None or len(counts) != 1:
        found = 0 if counts is None else len(counts)
        raise DataError(f"{raw / 'num-node-list.csv.gz'}: expected one graph, found {found}; give a data set of one.")
    relations = _array(raw / "edge_reltype.csv.gz", temporary, np.int64, 1)
    weights = _array(raw / "edge_weight.csv.gz", temporary, np.float32, 1)
    labels = _array(raw / "node-label.csv.gz", temporary, np.int64, 1)
    return {
        "files": (raw / "edge.csv.gz",),
        "num_nodes": int(counts[0, 0]),
        "ends": ends,
        "relations": None if relations is None else relations[:, 0],
        "weights": None if weights is None else weights[:, 0],
        "labels": None if labels is None else labels[:, 0],
        "features": _array(raw / "node-feat.csv.gz", temporary, np.float32, None),
    }


def _binary(raw: Path, temporary: Path, max_gb: int) -> dict[str, Any]:
    members = Members(raw / "data.npz", temporary, max_gb)
    labels = None
    if (raw / "node-label.npz").exists():
        floats = Members(raw / "node-label.npz", temporary, max_gb).get("node_label", 2, "fiu")
        if floats.shape[1] != 1:
            raise DataError(f"{raw / 'node-label.npz'}: expected one class a node, found {floats.shape[1]} columns.")
        labels = _whole(np.asarray(floats[:, 0]))
    return {
        "files": (raw / "data.npz",),
        "num_nodes": int(members.get("num_nodes_list", 1, "iu")[0]),
        "ends": members.get("edge_index", 2, "iu").T,
        "relations": None,
        "weights": None,
        "labels": labels,
        "features": members.get("node_feat", 2, "f") if "node_feat" in members.names else None,
    }


def _array(path: Path, temporary: Path, dtype: Any, width: int | None) -> NDArray[Any] | None:
    """The numbers of a text file as an array on disk, or None if there is no file; missing whole numbers are -1."""
    if not path.exists():
        return None
    out = temporary / f"{path.name.split('.')[0]}.npy"
    first = next((block.data.split(b"\n")[0] for block in line_blocks(path, block_bytes=1 << 16)), b"")
    num_columns = first.count(b",") + 1
    if width is not None and num_columns != width:
        raise DataError(f"{path}:1: expected {width} columns, found {num_columns}; fetch the data set again.")
    names = tuple(str(place) for place in range(num_columns))
    with ArrayWriter(out, dtype, (num_columns,)) as writer:
        for chunk in delimited_chunks(path, Layout(separator=",", names=names), names, _stop):
            columns = [_numbers(chunk.cells[name], path, chunk.lines) for name in names]
            rows = np.stack(columns, axis=1)
            writer.append(_whole(rows) if dtype is np.int64 else rows)
    array: NDArray[Any] = np.load(out, mmap_mode="r")
    return array


def _numbers(cells: pa.Array, path: Path, lines: Int64) -> NDArray[np.float64]:
    texts = pa.compute.if_else(pa.compute.equal(pa.compute.utf8_lower(cells), "nan"), "", cells)
    values, missing, wrong = numbers_of(texts)
    if wrong.any():
        raise DataError(f"{path}:{lines[int(np.flatnonzero(wrong)[0])]}: expected numbers; fetch the data set again.")
    return np.where(missing, np.nan, values)


def _whole(values: NDArray[Any]) -> Int64:
    return np.where(np.isnan(values), -1, values).astype(np.int64)


def _splits(folder: Path, num_nodes: int) -> NDArray[np.int8] | None:
    """The split of each node, by the first folder below `split` that has files of nodes."""
    places = sorted(path.parent for path in folder.glob("split/*/train.csv.gz"))
    if not places:
        return None
    codes = np.full(num_nodes, NOWHERE, np.int8)
    for code, name in enumerate(SPLIT_NAMES):
        path = places[0] / f"{name}.csv.gz"
        for chunk in delimited_chunks(path, Layout(separator=",", names=("node",)), ("node",), _stop):
            nodes = _whole(_numbers(chunk.cells["node"], path, chunk.lines))
            wrong = (nodes < 0) | (nodes >= num_nodes)
            if wrong.any():
                place = int(np.flatnonzero(wrong)[0])
                raise DataError(
                    f"{path}:{chunk.lines[place]}: expected a node below {num_nodes:,}, found {nodes[place]}; "
                    "fetch the data set again."
                )
            codes[nodes] = code
    return codes


def _notes(folder: Path) -> tuple[str, ...]:
    held_out = sorted(folder.glob("split/*/*.pt"))
    if not held_out:
        return ()
    return (
        f"{held_out[0].parent}: its .pt files can run code when they are read, so held-out edges are not read from "
        "them and every edge of raw/ is in train (as OGB means it); write valid and test as text and prepare files",
    )


def _stop(bad: BadLine) -> None:
    raise DataError(f"{bad.where}: {bad.reason}.")
