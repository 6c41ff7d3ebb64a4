"""Batches of edges for link prediction, in the order that a traversal gives: what is planned and trained.

In: a prepared graph, an order, the size of a batch and how negatives are drawn. Out: a `BatchStream`. A batch is a pure
function of (graph, order, seed, epoch, step): the edges of a state's buckets are shuffled by its key and cut into
batches of nearly equal size, negatives are drawn by the step's. Rows of a batch are heads, tails, wrong tails and wrong
heads, one after the other, so that embeddings arrive as the model reads them; with a sampler they are the distinct
nodes of the sampled neighbourhood, and `LinkItem.positions` says where each end is.

Every state's edges are read into memory once, except where one state has the whole graph: then they stay on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np

from foresee.base.arrays import Float32, Int64
from foresee.custom_data.batches import OwnBatch
from foresee.errors import UsageError
from foresee.graph.draws import key_of, shuffled
from foresee.graph.negatives import NegativeOptions, NodeRange, draw, edges_among
from foresee.graph.orders.traversal import Traversal

STATES_KEPT = 2
FORMAT = 1
"""Raised when the same seed gives other batches: old plans must not match new ones."""
TAILS, HEADS = 0, 1
"""Sides of an edge that negatives stand for."""


@dataclass(frozen=True, slots=True)
class LinkItem:
    """What a model needs of a batch of edges beside its rows."""

    relations: Int64  # [edges]
    weights: Float32 | None  # [edges]
    num_chunks: int
    num_negatives: int
    masked: tuple[Int64, Int64] | None
    """For tails and for heads [found, 2]: (edge, negative) pairs that are edges of the graph, and count for nothing."""
    positions: Int64 | None = None
    """Where heads, tails, wrong tails and wrong heads are among the sample's targets; None: the rows are these."""
    sample: Any = None
    """The neighbourhood of the targets, for an encoder; None: rows go to the decoder as they are."""

    @property
    def num_edges(self) -> int:
        return len(self.relations)


@dataclass(frozen=True, slots=True)
class StateEdges:
    """Where the edges of a state are: pieces of the train split."""

    begins: Int64  # [pieces]
    offsets: Int64  # [pieces + 1]: where each piece begins among the state's edges

    @property
    def num_edges(self) -> int:
        return int(self.offsets[-1])

    def places(self, positions: Int64) -> Int64:
        """Edges of the train split, by their positions among the state's."""
        piece = np.searchsorted(self.offsets, positions, side="right") - 1
        return self.begins[piece] + positions - self.offsets[piece]

    def pieces(self) -> Iterator[slice]:
        for begin, size in zip(self.begins, np.diff(self.offsets), strict=True):
            yield slice(int(begin), int(begin + size))


def edges_of(buckets: Any, num_partitions: int, bucket_offsets: Int64) -> StateEdges:
    """The edges of some buckets, those that follow one another on disk as one piece."""
    numbers = np.sort(buckets[:, 0].astype(np.int64) * num_partitions + buckets[:, 1])
    begins, ends = bucket_offsets[numbers], bucket_offsets[numbers + 1]
    begins, ends = begins[begins < ends], ends[begins < ends]
    new = np.ones(len(begins), np.bool_)
    new[1:] = begins[1:] != ends[:-1]
    last = np.append(new[1:], True)[: len(new)]
    return StateEdges(begins[new], np.append(0, np.cumsum(ends[last] - begins[new])))


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch cut into steps."""

    traversal: Traversal
    states: tuple[StateEdges, ...]
    first_steps: tuple[int, ...]
    """Of each state, within the epoch; and the number of all."""

    @property
    def num_steps(self) -> int:
        return self.first_steps[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Which batches of edges."""

    batch_edges: int
    """Edges of a batch at most."""
    epochs: int = 1
    seed: int = 0
    negatives: NegativeOptions = field(default_factory=NegativeOptions)


