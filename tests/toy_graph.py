"""A small graph in memory with the face of a `GraphFolder`, so that batches and training can be tried on any edges."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64


@dataclass(frozen=True)
class ToyGraph:
    """Edges by split, [edges, 3]; train is sorted by bucket."""

    num_nodes: int
    num_relations: int
    splits: dict[str, NDArray[Any]]
    num_partitions: int = 1
    train_weights: Float32 | None = None
    digest: str = "toy"
    num_features: int = 0
    num_classes: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def partition_rows(self) -> int:
        return -(-self.num_nodes // self.num_partitions)

    @property
    def num_edges(self) -> dict[str, int]:
        return {split: len(edges) for split, edges in self.splits.items()}

    def _buckets(self) -> Int64:
        edges = self.splits["train"].astype(np.int64)
        bucket: Int64 = edges[:, 0] // self.partition_rows * self.num_partitions + edges[:, 2] // self.partition_rows
        return bucket

    def edges(self, split: str) -> NDArray[Any]:
        edges = self.splits[split]
        return edges[np.argsort(self._buckets(), kind="stable")] if split == "train" else edges

    def weights(self, split: str) -> Float32 | None:
        if self.train_weights is None or split != "train":
            return None
        return self.train_weights[np.argsort(self._buckets(), kind="stable")]

    def bucket_offsets(self) -> Int64:
        counts = np.bincount(self._buckets(), minlength=self.num_partitions**2)
        return np.append(0, np.cumsum(counts)).astype(np.int64)

    def partitioned(self, num_partitions: int) -> ToyGraph:
        return replace(self, num_partitions=num_partitions)

    def neighbours(self) -> Any:
        return SimpleNamespace(incoming=self._adjacency(2, 0), outgoing=self._adjacency(0, 2))

    def _adjacency(self, by: int, other: int) -> Any:
        edges = self.splits["train"]
        order = np.lexsort((edges[:, 1], edges[:, other], edges[:, by]))
        counts = np.bincount(edges[:, by], minlength=self.num_nodes)
        return SimpleNamespace(
            offsets=np.append(0, np.cumsum(counts)).astype(np.int64), ids=edges[order, other].astype(np.int64),
            relations=edges[order, 1].astype(np.int64),
        )  # fmt: skip


def toy_graph(
    num_nodes: int = 60, num_relations: int = 3, num_edges: int = 400, num_partitions: int = 1, seed: int = 0
) -> ToyGraph:
    """Distinct random edges without loops; a tenth each for valid and test."""
    rng = np.random.default_rng(seed)
    drawn = np.stack([rng.integers(0, bound, 2 * num_edges) for bound in (num_nodes, num_relations, num_nodes)], 1)
    edges = np.unique(drawn[drawn[:, 0] != drawn[:, 2]], axis=0)
    edges = rng.permutation(edges)[:num_edges].astype(np.int32)
    tenth = len(edges) // 10
    splits = {"train": edges[2 * tenth :], "valid": edges[:tenth], "test": edges[tenth : 2 * tenth]}
    return ToyGraph(num_nodes, num_relations, splits, num_partitions)
