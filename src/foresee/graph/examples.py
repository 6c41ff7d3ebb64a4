"""Batches of edges for link prediction, and of nodes to classify: what a model needs of the examples of a step.

In: the examples of a step. Out: a batch whose rows are what the step reads, and an item for the model. The rows of a
`LinkItem` are heads, tails, wrong tails and wrong heads, one after the other, so that embeddings arrive as the model
reads them. With sampled neighbourhoods the rows are the sample's distinct nodes, of which the targets are the last, and
`positions` says where each end is among them. Negatives and neighbours are drawn from the seeds of the step.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from foresee.arrays import Float32, Int64
from foresee.data.batches import OwnBatch
from foresee.graph.batches import Examples, Picked, batch_of
from foresee.graph.negatives import NegativeOptions, draw, edges_among
from foresee.graph.sampling import ALL, Direction, Sample, Sampler

TAILS, HEADS = 0, 1
"""Sides of an edge that negatives stand for."""
SAMPLERS_KEPT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """Which neighbours are sampled."""

    fanouts: tuple[int, ...]
    """For each hop, that next to the targets first; 0: all neighbours."""
    direction: Direction = "both"
    inside_buffer: bool = False
    """Only edges between partitions of the buffer."""
    seed: int = 0


class Neighbourhoods:
    """Samples for the steps of a stream; not for two threads at once."""

    def __init__(self, graph: Any, options: SamplingOptions) -> None:
        self._near, self.options, self._rows = graph.neighbours(), options, int(graph.partition_rows)
        self._kept: OrderedDict[tuple[int, int], Sampler] = OrderedDict()

    def of(self, targets: Int64, picked: Picked) -> Sample:
        """The neighbourhood of distinct nodes in a step."""
        return self._sampler(picked).sample(targets, picked.step)

    def _sampler(self, picked: Picked) -> Sampler:
        """That of the whole graph, or of what the buffer holds in this state."""
        inside = self.options.inside_buffer
        key = (picked.epoch, picked.state) if inside else (0, 0)
        if key not in self._kept:
            if len(self._kept) == SAMPLERS_KEPT:
                self._kept.popitem(last=False)
            near = self._near.inside(picked.nodes.partitions, self._rows) if inside else self._near
            self._kept[key] = sampler_of(near, self.options)
        return self._kept[key]


def sampler_of(near: Any, options: SamplingOptions) -> Sampler:
    """A sampler of these neighbours."""
    fanouts = [fanout or ALL for fanout in options.fanouts]
    return Sampler(near, fanouts, direction=options.direction, seed=options.seed)


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
    sample: Sample | None = None
    """The neighbourhood of the targets, for an encoder; None: rows go to the decoder as they are."""

    @property
    def num_edges(self) -> int:
        return len(self.relations)


class LinkBatches:
    """Makes batches of edges.

    Args:
        graph: A `GraphFolder`; asked for neighbours if negatives are filtered.
        negatives: How they are drawn.
        neighbourhoods: For an encoder.
    """

    def __init__(self, graph: Any, negatives: NegativeOptions, neighbourhoods: Neighbourhoods | None = None) -> None:
        self._negatives, self._neighbourhoods = negatives, neighbourhoods
        self._near = graph.neighbours() if negatives.filtered else None

    @property
    def identity(self) -> dict[str, Any]:
        sampling = None if self._neighbourhoods is None else asdict(self._neighbourhoods.options)
        return {"links": asdict(self._negatives), "sampling": sampling}

    def __call__(self, picked: Picked) -> OwnBatch:
        heads, relations, tails = (picked.examples[:, column].astype(np.int64) for column in range(3))
        options, step = self._negatives, picked.step
        wrong = draw(options, picked.nodes, step, TAILS, tails), draw(options, picked.nodes, step, HEADS, heads)
        masked = None
        if self._near is not None:
            masked = (
                edges_among(heads, relations, wrong[TAILS], self._near.outgoing),
                edges_among(tails, relations, wrong[HEADS], self._near.incoming),
            )
        rows = np.concatenate([heads, tails, wrong[TAILS].reshape(-1), wrong[HEADS].reshape(-1)])
        sizes = options.num_chunks, options.num_nodes
        if self._neighbourhoods is None:
            return batch_of(step, rows, LinkItem(relations, picked.weights, *sizes, masked))
        targets, positions = np.unique(rows, return_inverse=True)
        sample = self._neighbourhoods.of(targets, picked)
        item = LinkItem(relations, picked.weights, *sizes, masked, positions, sample)
        return batch_of(step, sample.nodes, item)


@dataclass(frozen=True, slots=True)
class NodeItem:
    """What a model needs of a batch of nodes beside its rows."""

    labels: Int64  # [nodes]
    sample: Sample
    """Whose targets they are."""


class NodeBatches:
    """Makes batches of nodes to classify."""

    def __init__(self, graph: Any, neighbourhoods: Neighbourhoods) -> None:
        self._labels, self._neighbourhoods = graph.labels(), neighbourhoods

    @property
    def identity(self) -> dict[str, Any]:
        return {"nodes": True, "sampling": asdict(self._neighbourhoods.options)}

    def __call__(self, picked: Picked) -> OwnBatch:
        targets = np.sort(picked.examples)
        sample = self._neighbourhoods.of(targets, picked)
        return batch_of(picked.step, sample.nodes, NodeItem(np.asarray(self._labels[targets]), sample))


def edges_to_train(graph: Any) -> Examples:
    """The train split of a graph."""
    return Examples(graph.edges("train"), graph.weights("train"), np.asarray(graph.bucket_offsets()))


def nodes_to_train(graph: Any) -> Examples:
    """The nodes of the train split, those of partition q as bucket (q, q)."""
    nodes, p = np.asarray(graph.nodes("train")), int(graph.num_partitions)
    counts = np.zeros(p * p, np.int64)
    counts[np.arange(p) * (p + 1)] = np.bincount(nodes // graph.partition_rows, minlength=p)
    return Examples(nodes, None, np.append(0, np.cumsum(counts)))
