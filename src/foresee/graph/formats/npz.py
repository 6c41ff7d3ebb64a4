"""Graphs in one `.npz` file: edges or a sparse adjacency, labels, and sparse or dense features, nodes as numbers.

Two layouts are known: `edges` [edges, 2] with `labels` and `feature_indptr`, `feature_indices`, `feature_values`
(ones where they are missing) and `num_features`; and `adj_data`, `adj_indices`, `adj_indptr`, `attr_*` (or
`attr_matrix`), `labels`, as in the gnn-benchmark collection. Members are unpacked one by one and mapped, so memory
does not grow with them. Nothing in the file is ever run.
"""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.data.source import ReportBadLine
from foresee.errors import DataError
from foresee.graph.formats.source import DRAWN, UNPACKED_MAX_GB, EdgeChunk, NodeChunk, Unpacking, rows_at_once
from foresee.graph.formats.tables import load_npy
from foresee.io.urls import Place, name_of, opened, shown

EDGE_ROWS = 1 << 18


class Members:
    """The arrays of an `.npz` file, unpacked when they are asked for."""

    def __init__(self, path: Place, temporary: Path, max_gb: int = UNPACKED_MAX_GB) -> None:
        self._path, self._folder, self._where = path, temporary / name_of(path), shown(path)
        self._folder.mkdir(exist_ok=True)
        self._unpacking = Unpacking(self._where, self._folder, max_gb)
        try:
            with opened(path) as stream, zipfile.ZipFile(stream) as archive:
                self.names = {name.removesuffix(".npy") for name in archive.namelist()}
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{self._where}: this is no .npz file ({error}); fetch it again.") from None

    def get(self, name: str, num_axes: int, kinds: str) -> NDArray[Any]:
        """An array of numbers, mapped."""
        if name not in self.names:
            raise DataError(
                f"{self._where}: there is no array {name!r} in it, only {', '.join(sorted(self.names)[:8])}; give one "
                "with edges, or with adj_indptr and adj_indices (docs/graph-data.md)."
            )
        unpacked = self._folder / f"{name}.npy"
        if not unpacked.exists():
            try:
                with (
                    opened(self._path) as stream,
                    zipfile.ZipFile(stream) as archive,
                    archive.open(f"{name}.npy") as member,
                    open(unpacked, "wb") as out,
                ):
                    self._unpacking.count(name, archive.getinfo(f"{name}.npy").file_size)
                    shutil.copyfileobj(member, out, 1 << 20)
            except (zipfile.BadZipFile, EOFError, OSError) as error:
                raise DataError(f"{self._where}: {name} cannot be unpacked ({error}); fetch it again.") from None
        try:
            return load_npy(unpacked, num_axes, kinds)
        except DataError as error:
            raise DataError(str(error).replace(str(unpacked), f"{self._where}: {name}")) from None


@dataclass(frozen=True, slots=True)
class Rows:
    """A sparse matrix, row by row."""

    offsets: NDArray[Any]  # [rows + 1]
    columns: NDArray[Any]
    values: NDArray[Any] | None
    """None: ones."""
    num_columns: int

    def dense(self, start: int, stop: int) -> Float32:
        """[stop - start, columns]."""
        bounds = np.asarray(self.offsets[start : stop + 1], np.int64)
        row = np.repeat(np.arange(stop - start), np.diff(bounds))
        out = np.zeros((stop - start, self.num_columns), np.float32)
        some = slice(int(bounds[0]), int(bounds[-1]))
        out[row, self.columns[some]] = 1.0 if self.values is None else self.values[some]
        return out

    def check(self, where: str) -> None:
        ends = np.asarray(self.offsets, np.int64)
        if ends[0] != 0 or (np.diff(ends) < 0).any() or ends[-1] != len(self.columns):
            raise DataError(f"{where}: offsets do not fit {len(self.columns):,} entries; fetch the file again.")
        if len(self.columns) and not 0 <= int(self.columns.min()) <= int(self.columns.max()) < self.num_columns:
            raise DataError(f"{where}: a column is not below {self.num_columns:,}; fetch the file again.")


