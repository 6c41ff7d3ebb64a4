"""A synthetic graph of any size from one seed: a power law, planted communities, and the best reachable score.

`planted.py` is the law of its edges. Labels are communities with some noise, features a centre for each community
with much noise. Everything is a hash of (seed, number): streamed, and equal arguments give equal graphs. `best` of the
prepared graph has what nobody can beat on average: MRR and hits of held-out edges among all nodes (raw, and without
other true edges: filtered), and the accuracy of classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numba import njit

from foresee.arrays import Float32, Float64, Int64
from foresee.data.source import ReportBadLine, ReportProgress
from foresee.data.synthetic.population import normal
from foresee.errors import DataError
from foresee.graph.edges import stored_pieces
from foresee.graph.folder import NODES_MAX, GraphFolder
from foresee.graph.formats.source import DRAWN, EdgeChunk, NodeChunk, rows_at_once
from foresee.graph.options import GraphOptions
from foresee.graph.planted import Planted
from foresee.graph.prepare import GraphReport, prepare_graph
from foresee.io.hashing import combine, hash_counters, key_of

CHUNK_EDGES = 1 << 17
RANKED_MAX = 5000
"""Held-out edges of a split whose best ranks are worked out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """What the graph is like. The texts are also the help of `foresee graph synthetic`."""

    name: ClassVar[str] = "synthetic"
    files: ClassVar[tuple[Path, ...]] = (Path("synthetic"),)
    notes: ClassVar[tuple[str, ...]] = ()

    num_nodes: Annotated[int, "Nodes of the graph."] = 100_000
    num_edges: Annotated[int, "Edges of the graph, those of all splits together."] = 1_000_000
    num_relations: Annotated[int, "Relations of its edges; 0: none."] = 0
    communities: Annotated[int, "Planted communities; also the classes, if there are labels."] = 20
    inside: Annotated[float, "Probability that a tail comes from the community that its head leads to."] = 0.8
    exponent: Annotated[float, "How fast the weight of nodes falls: 0 is uniform, 0.8 like many real graphs."] = 0.8
    num_features: Annotated[int, "Features of each node; 0: none."] = 0
    feature_noise: Annotated[float, "Deviation of features from the centre of their community."] = 4.0
    labels: Annotated[bool, "Give nodes their community as a class."] = False
    label_noise: Annotated[float, "Share of nodes whose class is drawn at random instead."] = 0.1
    graph_seed: Annotated[int, "Seed of the graph itself; --seed is that of numbers and splits."] = 0

    def __post_init__(self) -> None:
        bounds = {
            "num_nodes": (2, NODES_MAX), "num_edges": (1, 1 << 48), "num_relations": (0, 1 << 24),
            "communities": (1, self.num_nodes), "inside": (0, 1), "exponent": (0, 3), "num_features": (0, 1 << 16),
            "feature_noise": (0, 1_000_000), "label_noise": (0, 1), "graph_seed": (0, (1 << 63) - 1),
        }  # fmt: skip
        for field, (low, high) in bounds.items():
            if not low <= getattr(self, field) <= high:
                raise DataError(f"{field}={getattr(self, field)} cannot be used; give {low:,} to {high:,}.")

    @property
    def planted(self) -> Planted:
        return Planted(
            self.num_nodes, self.num_relations, self.communities, self.inside, self.exponent, self.graph_seed
        )

    @property
    def has_nodes(self) -> bool:
        return self.labels or self.num_features > 0

    def edges(self, report: ReportBadLine) -> Iterator[EdgeChunk]:
        planted = self.planted
        for start in range(0, self.num_edges, CHUNK_EDGES):
            stop = min(self.num_edges, start + CHUNK_EDGES)
            draws = np.stack([self._uniform(purpose, start, stop) for purpose in range(4)])
            heads, relations, tails = planted.draw(draws)
            kinds = relations if self.num_relations else None
            yield EdgeChunk(split=DRAWN, heads=heads, tails=tails, relations=kinds, done=(stop, self.num_edges))

    def nodes(self, report: ReportBadLine) -> Iterator[NodeChunk]:
        size, key = rows_at_once(self.num_features), np.uint64(key_of(self.graph_seed, 12))
        for start in range(0, self.num_nodes, size):
            stop = min(self.num_nodes, start + size)
            labels, features = None, None
            if self.labels:
                others = (self._uniform(11, start, stop) * self.communities).astype(np.int64)
                noisy = self._uniform(10, start, stop) < self.label_noise
                labels = np.where(noisy, others, np.arange(start, stop) % self.communities)
            if self.num_features:
                features = _features(start, stop, self.num_features, self.communities, self.feature_noise, key)
            yield NodeChunk(num=stop - start, labels=labels, features=features)

    def _uniform(self, purpose: int, start: int, stop: int) -> Float64:
        draws = hash_counters(key_of(self.graph_seed, 20, purpose), start, stop) >> np.uint64(11)
        return draws / float(1 << 53)


