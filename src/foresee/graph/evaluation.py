"""How good a model of edges or nodes is on a split, out of core: candidates stream through in blocks.

In: a model, where vectors of nodes come from (`Vectors`: a store, or an encoder over one), a graph and a split. Out:
`LinkMetrics` over both sides of every edge, against all nodes or against a sample, filtered or not; `NodeMetrics` for
classes. Memory is bounded by the numbers of queries and candidates at once, whatever the size of the table; the table
is read once for every `queries_at_once` queries. Nothing is learned or drawn from torch's generator meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, Protocol

import numpy as np
import torch
from numba import njit
from torch import Tensor

from foresee.arrays import Float64, Int64
from foresee.errors import DataError
from foresee.graph.draws import below, key_of
from foresee.graph.ranking import Known, LinkMetrics, Queries, Ranks, Ties, summary
from foresee.graph.sampling import Sampler
from foresee.run.evaluation import judging
from foresee.store.contract import Rows, Store

EVALUATION_STEP = -1
"""Neighbours are drawn as of a step that no training has."""


class Vectors(Protocol):
    """Vectors of nodes, as the decoder compares them."""

    @property
    def num_nodes(self) -> int: ...

    def of(self, nodes: Int64) -> Tensor:
        """[nodes, dim], of distinct nodes."""
        ...


class StoredVectors:
    """The rows of a store themselves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.num_nodes = store.layout.num_rows

    def of(self, nodes: Int64) -> Tensor:
        rows = Rows.empty(len(nodes), self._store.layout)
        self._store.read(np.ascontiguousarray(nodes, np.int64), rows)
        return torch.from_numpy(self._store.layout.unpack(rows.values))


class EncodedVectors:
    """What an encoder makes of rows: every node once, block by block, into a file that goes when this does.

    Args:
        encoder: Gives vectors of a sample's targets.
        rows: Vectors that it reads.
        sampler: Draws neighbourhoods; the same for the same node.
        nodes_at_once: Targets of a block.
    """

    def __init__(self, encoder: Any, rows: Vectors, sampler: Sampler, *, nodes_at_once: int = 1024) -> None:
        self.num_nodes = rows.num_nodes
        self._vectors: Any = None
        with TemporaryFile() as file:
            for begin in range(0, self.num_nodes, nodes_at_once):
                targets = np.arange(begin, min(begin + nodes_at_once, self.num_nodes))
                file.write(encoded(encoder, rows, sampler, targets).numpy().tobytes())
            file.flush()
            self._vectors = np.memmap(file, np.float32, "r").reshape(self.num_nodes, -1)

    def of(self, nodes: Int64) -> Tensor:
        return torch.from_numpy(self._vectors[nodes])


def encoded(encoder: Any, rows: Vectors, sampler: Sampler, targets: Int64) -> Tensor:
    """What an encoder makes of some nodes, [nodes, width]."""
    sample = sampler.sample(targets, EVALUATION_STEP)
    out: Tensor = encoder(sample, rows.of(sample.nodes))
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """How edges are ranked."""

    at: tuple[int, ...] = (1, 3, 10)
    """The k of Hits@k."""
    ties: Ties = "realistic"
    filtered: bool = True
    """Candidates that are edges of any split are no mistakes."""
    num_candidates: int | None = None
    """Of a sample drawn for every `queries_at_once` queries; None: all nodes."""
    degree_share: float = 0.0
    """Of the sample, how many are ends of train edges, so that nodes come as often as their degree has it."""
    both_sides: bool = True
    edges_max: int | None = None
    """Rank so many edges of the split, chosen by the seed. None: all."""
    seed: int = 0
    queries_at_once: int = 1 << 15
    candidates_at_once: int = 1 << 11


def evaluate_links(
    model: Any, vectors: Vectors, graph: Any, split: str, options: EvaluationOptions | None = None
) -> LinkMetrics:
    """MRR and Hits@k of a split, or of some of its edges."""
    options = options or EvaluationOptions()
    edges = _chosen(graph, split, options)
    truths = Truths(graph) if options.filtered else None
    ranks = []
    with judging(model):
        for heads in (False, True) if options.both_sides else (False,):
            for begin in range(0, len(edges), options.queries_at_once):
                part = np.asarray(edges[begin : begin + options.queries_at_once], np.int64)
                counted = Ranks(
                    model.decoder,
                    _queries(model, vectors, part, heads, truths),
                    candidates_at_once=options.candidates_at_once,
                )
                for nodes in _candidates(graph, vectors.num_nodes, options, begin + int(heads)):
                    counted.add(nodes, vectors.of(nodes))
                ranks.append(counted.ranks(options.ties))
    num_candidates = min(options.num_candidates or vectors.num_nodes, vectors.num_nodes)
    return summary(
        ranks, at=options.at, ties=options.ties, num_candidates=num_candidates, filtered=options.filtered
    )  # fmt: skip


def _chosen(graph: Any, split: str, options: EvaluationOptions) -> Any:
    if split not in graph.num_edges or not graph.num_edges[split]:
        raise DataError(f"the graph has no edges for {split}; it has {', '.join(graph.num_edges)}")
    edges = graph.edges(split)
    if options.edges_max is None or options.edges_max >= len(edges):
        return edges
    rng = np.random.Generator(np.random.PCG64(options.seed))
    return edges[np.sort(rng.choice(len(edges), options.edges_max, replace=False))]


