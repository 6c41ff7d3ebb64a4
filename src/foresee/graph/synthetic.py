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

from foresee.arrays import Bool, Float32, Float64, Int64
from foresee.data.source import ReportBadLine, ReportProgress
from foresee.data.synthetic.population import normal
from foresee.errors import DataError
from foresee.graph.edges import stored_pieces
from foresee.graph.folder import NODES_MAX, GraphFolder
from foresee.graph.formats.source import DRAWN, EdgeChunk, NodeChunk, rows_at_once
from foresee.graph.options import GraphOptions
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


SHIFT = 10.0
"""The first so many nodes are about equally frequent, so that none has a large share of all edges."""


@dataclass(frozen=True, slots=True)
class Planted:
    """Who is joined with whom, and how probably."""

    num_nodes: int
    num_relations: int
    communities: int
    inside: float
    exponent: float
    seed: int

    def draw(self, draws: Float64) -> tuple[Int64, Int64, Int64]:
        """(heads, relations, tails) from uniform numbers [4, edges]."""
        heads = _inverse(draws[0], self.num_nodes, SHIFT, self.exponent)
        relations = (draws[1] * max(1, self.num_relations)).astype(np.int64)
        wanted = self.target(heads % self.communities, relations)
        member = _inverse(draws[2], self._members(wanted), SHIFT / self.communities, self.exponent)
        anywhere = _inverse(draws[2], self.num_nodes, SHIFT, self.exponent)
        return heads, relations, np.where(draws[3] < self.inside, member * self.communities + wanted, anywhere)

    def target(self, community: Int64, relation: Int64) -> Int64:
        """The community that a relation leads to from another; the same relation leads back."""
        if not self.num_relations:
            return community
        shifts = hash_counters(key_of(self.seed, 24), 0, self.num_relations) % np.uint64(self.communities)
        return (shifts.astype(np.int64)[relation] - community) % self.communities

    def tail_score(self, heads: Int64, relations: Int64, tails: Int64) -> Float64:
        """The probability of each tail, given head and relation."""
        joined = tails % self.communities == self.target(heads % self.communities, relations)
        return np.where(joined, self._inside_score(tails), 0.0) + (1 - self.inside) * self._weight(tails)

    def head_score(self, heads: Int64, relations: Int64, tails: Int64) -> Float64:
        """The probability of each head, given relation and tail, up to a factor."""
        return self._weight(heads) * self.tail_score(heads, relations, tails)

    def tail_rank(self, heads: Int64, relations: Int64, tails: Int64) -> Int64:
        """The place of each tail among all nodes, the most probable first, from 1."""
        wanted = self.target(heads % self.communities, relations)
        own = self.tail_score(heads, relations, tails)
        return self._rank(
            own,
            wanted,
            lambda node: self._inside_score(node) + (1 - self.inside) * self._weight(node),
            lambda node: (1 - self.inside) * self._weight(node),
        )

    def head_rank(self, heads: Int64, relations: Int64, tails: Int64) -> Int64:
        """The place of each head among all nodes."""
        elsewhere = (1 - self.inside) * self._weight(tails)
        joined = elsewhere + self._inside_score(tails)
        return self._rank(
            self.head_score(heads, relations, tails),
            self.target(tails % self.communities, relations),
            lambda node: self._weight(node) * joined,
            lambda node: self._weight(node) * elsewhere,
        )

    def _rank(
        self, own: Float64, community: Int64, joined: Callable[[Int64], Float64], other: Callable[[Int64], Float64]
    ) -> Int64:
        """1 + members of the community with a higher score + nodes outside of it with a higher one."""
        members = self._members(community)
        better = _count(lambda place: joined(place * self.communities + community) > own, members)
        outside = _count(lambda node: other(node) > own, np.full(len(own), self.num_nodes))
        counted_twice: Int64 = np.clip(-((community - outside) // self.communities), 0, members)
        return np.asarray(1 + better + outside - counted_twice)

    def _members(self, community: Int64) -> Int64:
        return (self.num_nodes - 1 - community) // self.communities + 1

    def _weight(self, nodes: Int64) -> Float64:
        return _share(nodes, np.int64(self.num_nodes), SHIFT, self.exponent)

    def _inside_score(self, nodes: Int64) -> Float64:
        members = self._members(nodes % self.communities)
        return self.inside * _share(nodes // self.communities, members, SHIFT / self.communities, self.exponent)


def _integral(values: Float64, exponent: float) -> Float64:
    """Of values ** -exponent."""
    return np.log(values) if exponent == 1 else np.asarray(values ** (1 - exponent) / (1 - exponent))


def _share(places: Int64, num: Int64 | np.int64, shift: float, exponent: float) -> Float64:
    """The part that places..places+1 have in the power law over 0..num."""
    low, high = np.asarray(places + shift, np.float64), np.asarray(num + shift, np.float64)
    total = _integral(high, exponent) - _integral(np.asarray(shift), exponent)
    return np.asarray((_integral(low + 1, exponent) - _integral(low, exponent)) / total)


def _inverse(draws: Float64, num: Int64 | int, shift: float, exponent: float) -> Int64:
    """Numbers below `num` by the power law, from uniform draws."""
    low = _integral(np.asarray(shift), exponent)
    reached = low + draws * (_integral(np.asarray(num + shift, np.float64), exponent) - low)
    values = np.exp(reached) if exponent == 1 else (reached * (1 - exponent)) ** (1 / (1 - exponent))
    return np.asarray(np.clip((values - shift).astype(np.int64), 0, np.asarray(num) - 1), np.int64)


def _count(holds: Callable[[Int64], Bool], num: Int64) -> Int64:
    """How many of 0..num-1 a condition holds for, which holds for the first ones and then no more; by halving."""
    low, high = np.zeros(len(num), np.int64), num.copy()
    while (low < high).any():
        middle = np.minimum((low + high) // 2, num - 1)
        yes, going = holds(middle), low < high
        low, high = np.where(going & yes, middle + 1, low), np.where(going & ~yes, middle, high)
    return low