@njit(nogil=True, cache=True)
def _features(start: int, stop: int, width: int, communities: int, noise: float, key: np.uint64) -> Float32:
    out = np.empty((stop - start, width), np.float32)
    for node in range(start, stop):
        for column in range(width):
            centre = normal(combine(combine(key, np.uint64(node % communities)), np.uint64(column)))
            own = normal(combine(combine(key, np.uint64((1 << 32) + node)), np.uint64(column)))
            out[node - start, column] = centre + noise * own
    return out


def synthetic_graph(
    source: Synthetic, out: str | Path, options: GraphOptions | None = None, progress: ReportProgress | None = None
) -> GraphReport:
    """Write a synthetic graph; `best` of the result says how well anyone could do."""
    return prepare_graph(source, out, options, progress, best=lambda graph: best_scores(source, graph))


def best_scores(source: Synthetic, graph: GraphFolder) -> dict[str, float]:
    """What nobody can beat on average, by split: `valid_mrr`, `valid_mrr_filtered`, ..., and `accuracy`."""
    found: dict[str, float] = {}
    for split in [name for name in graph.num_edges if name != "train"]:
        edges = np.array(graph.edges(split)[:RANKED_MAX], np.int64)
        raw = _ranks(source, graph, edges)
        filtered = raw - _known_above(source, graph, edges)
        for words, ranks in (("", raw), ("_filtered", filtered)):
            found[f"{split}_mrr{words}"] = float((1 / ranks).mean())
            found[f"{split}_hits_10{words}"] = float((ranks <= 10).mean())
    if source.labels:
        found["accuracy"] = 1 - source.label_noise + source.label_noise / source.communities
    return found


def _ranks(source: Synthetic, graph: GraphFolder, edges: Int64) -> Int64:
    """[2, edges]: of the tail, and of the head."""
    given = _given(graph, edges)
    return np.stack([source.planted.tail_rank(*given), source.planted.head_rank(*given)])


def _given(graph: GraphFolder, edges: Int64) -> tuple[Int64, Int64, Int64]:
    """Heads, relations and tails by the numbers that the law knows nodes by."""
    names = graph.node_names()
    heads, tails = (names.take(edges[:, column]).to_numpy() for column in (0, 2))
    return heads, edges[:, 1], tails


def _known_above(source: Synthetic, graph: GraphFolder, edges: Int64) -> Int64:
    """[2, edges]: other true edges of any split whose tail (head) is more probable than that of the edge."""
    planted = source.planted
    above = np.zeros((2, len(edges)), np.int64)
    sides: tuple[tuple[int, int, Callable[[Int64, Int64, Int64], Float64]], ...] = (
        (0, 2, planted.tail_score), (2, 0, planted.head_score)
    )  # fmt: skip
    for row, (fixed, other, score) in enumerate(sides):
        query, ends = _matches(graph, edges, fixed, other)
        known = edges[query].copy()
        known[:, other] = ends
        higher = score(*_given(graph, known)) > score(*_given(graph, edges))[query]
        above[row] = np.bincount(query[higher], minlength=len(edges))
    return above


def _matches(graph: GraphFolder, edges: Int64, fixed: int, other: int) -> tuple[Int64, Int64]:
    """(edge, other end) for every distinct true edge with the same relation and the same fixed end."""
    width = max(1, graph.num_relations)
    keys = edges[:, fixed] * width + edges[:, 1]
    distinct, place = np.unique(keys, return_inverse=True)
    found: list[Int64] = []
    for split in graph.num_edges:
        for piece in stored_pieces(graph, split):
            rows = piece.rows()
            wanted = rows[:, fixed] * width + rows[:, 1]
            places = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
            hit = distinct[places] == wanted
            found.append(np.stack([places[hit], rows[hit, other]], axis=1))
    pairs = np.unique(np.concatenate(found), axis=0)
    starts, counts = np.searchsorted(pairs[:, 0], np.arange(len(distinct) + 1)), np.bincount(pairs[:, 0])
    query = np.repeat(np.arange(len(edges)), counts[place])
    within = np.arange(len(query)) - np.repeat(np.cumsum(counts[place]) - counts[place], counts[place])
    return query, pairs[starts[place][query] + within, 1]
