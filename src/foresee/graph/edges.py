"""Train edges in the order of their buckets: sorted out of core, counted, hashed, written as arrays.

The key of an edge is (bucket, head, tail) as one 64-bit number, which is all that needs to be kept of it; edges with
the same ends are then ordered by relation and weight, so that one set of edges has one order. On the way self loops
and duplicates are counted, and left out where that is asked for. The hash of a split is a sum over its edges, so it
depends neither on their order nor on partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray

from foresee.arrays import Bool, Float32, Int32, Int64, UInt64
from foresee.data.source import ReportProgress
from foresee.errors import DataError
from foresee.graph.external_sort import ExternalSort, begins_group, keys_of
from foresee.graph.folder import DESCRIPTION_FILE, GraphFolder, id_dtype
from foresee.graph.npy import ArrayWriter
from foresee.io.folders import new_folder

PIECE_EDGES = 1 << 18


@dataclass(frozen=True, slots=True)
class EdgePiece:
    """Some edges, numbered."""

    heads: Int64
    relations: Int32
    tails: Int64
    weights: Float32 | None = None

    def __len__(self) -> int:
        return len(self.heads)

    def kept(self, which: Bool) -> EdgePiece:
        weights = None if self.weights is None else self.weights[which]
        return EdgePiece(self.heads[which], self.relations[which], self.tails[which], weights)

    def rows(self) -> NDArray[Any]:
        """[edges, 3], as they are stored."""
        return np.stack([self.heads, self.relations, self.tails], axis=1)


class EdgeSum:
    """A hash of a set of edges, whatever their order."""

    def __init__(self) -> None:
        self._sums = np.zeros(2, np.uint64)

    def add(self, piece: EdgePiece) -> None:
        weights = np.empty(0, np.float32) if piece.weights is None else piece.weights
        self._sums += _sum(piece.heads, piece.relations, piece.tails, weights.view(np.uint32))

    def text(self) -> str:
        return "".join(f"{int(part):016x}" for part in self._sums)


@njit(nogil=True, cache=True)
def _mixed(value: np.uint64) -> np.uint64:  # splitmix64's finaliser
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


@njit(nogil=True, cache=True)
def _sum(heads: Int64, relations: Int32, tails: Int64, weights: Any) -> UInt64:
    golden = np.uint64(0x9E3779B97F4A7C15)
    out = np.zeros(2, np.uint64)
    for index in range(len(heads)):
        value = _mixed(np.uint64(heads[index]) + golden)
        value = _mixed((value ^ np.uint64(tails[index])) + golden)
        value = _mixed((value ^ np.uint64(relations[index])) + golden)
        if len(weights):
            value = _mixed((value ^ np.uint64(weights[index])) + golden)
        out[0] += value
        out[1] += _mixed(value + golden)
    return out


class BucketSort:
    """Takes edges in any order, writes them by bucket."""

    def __init__(self, sort: ExternalSort, num_nodes: int, num_partitions: int) -> None:
        self._sort, self._num_nodes, self._num_partitions = sort, num_nodes, num_partitions
        self._rows = -(-num_nodes // num_partitions)

    def add(self, piece: EdgePiece) -> None:
        keys = _keys(piece.heads, piece.tails, self._rows, self._num_partitions)
        columns = {"key": keys, "relation": piece.relations}
        if piece.weights is not None:
            columns["weight"] = piece.weights
        self._sort.add(pa.RecordBatch.from_pydict(columns))

    def pieces(self) -> Iterator[EdgePiece]:
        """All edges by bucket, head, tail, relation, weight; equal edges in one piece."""
        for batch in self._sort.sorted():
            keys = keys_of(batch)
            relations: Int32 = batch.column("relation").to_numpy()
            weights = batch.column("weight").to_numpy() if "weight" in batch.schema.names else None
            order = tie_order(keys, relations, weights)
            if order is not None:
                relations, weights = relations[order], None if weights is None else weights[order]
            heads, tails = _ends(keys, self._rows, self._num_partitions)
            yield EdgePiece(heads, relations, tails, weights)

    def write(self, folder: Path, *, drop_duplicates: bool, progress: ReportProgress | None) -> tuple[int, int]:
        """Writes `train.npy`, its weights and `buckets.npy`; gives the numbers of edges and of duplicates found."""
        counts = np.zeros(self._num_partitions**2, np.int64)
        num_duplicates = 0
        with (
            ArrayWriter(folder / "train.npy", id_dtype(self._num_nodes), (3,)) as edges,
            ArrayWriter(folder / "train-weights.npy", np.float32) as weights,
        ):
            for piece in self.pieces():
                first = _first_of_equals(piece)
                num_duplicates += len(piece) - int(first.sum())
                piece = piece.kept(first) if drop_duplicates else piece
                edges.append(piece.rows())
                if piece.weights is not None:
                    weights.append(piece.weights)
                counts += self._bucket_counts(piece)
                if progress is not None:
                    progress("edges", edges.num_rows, self._sort.num_rows)
        if edges.num_rows != weights.num_rows:
            (folder / "train-weights.npy").unlink()
        np.save(folder / "buckets.npy", np.concatenate([[0], np.cumsum(counts)]).astype(np.int64))
        return edges.num_rows, num_duplicates

    def _bucket_counts(self, piece: EdgePiece) -> Int64:
        buckets = piece.heads // self._rows * self._num_partitions + piece.tails // self._rows
        return np.bincount(buckets, minlength=self._num_partitions**2)


@njit(nogil=True, cache=True)
def _keys(heads: Int64, tails: Int64, rows: int, num_partitions: int) -> UInt64:
    out = np.empty(len(heads), np.uint64)
    for index in range(len(heads)):
        bucket = np.uint64(heads[index] // rows * num_partitions + tails[index] // rows)
        inside = np.uint64(heads[index] % rows) * np.uint64(rows) + np.uint64(tails[index] % rows)
        out[index] = bucket * np.uint64(rows) * np.uint64(rows) + inside
    return out


@njit(nogil=True, cache=True)
def _ends(keys: UInt64, rows: int, num_partitions: int) -> tuple[Int64, Int64]:
    heads, tails = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    size = np.uint64(rows)
    for index in range(len(keys)):
        local, pair = keys[index] % size, keys[index] // size
        head, bucket = pair % size, np.int64(pair // size)
        heads[index] = np.int64(head) + bucket // num_partitions * rows
        tails[index] = np.int64(local) + bucket % num_partitions * rows
    return heads, tails


def tie_order(keys: UInt64, relations: Int32, weights: Float32 | None) -> NDArray[np.intp] | None:
    """How to order rows so that those of one key go by relation and weight; None: as they stand."""
    begins = begins_group(keys)
    if begins.all():
        return None
    tied = np.flatnonzero(~begins | np.append(~begins[1:], False))
    columns = (relations[tied], keys[tied]) if weights is None else (weights[tied], relations[tied], keys[tied])
    order = np.arange(len(keys))
    order[tied] = tied[np.lexsort(columns)]
    return order


def _first_of_equals(piece: EdgePiece) -> Bool:
    first = np.ones(len(piece), bool)
    same = (piece.heads[1:] == piece.heads[:-1]) & (piece.tails[1:] == piece.tails[:-1])
    first[1:] = ~(same & (piece.relations[1:] == piece.relations[:-1]))
    return first


def stored_pieces(graph: GraphFolder, split: str) -> Iterator[EdgePiece]:
    """The edges of a prepared graph, piece by piece."""
    for start in range(0, graph.num_edges[split], PIECE_EDGES):
        # Mapped anew each time: a mapping that lives on would keep every page it ever touched in memory.
        heads, relations, tails = np.array(graph.edges(split)[start : start + PIECE_EDGES]).T
        weights = graph.weights(split)
        some = None if weights is None else np.array(weights[start : start + PIECE_EDGES])
        yield EdgePiece(heads.astype(np.int64), relations.astype(np.int32), tails.astype(np.int64), some)


def partition_edges(graph: GraphFolder, num_partitions: int, place: Path, memory_bytes: int) -> None:
    """The train edges of a graph in another number of partitions, as a folder of their own."""
    try:
        with (
            new_folder(place, replace=False, marker=DESCRIPTION_FILE) as folder,
            ExternalSort(folder, memory_bytes) as sort,
        ):
            buckets = BucketSort(sort, graph.num_nodes, num_partitions)
            for piece in stored_pieces(graph, "train"):
                buckets.add(piece)
            buckets.write(folder, drop_duplicates=False, progress=None)
    except DataError:
        if not (place / "buckets.npy").exists():  # else another process was quicker, and wrote the same
            raise