class GraphStream:
    """Batches of edges.

    Args:
        graph: A `GraphFolder`.
        traverse: The traversal of each epoch, from its number; the same whenever it is asked.
        options: Size and number of batches, and their negatives.
        order: The name and numbers of the order, which tell this stream from others.
        sample: Neighbourhoods of distinct nodes in a step of some state, for an encoder: `sample(targets, step, state)`
            gives an object with `node_ids`, of which the targets are the last.
    """

    def __init__(
        self, graph: Any, traverse: Callable[[int], Traversal], options: LinkOptions, *, order: Any,
        sample: Callable[[Int64, int, NodeRange], Any] | None = None, sampling: Any = None,
    ) -> None:  # fmt: skip
        self.options, self.graph = options, graph
        self._traverse, self._order, self._sample, self._sampling = traverse, order, sample, sampling
        self._edges, self._weights = graph.edges("train"), graph.weights("train")
        self._bucket_offsets = np.asarray(graph.bucket_offsets())
        self._neighbours = graph.neighbours() if options.negatives.filtered else None
        self._lock = Lock()
        self._loaded: OrderedDict[tuple[int, int], tuple[Any, Any]] = OrderedDict()
        self._epochs = [self._cut(epoch) for epoch in range(options.epochs)]
        self._first_steps = list(accumulate((epoch.num_steps for epoch in self._epochs), initial=0))

    @property
    def num_steps(self) -> int:
        return self._first_steps[-1]

    @property
    def num_rows(self) -> int:
        return int(self.graph.num_nodes)

    @property
    def digest(self) -> str:
        """Of graph, order, seeds and sizes."""
        identity = {
            "format": FORMAT, "graph": self.graph.digest, "partitions": self.graph.num_partitions,
            "order": self._order, "options": asdict(self.options), "sampling": self._sampling,
        }  # fmt: skip
        return hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()

    def epoch_of(self, step: int) -> int:
        """Which epoch a step belongs to."""
        return int(np.searchsorted(self._first_steps, step, side="right")) - 1

    def steps_of_epoch(self, epoch: int) -> int:
        """Steps of one epoch; those of another may be a few more or fewer."""
        return self._epochs[epoch].num_steps

    def traversal(self, epoch: int) -> Traversal:
        """The states and buckets of an epoch."""
        return self._epochs[epoch].traversal

    def state_of(self, step: int) -> tuple[int, int]:
        """(epoch, state) of a step."""
        epoch = self.epoch_of(step)
        firsts = self._epochs[epoch].first_steps
        return epoch, int(np.searchsorted(firsts, step - self._first_steps[epoch], side="right")) - 1

    def batches(self, first_step: int = 0) -> Iterator[OwnBatch]:
        """All batches from `first_step` on."""
        if not 0 <= first_step <= self.num_steps:
            raise UsageError(f"step {first_step} is not one of the stream's {self.num_steps} steps")
        for step in range(first_step, self.num_steps):
            yield self.batch(step)

    def batch(self, step: int) -> OwnBatch:
        """The batch of one step; any may be asked for, in any order."""
        if not 0 <= step < self.num_steps:
            raise UsageError(f"step {step} is not one of the stream's {self.num_steps} steps")
        epoch, state = self.state_of(step)
        edges, weights = self._edges_of(step, epoch, state)
        heads, relations, tails = (edges[:, column].astype(np.int64) for column in range(3))
        nodes = self._nodes(epoch, state)
        options = self.options.negatives
        wrong = draw(options, nodes, step, TAILS, tails), draw(options, nodes, step, HEADS, heads)
        masked = self._masked(heads, relations, tails, *wrong) if options.filtered else None
        rows = np.concatenate([heads, tails, wrong[TAILS].reshape(-1), wrong[HEADS].reshape(-1)])
        item = LinkItem(relations, weights, options.num_chunks, options.num_nodes, masked)
        return batch_of(step, rows, item) if self._sample is None else self._sampled(step, rows, item, nodes)

    def _sampled(self, step: int, rows: Int64, item: LinkItem, nodes: NodeRange) -> OwnBatch:
        assert self._sample is not None
        targets, positions = np.unique(rows, return_inverse=True)
        sample = self._sample(targets, step, nodes)
        whole = LinkItem(
            item.relations, item.weights, item.num_chunks, item.num_negatives, item.masked, positions, sample
        )
        return batch_of(step, sample.node_ids, whole)

    def _cut(self, epoch: int) -> Epoch:
        traversal = self._traverse(epoch)
        states = tuple(edges_of(it, traversal.num_partitions, self._bucket_offsets) for it in traversal.buckets)
        numbers = [-(-it.num_edges // self.options.batch_edges) for it in states]
        return Epoch(traversal, states, tuple(accumulate(numbers, initial=0)))

    def _nodes(self, epoch: int, state: int) -> NodeRange:
        partitions = np.sort(self._epochs[epoch].traversal.states[state])
        return NodeRange(
            num_nodes=self.num_rows, partition_rows=self.graph.partition_rows, partitions=partitions
        )  # fmt: skip

    def _edges_of(self, step: int, epoch: int, state: int) -> tuple[Any, Float32 | None]:
        """The edges of a step, [edges, 3], and their weights."""
        cut = self._epochs[epoch]
        where, first = cut.states[state], cut.first_steps[state]
        within, num_batches = step - self._first_steps[epoch] - first, cut.first_steps[state + 1] - first
        begin, end = (where.num_edges * part // num_batches for part in (within, within + 1))
        positions = shuffled(key_of(self.options.seed, epoch, state), where.num_edges, begin, end)
        if len(cut.states) == 1:
            places = where.places(positions)
            return self._edges[places], None if self._weights is None else self._weights[places]
        edges, weights = self._load(epoch, state)
        return edges[positions], None if weights is None else weights[positions]

    def _load(self, epoch: int, state: int) -> tuple[Any, Any]:
        with self._lock:
            if (epoch, state) not in self._loaded:
                if len(self._loaded) == STATES_KEPT:
                    self._loaded.popitem(last=False)
                pieces = list(self._epochs[epoch].states[state].pieces())
                weights = self._weights
                self._loaded[epoch, state] = (
                    np.concatenate([self._edges[piece] for piece in pieces]),
                    None if weights is None else np.concatenate([weights[piece] for piece in pieces]),
                )
            self._loaded.move_to_end((epoch, state))
            return self._loaded[epoch, state]

    def _masked(
        self, heads: Int64, relations: Int64, tails: Int64, wrong_tails: Int64, wrong_heads: Int64
    ) -> tuple[Int64, Int64]:
        near: Any = self._neighbours
        return (
            edges_among(heads, relations, wrong_tails, near.outgoing),
            edges_among(tails, relations, wrong_heads, near.incoming),
        )


def batch_of(step: int, rows: Int64, item: Any) -> OwnBatch:
    """A batch with one lookup for each row: no dense features, and labels that nobody reads."""
    return OwnBatch(
        step, np.empty((len(rows), 0), np.float32), np.zeros(len(rows), np.float32), rows, None, 1, item
    )  # fmt: skip


def whole_graph(num_partitions: int) -> Traversal:
    """One state with all partitions and all buckets: edges in random order."""
    all_of_them = np.arange(num_partitions, dtype=np.int32)
    buckets = np.stack(np.meshgrid(all_of_them, all_of_them, indexing="ij"), -1).reshape(-1, 2)
    return Traversal(num_partitions, (all_of_them,), (buckets,))
