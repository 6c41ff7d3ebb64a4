"""The neighbours of every node: train edges by tail (incoming) and by head (outgoing), as arrays that numpy maps.

Sorted out of core from a prepared graph, once; neighbours of a node ascend, and those over several relations go by
relation. `inside` gives the part of an adjacency that lies in some partitions, in memory: what a buffer can sample.
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

from foresee.arrays import Bool, Int32, Int64
from foresee.errors import DataError
from foresee.graph.edges import stored_pieces, tie_order
from foresee.graph.external_sort import ExternalSort, keys_of
from foresee.graph.folder import DESCRIPTION_FILE, ID_DTYPES, GraphFolder, id_dtype
from foresee.graph.npy import ArrayWriter, open_array
from foresee.io.folders import new_folder

OFFSETS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Adjacency:
    """Edges of one direction, node by node."""

    offsets: Int64  # [nodes + 1]
    ids: NDArray[Any]  # [edges]: the other end
    relations: Int32 | None  # [edges], or None if edges have none

    @property
    def num_nodes(self) -> int:
        return len(self.offsets) - 1

    def degrees(self) -> Int64:
        return np.diff(self.offsets)

    def inside(self, partitions: Int32, partition_rows: int) -> Adjacency:
        """Only edges with both ends in these partitions, in memory."""
        num_partitions = -(-self.num_nodes // partition_rows)
        there = np.zeros(num_partitions, bool)
        there[partitions] = True
        offsets = _offsets_inside(self.offsets, self.ids, there, partition_rows)
        ids = np.empty(offsets[-1], self.ids.dtype)
        relations = np.empty(0 if self.relations is None else len(ids), np.int32)
        stored = np.empty(0, np.int32) if self.relations is None else self.relations
        _fill_inside(self.offsets, self.ids, stored, there, partition_rows, ids, relations)
        return Adjacency(offsets, ids, None if self.relations is None else relations)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Both directions."""

    incoming: Adjacency
    """By tail: who points here."""
    outgoing: Adjacency
    """By head: whom this points to."""

    def inside(self, partitions: Int32, partition_rows: int) -> Neighbours:
        """Only edges with both ends in these partitions, in memory."""
        return Neighbours(*(side.inside(partitions, partition_rows) for side in (self.incoming, self.outgoing)))


def open_neighbours(graph: GraphFolder, place: Path, memory_bytes: int) -> Neighbours:
    """The neighbours of a graph, sorted into `place` if they are not there."""
    if not place.exists():
        try:
            with new_folder(place, replace=False, marker=DESCRIPTION_FILE) as folder:
                _write(graph, folder, "incoming", memory_bytes)
                _write(graph, folder, "outgoing", memory_bytes)
        except DataError:
            if not place.exists():  # else another process was quicker, and wrote the same
                raise
    return Neighbours(*(_open(graph, place, name) for name in ("incoming", "outgoing")))


def _open(graph: GraphFolder, place: Path, name: str) -> Adjacency:
    num = graph.num_edges["train"]
    relations = open_array(place / f"{name}-relations.npy", (num,), (np.int32,)) if graph.num_relations else None
    offsets = open_array(place / f"{name}-offsets.npy", (graph.num_nodes + 1,), (np.int64,))
    return Adjacency(offsets, open_array(place / f"{name}-ids.npy", (num,), ID_DTYPES), relations)


def _write(graph: GraphFolder, folder: Path, name: str, memory_bytes: int) -> None:
    with (
        ExternalSort(folder, memory_bytes) as sort,
        ArrayWriter(folder / f"{name}-ids.npy", id_dtype(graph.num_nodes)) as ids,
        ArrayWriter(folder / f"{name}-relations.npy", np.int32) as relations,
    ):
        counts = np.lib.format.open_memmap(
            folder / f"{name}-offsets.npy", mode="w+", dtype=np.int64, shape=(graph.num_nodes + 1,)
        )
        for piece in stored_pieces(graph, "train"):
            own, other = (piece.tails, piece.heads) if name == "incoming" else (piece.heads, piece.tails)
            keys = own.astype(np.uint64) * np.uint64(graph.num_nodes) + other.astype(np.uint64)
            sort.add(pa.RecordBatch.from_pydict({"key": keys, "relation": piece.relations}))
        for own, other, kinds in _by_node(sort, graph.num_nodes):
            ids.append(other)
            if graph.num_relations:
                relations.append(kinds)
            counts[own[0] + 1 : own[-1] + 2] += np.bincount(own - own[0])
        _sum_up(counts)
        counts.flush()
    if not graph.num_relations:
        (folder / f"{name}-relations.npy").unlink()


def _by_node(sort: ExternalSort, num_nodes: int) -> Iterator[tuple[Int64, Int64, Int32]]:
    for batch in sort.sorted():
        keys, kinds = keys_of(batch), batch.column("relation").to_numpy()
        order = tie_order(keys, kinds, None)
        own, other = keys // np.uint64(num_nodes), keys % np.uint64(num_nodes)
        yield own.astype(np.int64), other.astype(np.int64), kinds if order is None else kinds[order]


def _sum_up(counts: Int64) -> None:
    total = 0
    for start in range(0, len(counts), OFFSETS_AT_ONCE):
        some = counts[start : start + OFFSETS_AT_ONCE]
        np.cumsum(some, out=some)
        some += total
        total = int(some[-1])


@njit(nogil=True, cache=True)
def _offsets_inside(offsets: Int64, ids: Any, there: Bool, rows: int) -> Int64:
    out = np.zeros(len(offsets), np.int64)
    for node in range(len(offsets) - 1):
        out[node + 1] = out[node]
        if there[node // rows]:
            for place in range(offsets[node], offsets[node + 1]):
                out[node + 1] += there[ids[place] // rows]
    return out


@njit(nogil=True, cache=True)
def _fill_inside(
    offsets: Int64, ids: Any, relations: Int32, there: Bool, rows: int, out: Any, out_relations: Int32
) -> None:
    filled = 0
    for node in range(len(offsets) - 1):
        if there[node // rows]:
            for place in range(offsets[node], offsets[node + 1]):
                if there[ids[place] // rows]:
                    out[filled] = ids[place]
                    if len(relations):
                        out_relations[filled] = relations[place]
                    filled += 1
