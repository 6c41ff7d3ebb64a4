"""An epoch over a graph, cut into batches in the order that a traversal gives: what is planned and trained.

In: examples sorted by bucket (edges of the train split, or nodes to classify), an order, and a function that makes a
batch of the examples of a step (`examples.py`). Out: a `BatchStream`. A batch is a function of (graph, order, seed,
epoch, step) alone: the examples of a state's buckets are shuffled by the state's key and cut into batches of nearly
equal size. Where a state begins nothing is in flight. Any step can be asked for first. The examples of a state are read
into memory once, except where one state has all of them: then they stay on disk.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from threading import Lock
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float32, Int64
from foresee.data.batches import OwnBatch
from foresee.errors import UsageError
from foresee.graph.draws import key_of, shuffled
from foresee.graph.negatives import NodeRange
from foresee.graph.orders.traversal import Traversal

STATES_KEPT = 2
FORMAT = 1
"""Raised when the same seed gives other batches: old plans must not match new ones."""


@dataclass(frozen=True, slots=True)
class Examples:
    """What is trained on: sorted by bucket."""

    array: NDArray[Any]
    """[edges, 3] or [nodes], on disk."""
    weights: Float32 | None
    bucket_offsets: Int64  # [partitions² + 1]


@dataclass(frozen=True, slots=True)
class Picked:
    """The examples of a step."""

    step: int
    epoch: int
    state: int
    examples: NDArray[Any]
    weights: Float32 | None
    nodes: NodeRange
    """Those of the state's partitions."""


class Assemble(Protocol):
    """Makes batches of examples."""

    @property
    def identity(self) -> dict[str, Any]:
        """Tells what it makes from what others make."""
        ...

    def __call__(self, picked: Picked) -> OwnBatch: ...


@dataclass(frozen=True, slots=True)
class Pieces:
    """Where the examples of a state are: pieces of all of them."""

    begins: Int64  # [pieces]
    offsets: Int64  # [pieces + 1]: where each piece begins among the state's examples

    @property
    def num_examples(self) -> int:
        return int(self.offsets[-1])

    def places(self, positions: Int64) -> Int64:
        """Examples by their positions among the state's."""
        piece = np.searchsorted(self.offsets, positions, side="right") - 1
        return self.begins[piece] + positions - self.offsets[piece]

    def slices(self) -> Iterator[slice]:
        for begin, size in zip(self.begins, np.diff(self.offsets), strict=True):
            yield slice(int(begin), int(begin + size))