@dataclass(frozen=True, slots=True)
class Npz:
    """A graph in an `.npz` file."""

    name: ClassVar[str] = "npz"
    notes: ClassVar[tuple[str, ...]] = ()
    has_nodes: ClassVar[bool] = True

    files: tuple[Place, ...]
    num_nodes: int
    ends: NDArray[Any] | Rows  # [edges, 2], or the adjacency
    labels: NDArray[Any] | None
    features: NDArray[Any] | Rows | None

    @staticmethod
    def open(path: Place, temporary: Path, max_gb: int = UNPACKED_MAX_GB) -> Npz:
        members = Members(path, temporary, max_gb)
        labels = members.get("labels", 1, "iu") if "labels" in members.names else None
        features = _features(members, path)
        ends: NDArray[Any] | Rows
        if "edges" in members.names:
            ends = members.get("edges", 2, "iu")
            known = [len(labels)] if labels is not None else []
            num_nodes = known[0] if known else 1 + int(ends.max(initial=0))
        else:
            ends = _rows(members, "adj", None, path)
            num_nodes = len(ends.offsets) - 1
        graph = Npz((path,), num_nodes, ends, labels, features)
        graph._check(path)
        return graph

    def _check(self, path: Place) -> None:
        parts = {"labels": self.labels, "features": self.features}
        for what, array in parts.items():
            num = len(array.offsets) - 1 if isinstance(array, Rows) else self.num_nodes if array is None else len(array)
            if num != self.num_nodes:
                raise DataError(
                    f"{shown(path)}: {what} has {num:,} rows for {self.num_nodes:,} nodes; give a row for every node."
                )

    def edges(self, report: ReportBadLine) -> Iterator[EdgeChunk]:
        total = len(self.ends.columns) if isinstance(self.ends, Rows) else len(self.ends)
        for start in range(0, total, EDGE_ROWS):
            heads, tails = self._some(start, min(total, start + EDGE_ROWS))
            wrong = (heads < 0) | (tails < 0) | (heads >= self.num_nodes) | (tails >= self.num_nodes)
            if wrong.any():
                index = int(np.flatnonzero(wrong)[0])
                raise DataError(
                    f"{shown(self.files[0])}: edge {start + index + 1:,} joins {heads[index]} and {tails[index]}, but "
                    f"nodes are 0 to {self.num_nodes - 1:,}; fetch the file again."
                )
            yield EdgeChunk(split=DRAWN, heads=heads, tails=tails, done=(start + len(heads), total))

    def _some(self, start: int, stop: int) -> tuple[Int64, Int64]:
        if not isinstance(self.ends, Rows):
            heads, tails = np.asarray(self.ends[start:stop], np.int64).T
            return heads, tails
        places = np.searchsorted(self.ends.offsets, np.arange(start, stop), side="right") - 1
        return places.astype(np.int64), np.asarray(self.ends.columns[start:stop], np.int64)

    def nodes(self, report: ReportBadLine) -> Iterator[NodeChunk]:
        rows = self.features
        size = rows_at_once(0 if rows is None else rows.num_columns if isinstance(rows, Rows) else rows.shape[1])
        for start in range(0, self.num_nodes, size):
            stop = min(self.num_nodes, start + size)
            dense = rows.dense(start, stop) if isinstance(rows, Rows) else None if rows is None else rows[start:stop]
            yield NodeChunk(
                num=stop - start,
                labels=None if self.labels is None else np.array(self.labels[start:stop], np.int64),
                features=None if dense is None else np.asarray(dense, np.float32),
            )


def _features(members: Members, path: Place) -> NDArray[Any] | Rows | None:
    if "attr_matrix" in members.names:
        return members.get("attr_matrix", 2, "fiub")
    for prefix, width in (("feature", "num_features"), ("attr", "attr_shape")):
        if f"{prefix}_indptr" in members.names:
            return _rows(members, prefix, width, path)
    return None


def _rows(members: Members, prefix: str, width: str | None, path: Place) -> Rows:
    offsets, columns = members.get(f"{prefix}_indptr", 1, "iu"), members.get(f"{prefix}_indices", 1, "iu")
    names = [name for name in (f"{prefix}_values", f"{prefix}_data") if name in members.names and width is not None]
    values = members.get(names[0], 1, "fiub") if names else None
    if width is None:
        num_columns = len(offsets) - 1
    elif width == "attr_shape":
        num_columns = int(members.get(width, 1, "iu")[1])
    else:
        num_columns = int(members.get(width, 0, "iu"))
    rows = Rows(offsets, columns, values, num_columns)
    rows.check(f"{shown(path)}: {prefix}")
    return rows