def _queries(model: Any, vectors: Vectors, edges: Int64, heads: bool, truths: Truths | None) -> Queries:
    known, wanted = (edges[:, 2], edges[:, 0]) if heads else (edges[:, 0], edges[:, 2])
    relations = edges[:, 1]
    nodes, places = np.unique(np.concatenate([known, wanted]), return_inverse=True)
    ends = vectors.of(nodes)
    known_vectors, right_vectors = (ends[torch.from_numpy(it)] for it in np.split(places, 2))
    queries = model.decoder.query(known_vectors, torch.from_numpy(relations), heads=heads)
    left_out = () if truths is None else truths.of(known, relations, heads=heads)
    return Queries(queries, wanted, right_vectors, left_out)


def _candidates(graph: Any, num_nodes: int, options: EvaluationOptions, draw: int) -> Iterator[Int64]:
    """Blocks of candidates, ascending; of a sample each node as often as it was drawn."""
    if options.num_candidates is None or options.num_candidates >= num_nodes:
        for begin in range(0, num_nodes, options.candidates_at_once):
            yield np.arange(begin, min(begin + options.candidates_at_once, num_nodes))
        return
    by_degree = round(options.degree_share * options.num_candidates)
    drawn = [below(key_of(options.seed, draw, 0), num_nodes, options.num_candidates - by_degree)]
    if by_degree:
        edges = graph.edges("train")
        ends = below(key_of(options.seed, draw, 1), 2 * len(edges), by_degree)
        drawn.append(np.asarray(edges[ends // 2, 2 * (ends % 2)], np.int64))
    sample = np.unique(np.concatenate(drawn))
    for begin in range(0, len(sample), options.candidates_at_once):
        yield sample[begin : begin + options.candidates_at_once]


class Truths:
    """All edges of the graph, of every split, by their known end: the train split's from its adjacency on disk."""

    def __init__(self, graph: Any) -> None:
        self._near = graph.neighbours()
        others = [np.asarray(graph.edges(split)) for split in graph.num_edges if split != "train"]
        edges = np.concatenate([np.empty((0, 3), np.int64), *others]).astype(np.int64)
        self._others = {
            heads: edges[np.lexsort((edges[:, 0 if heads else 2], edges[:, 2 if heads else 0]))]
            for heads in (False, True)
        }

    def of(self, known: Int64, relations: Int64, *, heads: bool) -> tuple[Known, ...]:
        """Every other end of an edge with that end and relation, of the train split and of all others."""
        near, others = self._near.incoming if heads else self._near.outgoing, self._others[heads]
        begins, ends = np.searchsorted(others[:, 2 if heads else 0], [known, known + 1])
        return (
            _with_relation(near.offsets[known], near.offsets[known + 1], relations, near.relations, near.ids),
            _with_relation(begins, ends, relations, others[:, 1], others[:, 0 if heads else 2]),
        )


def _with_relation(begins: Int64, ends: Int64, relations: Int64, kinds: Any, ids: Any) -> Known:
    """In each query's range, those whose kind is its relation; all of them where edges have none."""
    kinds = np.empty(0, np.int64) if kinds is None else kinds
    offsets = np.zeros(len(begins) + 1, np.int64)
    _fill_with_relation(begins, ends, relations, kinds, ids, offsets, np.empty(0, np.int64))
    np.cumsum(offsets, out=offsets)
    nodes = np.empty(offsets[-1], np.int64)
    _fill_with_relation(begins, ends, relations, kinds, ids, offsets, nodes)
    return Known(offsets, nodes)


@njit(nogil=True, cache=True)
def _fill_with_relation(
    begins: Int64, ends: Int64, relations: Int64, kinds: Any, ids: Any, offsets: Int64, out: Int64
) -> None:
    """Counts into `offsets` if there is no place for the ids yet, else fills them in."""
    for query in range(len(begins)):
        place = offsets[query]
        for at in range(begins[query], ends[query]):
            if len(kinds) == 0 or kinds[at] == relations[query]:
                if len(out):
                    out[place] = ids[at]
                    place += 1
                else:
                    offsets[query + 1] += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMetrics:
    """What classes were found."""

    num_nodes: int
    accuracy: float
    macro_f1: float
    """The mean over classes of the harmonic mean of precision and recall; classes that nobody has or gives left out."""

    def figure(self, name: str) -> float | None:
        """One of the figures, by the name that `as_dict` gives it."""
        return float(self.as_dict()[name])

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"num_nodes": self.num_nodes, "accuracy": self.accuracy, "macro_f1": self.macro_f1}

    def in_words(self) -> str:
        """On one line."""
        return f"accuracy {self.accuracy:.4f}  macro F1 {self.macro_f1:.4f}  ({self.num_nodes:,} nodes)"


def node_metrics(given: Int64, labels: Int64, num_classes: int) -> NodeMetrics:
    """Of classes that a model gave to nodes with these labels."""
    right = np.bincount(labels[given == labels], minlength=num_classes)
    both = np.bincount(given, minlength=num_classes) + np.bincount(labels, minlength=num_classes)
    there = both > 0
    scores: Float64 = 2 * right[there] / both[there]
    return NodeMetrics(
        num_nodes=len(labels), accuracy=float(right.sum() / max(1, len(labels))),
        macro_f1=float(scores.mean()) if len(scores) else 0.0,
    )  # fmt: skip


def evaluate_nodes(
    logits: Callable[[Int64], Tensor], graph: Any, split: str, *, nodes_at_once: int = 1024,
    nodes_max: int | None = None,
) -> NodeMetrics:  # fmt: skip
    """Accuracy and F1 of a split; `logits` gives those of some nodes, [nodes, classes]."""
    nodes = np.asarray(graph.nodes(split))[:nodes_max]
    labels = np.asarray(graph.labels()[nodes])
    pieces = range(0, len(nodes), nodes_at_once)
    given = [logits(nodes[begin : begin + nodes_at_once]).argmax(1).numpy() for begin in pieces]
    return node_metrics(np.concatenate([np.empty(0, np.int64), *given]), labels, int(graph.num_classes))
