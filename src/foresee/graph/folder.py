"""A prepared graph: a folder of arrays that numpy maps, and `graph.json`, which is written last.

Nodes are numbered at random from a seed, so partition v // partition_rows of a node is a random one. Train edges are
sorted by bucket (partition of the head, partition of the tail), then by head, tail, relation and weight: one set of
edges has one order, whatever order its files had. `partitioned(p)` gives the same graph with another number of
partitions, and `neighbours()` its adjacency; both are made once, beside the graph, and found again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.data.order import SPLIT_NAMES
from foresee.errors import DataError
from foresee.graph.npy import open_array
from foresee.io import bounded_json
from foresee.io.urls import brought, place

if TYPE_CHECKING:
    from foresee.graph.neighbors import Neighbours

DESCRIPTION_FILE = "graph.json"
NAMES_FILE = "node-names.arrow"
MADE_LATER = ("partitions-", "neighbours-", ".")
"""Folders that are made beside a graph when they are first wanted, and hidden ones in which that is under way."""
VERSION = 1
NODES_MAX = (1 << 32) - (1 << 16)
"""Pairs of nodes are sorted as one 64-bit number."""
ID_DTYPES = (np.int32, np.int64)
DEFAULT_MEMORY_BYTES = 512 << 20


def id_dtype(num_nodes: int) -> type[np.int32] | type[np.int64]:
    """The smaller type that holds every node."""
    return np.int32 if num_nodes < 1 << 31 else np.int64


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFolder:
    """A prepared graph, opened. Arrays are mapped when they are asked for."""

    path: Path
    num_nodes: int
    num_relations: int
    """0: edges have none."""
    num_edges: dict[str, int]
    """By split."""
    num_features: int
    num_classes: int
    num_partitions: int
    weighted: bool
    num_split_nodes: dict[str, int]
    """Nodes to classify, by split."""
    train_nodes_first: bool
    """The train nodes are those with the smallest ids."""
    contents: str
    """A hash of everything but the number of partitions."""
    best: dict[str, float]
    """The best score that anyone can reach, where it is known."""
    source: dict[str, Any]
    """What it was made of, and what was found on the way."""
    _edges_path: Path

    @staticmethod
    def open(path: str | Path) -> GraphFolder:
        """Opens a folder that `foresee graph prepare` wrote; one at a URL is brought into this machine's cache."""
        folder = brought(place(path), "graphs", marker=DESCRIPTION_FILE, made_here=MADE_LATER)
        try:
            text = (folder / DESCRIPTION_FILE).read_bytes()
        except OSError as error:
            raise DataError(
                f"{folder}: there is no prepared graph ({DESCRIPTION_FILE}: {error.strerror}); make one with "
                "`foresee graph prepare`."
            ) from None
        try:
            return _described(folder, bounded_json.parse_object(text))
        except ValueError as error:
            raise DataError(f"{folder / DESCRIPTION_FILE}: {error}; prepare the graph again.") from None

    @property
    def partition_rows(self) -> int:
        """Nodes of a partition; the last may have fewer."""
        return -(-self.num_nodes // self.num_partitions)

    @property
    def digest(self) -> str:
        """Equal for equal graphs in equal partitions."""
        return f"{self.contents}-{self.num_partitions}"

    def edges(self, split: str) -> NDArray[Any]:
        """[edges, 3]: head, relation (0 where there are none), tail."""
        place = self._edges_path if split == "train" else self.path
        return open_array(place / f"{split}.npy", (self._size(split), 3), ID_DTYPES)

    def weights(self, split: str) -> Float32 | None:
        """[edges], or None if edges have no weights."""
        place = self._edges_path if split == "train" else self.path
        return (
            open_array(place / f"{split}-weights.npy", (self._size(split),), (np.float32,)) if self.weighted else None
        )

    def _size(self, split: str) -> int:
        if split not in self.num_edges:
            raise DataError(f"{self.path}: the graph has no edges for {split}; it has {', '.join(self.num_edges)}.")
        return self.num_edges[split]

    def bucket_offsets(self) -> Int64:
        """[partitions² + 1]: where each bucket of train begins; bucket (i, j) is number i * partitions + j."""
        return open_array(self._edges_path / "buckets.npy", (self.num_partitions**2 + 1,), (np.int64,))

    def nodes(self, split: str) -> Int64:
        """Nodes to classify, ascending."""
        if split not in self.num_split_nodes:
            has = ", ".join(self.num_split_nodes) or "none at all"
            raise DataError(f"{self.path}: the graph has no nodes for {split}; it has {has}.")
        return open_array(self.path / f"{split}-nodes.npy", (self.num_split_nodes[split],), (np.int64,))

    def labels(self) -> Int64:
        """[nodes]: the class of each node, -1 where it has none."""
        if not self.num_classes:
            raise DataError(f"{self.path}: the graph has no labels; prepare it with them to classify nodes.")
        return open_array(self.path / "labels.npy", (self.num_nodes,), (np.int64,))

    def features(self) -> Float32 | None:
        """[nodes, features], or None."""
        shape = (self.num_nodes, self.num_features)
        return open_array(self.path / "features.npy", shape, (np.float32,)) if self.num_features else None

    def node_names(self) -> pa.ChunkedArray:
        """The name of each node, by id: text, or the number it had; mapped from the disk."""
        return stored_names(self.path / NAMES_FILE, self.num_nodes)

    def relation_names(self) -> pa.ChunkedArray:
        """The name of each relation, by id."""
        return stored_names(self.path / "relation-names.arrow", self.num_relations)

    def partitioned(
        self, num_partitions: int, *, cache: Path | None = None, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> GraphFolder:
        """The same graph in another number of partitions, sorted once and kept in `cache` or beside the graph."""
        from foresee.graph.edges import partition_edges

        check_partitions(num_partitions, self.num_nodes)
        if num_partitions == self.num_partitions:
            return self
        wanted = replace(self, num_partitions=num_partitions)
        place = (cache or self.path) / f"partitions-{wanted.digest}"
        if not (place / "buckets.npy").exists():
            partition_edges(self, num_partitions, place, memory_bytes)
        return replace(wanted, _edges_path=place)

    def neighbours(self, *, cache: Path | None = None, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> Neighbours:
        """The train edges by tail and by head, made once and kept in `cache` or beside the graph."""
        from foresee.graph.neighbors import open_neighbours

        return open_neighbours(self, (cache or self.path) / f"neighbours-{self.contents}", memory_bytes)


def check_partitions(num_partitions: int, num_nodes: int) -> None:
    """A partition needs a node, and their pairs have to be counted."""
    if not 1 <= num_partitions <= min(num_nodes, 1 << 14):
        raise DataError(
            f"{num_partitions} partitions do not suit {num_nodes:,} nodes; give 1 to {min(num_nodes, 1 << 14):,}."
        )


def write_description(folder: Path, graph: GraphFolder) -> None:
    """The last file of a graph: without it nothing counts."""
    from foresee.io.files import Files

    fields = {"format": "foresee.graph", "version": VERSION}
    fields |= {name: getattr(graph, name) for name in graph.__slots__ if name not in ("path", "_edges_path")}
    content = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    Files().publish(folder / DESCRIPTION_FILE, content.encode())


def _described(folder: Path, fields: dict[str, Any]) -> GraphFolder:
    if fields.get("format") != "foresee.graph" or fields.get("version") != VERSION:
        raise ValueError(f"it describes no graph of version {VERSION}")
    num_nodes = bounded_json.whole(fields, "num_nodes", 1, NODES_MAX)
    best = bounded_json.object_of(fields, "best")
    return GraphFolder(
        path=folder,
        num_nodes=num_nodes,
        num_relations=bounded_json.whole(fields, "num_relations"),
        num_edges=_sizes(fields, "num_edges"),
        num_features=bounded_json.whole(fields, "num_features"),
        num_classes=bounded_json.whole(fields, "num_classes"),
        num_partitions=bounded_json.whole(fields, "num_partitions", 1, min(num_nodes, 1 << 14)),
        weighted=fields.get("weighted") is True,
        num_split_nodes=_sizes(fields, "num_split_nodes"),
        train_nodes_first=fields.get("train_nodes_first") is True,
        contents=bounded_json.text_of(fields, "contents"),
        best={name: bounded_json.number(best, name, 0, 1) for name in best},
        source=bounded_json.object_of(fields, "source"),
        _edges_path=folder,
    )


def _sizes(fields: dict[str, Any], key: str) -> dict[str, int]:
    sizes = bounded_json.object_of(fields, key)
    return {name: bounded_json.whole(sizes, name, 0, bounded_json.LARGE_MAX) for name in SPLIT_NAMES if name in sizes}


def stored_names(path: Path, num: int) -> pa.ChunkedArray:
    """The names in a file, mapped."""
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read ({error}); prepare the graph again.") from None
    if len(table) != num:
        raise DataError(f"{path}: expected {num:,} names, found {len(table):,}; prepare the graph again.")
    return table.column("name")