def pieces_of(buckets: Any, num_partitions: int, bucket_offsets: Int64) -> Pieces:
    """The examples of some buckets, those that follow one another on disk as one piece."""
    numbers = np.sort(buckets[:, 0].astype(np.int64) * num_partitions + buckets[:, 1])
    begins, ends = bucket_offsets[numbers], bucket_offsets[numbers + 1]
    begins, ends = begins[begins < ends], ends[begins < ends]
    new = np.ones(len(begins), np.bool_)
    new[1:] = begins[1:] != ends[:-1]
    last = np.append(new[1:], True)[: len(new)]
    return Pieces(begins[new], np.append(0, np.cumsum(ends[last] - begins[new])))


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch cut into steps."""

    traversal: Traversal
    states: tuple[Pieces, ...]
    first_steps: tuple[int, ...]
    """Of each state, within the epoch; and the number of all."""

    @property
    def num_steps(self) -> int:
        return self.first_steps[-1]


class GraphStream:
    """Batches by step.

    Args:
        graph: A `GraphFolder`.
        examples: What is trained on.
        traverse: The traversal of each epoch, from its number; the same whenever it is asked.
        assemble: Makes a batch of the examples of a step.
        batch_size: Examples of a batch at most.
        epochs: Passes over all examples.
        seed: Of their order.
        order: The name and numbers of the order, which tell this stream from others.
    """

    def __init__(
        self, graph: Any, examples: Examples, traverse: Callable[[int], Traversal], assemble: Assemble, *,
        batch_size: int, epochs: int, seed: int, order: Any,
    ) -> None:  # fmt: skip
        self.graph, self.batch_size = graph, batch_size
        self._examples, self._assemble, self._seed, self._order = examples, assemble, seed, order
        self._lock = Lock()
        self._loaded: OrderedDict[tuple[int, int], tuple[Any, Any]] = OrderedDict()
        self._epochs = [self._cut(traverse(epoch)) for epoch in range(epochs)]
        self._first_steps = list(accumulate((epoch.num_steps for epoch in self._epochs), initial=0))

    source = "graph"
    """What messages call that which is trained on."""

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
            "format": FORMAT, "graph": self.graph.digest, "order": self._order, "seed": self._seed,
            "batch_size": self.batch_size, "epochs": len(self._epochs), **self._assemble.identity,
        }  # fmt: skip
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def steps_of_epoch(self, epoch: int) -> int:
        """Steps of one epoch; those of another may be a few more or fewer."""
        return self._epochs[epoch].num_steps

    @property
    def first_steps(self) -> list[int]:
        """The first step of each epoch; and the number of all."""
        return self._first_steps

    def state_steps(self, epoch: int) -> tuple[int, ...]:
        """The first step of each state of an epoch, within it; and the number of all."""
        return self._epochs[epoch].first_steps

    def traversal(self, epoch: int) -> Traversal:
        """The states and buckets of an epoch."""
        return self._epochs[epoch].traversal

    def state_of(self, step: int) -> tuple[int, int]:
        """(epoch, state) of a step."""
        epoch = int(np.searchsorted(self._first_steps, step, side="right")) - 1
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
        with self._lock:
            epoch, state = self.state_of(step)
            first = self._first_steps[epoch] + self._epochs[epoch].first_steps[state]
            return replace(self._assemble(self._picked(step, epoch, state)), drained=step == first)

    def _cut(self, traversal: Traversal) -> Epoch:
        offsets = self._examples.bucket_offsets
        states = tuple(pieces_of(it, traversal.num_partitions, offsets) for it in traversal.buckets)
        numbers = [-(-it.num_examples // self.batch_size) for it in states]
        return Epoch(traversal, states, tuple(accumulate(numbers, initial=0)))

    def _picked(self, step: int, epoch: int, state: int) -> Picked:
        cut = self._epochs[epoch]
        where, first = cut.states[state], cut.first_steps[state]
        within, num_batches = step - self._first_steps[epoch] - first, cut.first_steps[state + 1] - first
        begin, end = (where.num_examples * part // num_batches for part in (within, within + 1))
        positions = shuffled(key_of(self._seed, epoch, state), where.num_examples, begin, end)
        examples, weights = self._examples.array, self._examples.weights
        if len(cut.states) == 1:
            positions = where.places(positions)
        else:
            examples, weights = self._load(epoch, state)
        nodes = NodeRange(
            num_nodes=self.num_rows, partition_rows=int(self.graph.partition_rows),
            partitions=np.sort(cut.traversal.states[state]),
        )  # fmt: skip
        chosen = None if weights is None else weights[positions]
        return Picked(step, epoch, state, examples[positions], chosen, nodes)

    def _load(self, epoch: int, state: int) -> tuple[Any, Any]:
        if (epoch, state) not in self._loaded:
            if len(self._loaded) == STATES_KEPT:
                self._loaded.popitem(last=False)
            slices = list(self._epochs[epoch].states[state].slices())
            array, weights = self._examples.array, self._examples.weights
            self._loaded[epoch, state] = (
                np.concatenate([array[it] for it in slices]),
                None if weights is None else np.concatenate([weights[it] for it in slices]),
            )
        self._loaded.move_to_end((epoch, state))
        return self._loaded[epoch, state]


def batch_of(step: int, rows: Int64, item: Any) -> OwnBatch:
    """A batch with one lookup for each row: no dense features, and labels that nobody reads."""
    return OwnBatch(step, np.empty((len(rows), 0), np.float32), np.zeros(len(rows), np.float32), rows, None, 1, item)


def whole_graph(num_partitions: int) -> Traversal:
    """One state with all partitions and all buckets: examples in random order."""
    every = np.arange(num_partitions, dtype=np.int32)
    return Traversal(num_partitions, (every,), (np.stack(np.meshgrid(every, every, indexing="ij"), -1).reshape(-1, 2),))
