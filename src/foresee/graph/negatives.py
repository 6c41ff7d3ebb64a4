"""Negatives: nodes drawn as wrong ends of a batch's edges, before anything is trained.

In: the edges of a batch, which nodes may be drawn, and a key. Out: for each chunk of the batch the nodes that its edges
share, once for tails and once for heads, and which of them are no wrong ends after all. Nodes come from the whole
graph, from the partitions in the buffer, or from a pool that is renewed a little each step; a share of them are ends of
the batch's own edges, so nodes come as often as their degree has it, and cost no row that the batch does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numba import njit

from foresee.arrays import Int32, Int64
from foresee.errors import ConfigError
from foresee.graph.draws import GOLDEN, below, key_of, mix

GRAPH, BUFFER, POOL = "graph", "buffer", "pool"


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeOptions:
    """How negatives are drawn."""

    num_chunks: int = 10
    """Groups of a batch's edges that share their negatives."""
    num_nodes: int = 500
    """Negatives of each chunk and side."""
    degree_share: float = 0.0
    """Of these, how many are ends of edges of the batch."""
    source: Literal["graph", "buffer", "pool"] = GRAPH  # type: ignore[assignment]
    """Where the others come from."""
    pool_nodes: int = 10_000
    """Nodes of the pool."""
    pool_life_steps: int = 16
    """After how many steps a node of the pool has been replaced."""
    filtered: bool = False
    """Leave out negatives that are edges of the graph."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("num_chunks", 1), ("num_nodes", 1), ("pool_nodes", 1), ("pool_life_steps", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"negatives.{name}: found {getattr(self, name)}; give {least} or more")
        if not 0 <= self.degree_share <= 1:
            raise ConfigError(f"negatives.degree_share: found {self.degree_share}; give a share from 0 to 1")

    @property
    def num_by_degree(self) -> int:
        return round(self.degree_share * self.num_nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRange:
    """The nodes that may be drawn: those of some partitions of the graph."""

    num_nodes: int
    partition_rows: int
    partitions: Int32
    """Ascending, so that the last of the graph, which may be smaller, comes last."""

    @property
    def size(self) -> int:
        size = len(self.partitions) * self.partition_rows
        if len(self.partitions):
            size -= max(0, (int(self.partitions[-1]) + 1) * self.partition_rows - self.num_nodes)
        return size

    def node(self, places: Int64) -> Int64:
        """The nodes at places from 0 to size - 1."""
        within, rest = np.divmod(places, self.partition_rows)
        return self.partitions[within].astype(np.int64) * self.partition_rows + rest


def draw(options: NegativeOptions, nodes: NodeRange, step: int, side: int, ends: Int64) -> Int64:
    """[chunks, nodes]: the negatives of one side of a step, whose edges have these ends on that side."""
    key = key_of(options.seed, step, side)
    num_drawn = options.num_nodes - options.num_by_degree
    out = np.empty((options.num_chunks, options.num_nodes), np.int64)
    out[:, :num_drawn] = _drawn(options, nodes, step, key, options.num_chunks * num_drawn).reshape(-1, num_drawn)
    if options.num_by_degree:
        chosen = below(key_of(int(key), 1), len(ends), options.num_chunks * options.num_by_degree)
        out[:, num_drawn:] = ends[chosen].reshape(-1, options.num_by_degree)
    return out


def _drawn(options: NegativeOptions, nodes: NodeRange, step: int, key: np.uint64, num: int) -> Int64:
    if options.source == POOL:
        places = below(key, options.pool_nodes, num)
        _fill_from_pool(key_of(options.seed, 2), options.pool_life_steps, nodes.num_nodes, step, places)
        return places
    if options.source == BUFFER:
        return nodes.node(below(key, nodes.size, num))
    return below(key, nodes.num_nodes, num)


@njit(nogil=True, cache=True)
def _fill_from_pool(key: np.uint64, life_steps: int, num_nodes: int, step: int, places: Int64) -> None:
    """The nodes at some places of the pool; each place has its own turn to be renewed, so each step renews a few."""
    for position in range(len(places)):
        place = places[position]
        age = np.uint64((step + place) // life_steps)
        word = mix(mix(key + np.uint64(place) * GOLDEN) + age * GOLDEN)
        places[position] = np.int64(word % np.uint64(num_nodes))


def edges_among(sources: Int64, relations: Int64, negatives: Int64, near: Any) -> Int64:
    """[found, 2]: (edge, negative) where the negative is the other end of an edge with that source and relation.

    Args:
        sources: [edges], the ends that are kept.
        relations: [edges].
        negatives: [chunks, nodes], edge i belongs to chunk i // ceil(edges / chunks).
        near: The edges of the graph by that source: where each one's begin (`offsets`), their other ends (`ids`) and
            their `relations`; None: they have none.
    """
    order = np.argsort(negatives, axis=1, kind="stable")
    kinds = np.empty(0, np.int32) if near.relations is None else near.relations
    found: Int64 = _edges_among(
        sources, relations, np.take_along_axis(negatives, order, 1), order, near.offsets, near.ids, kinds,
        chunk_edges(len(sources), len(negatives)),
    )  # fmt: skip
    return found


@njit(nogil=True, cache=True)
def _edges_among(
    sources: Int64, relations: Int64, ascending: Int64, order: Int64, offsets: Int64, ends: Int64, kinds: Int64,
    per_chunk: int,
) -> Int64:  # fmt: skip
    found = np.empty((1024, 2), np.int64)
    num_found = 0
    for edge in range(len(sources)):
        chunk = edge // per_chunk
        for place in range(offsets[sources[edge]], offsets[sources[edge] + 1]):
            if len(kinds) and kinds[place] != relations[edge]:
                continue
            at = np.searchsorted(ascending[chunk], ends[place])
            while at < ascending.shape[1] and ascending[chunk, at] == ends[place]:
                if num_found == len(found):
                    found = np.concatenate((found, np.empty_like(found)))
                found[num_found, 0], found[num_found, 1] = edge, order[chunk, at]
                num_found += 1
                at += 1
    return found[:num_found]


def chunk_edges(num_edges: int, num_chunks: int) -> int:
    """Edges of a chunk; the last ones may have fewer, or none."""
    return max(1, -(-num_edges // num_chunks))
