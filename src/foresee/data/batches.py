"""Batches that a person makes: a DataLoader, a list, or a function, read ahead of training.

    batches = Batches(bags, loader)
    for step in lookahead(batches, tables, cache_rows=20_000):
        dense, ids, labels = step.item

In: what gives batches, and the bags their ids belong to. Out: a stream that a plan is made of. Every batch is pulled
once, in the thread of the training loop (`engine.feed`), a fixed number of steps ahead, and kept until its step. So
batches need not come out the same twice, except to resume after a commit: then those that were trained already are
read again and dropped (`sources` checks that they are the same).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from foresee.arrays import Float32, Int32
from foresee.data.batch import Batch
from foresee.data.jagged import BagSpecs, bags_of, is_keyed_jagged
from foresee.errors import DataError, UsageError

STEPS_MAX = (1 << 31) - 1
"""Number of steps where nobody knows it."""
READ_AHEAD_STEPS = 256
"""Batches whose items are kept in memory. A log's stream, whose batches are small, is read further."""


@dataclass(frozen=True, slots=True)
class OwnBatch(Batch):
    """A batch with what it was made from."""

    item: Any = None
    weights: Float32 | None = None  # [lookups]
    drained: bool = False
    """Its rows are read when nothing is in flight."""
    is_last_known: bool = False
    """The next batch is read only after this one is trained."""

    def part(self, samples: Int32) -> OwnBatch:
        """Some of the samples; the item stays whole, as nobody knows what is in it."""
        own, weights = Batch.part(self, samples), self.weights
        if weights is not None:
            # A weight for each lookup: they are chosen as rows are.
            beside = Batch(self.step, self.dense, self.labels, weights, self.bag_offsets, self.num_features)  # type: ignore[arg-type]
            weights = Batch.part(beside, samples).rows.astype(np.float32, copy=False)
        return OwnBatch(
            own.step, own.dense, own.labels, own.rows, own.bag_offsets, own.num_features, self.item, weights,
            self.drained, self.is_last_known, sample_weights=own.sample_weights,
        )  # fmt: skip


class Batches:
    """Batches that a person makes, read ahead of training: the first argument of `lookahead`.

    Items are (dense, ids, labels), ids alone, or objects with dense_features, sparse_features and labels, as TorchRec's
    batches. For other items, `ids` says where the ids of an item are.

    Args:
        bags: The tables and features that ids belong to.
        source: Anything that can be iterated, such as a `DataLoader`, or a function of the epoch that returns such a
            thing. It is iterated once per epoch, in the thread of the training loop. Batches of the next epoch are
            read ahead only from lists and functions of the epoch; any other source is iterated again when the last
            step of its epoch is trained, as a plain loop does. A source with a method `from_step`, and a name, is not
            read from its beginning to resume (`data.adapters`).
        epochs: How often the source is read.
        num_steps: Of all epochs together, where it is known and `source` cannot say it; only displays use it.
        read_ahead_steps: How many batches the planner reads beyond the one it plans; their items wait in memory, a few
            more for rows that are fetched ahead.
        ids: A function that returns the ids of an item. It is called in the planner's thread.
        name: Tells these batches from others, such as "2024-05-17"; without one the ids and labels of the first do.

    Raises:
        UsageError: Nothing would be trained.
    """

    def __init__(
        self,
        bags: BagSpecs,
        source: Iterable[Any] | Callable[[int], Iterable[Any]],
        *,
        epochs: int = 1,
        num_steps: int | None = None,
        read_ahead_steps: int = READ_AHEAD_STEPS,
        ids: Callable[[Any], Any] | None = None,
        name: str | None = None,
    ) -> None:
        if epochs < 1:
            raise UsageError(f"epochs={epochs} trains nothing; give 1 or more")
        if read_ahead_steps < 1:
            raise UsageError(f"read_ahead_steps={read_ahead_steps} looks nowhere; give 1 or more")
        self.bags, self.epochs, self.read_ahead_steps, self.name = bags, epochs, read_ahead_steps, name
        self._source, self._num_steps, self._ids = source, num_steps, ids
        self._spent = False

    @property
    def num_rows(self) -> int:
        """Every row id is below this."""
        return self.bags.num_rows

    @property
    def num_steps(self) -> int:
        """Of all epochs; `STEPS_MAX` where the source has no length."""
        if self._num_steps is not None:
            return self._num_steps
        try:
            return len(self._source) * self.epochs  # type: ignore[arg-type]
        except TypeError:
            return STEPS_MAX

    @property
    def digest(self) -> str:
        """Of the tables and features: what the batches are is known only once they are read."""
        return hashlib.sha256(repr(("own batches", self.bags.features, self.epochs)).encode()).hexdigest()

    def batches(self, first_step: int = 0, *, always: int = 0) -> Iterator[OwnBatch]:
        """All batches that are wanted; the others are read and left out.

        Args:
            first_step: From here on.
            always: Number of first batches to yield as well.

        Yields:
            Batches, each with the item it was made from.
        """
        begin, epochs = self.epochs_from(first_step, always=always)
        for step, item in enumerate(chain.from_iterable(epochs), start=begin):
            if step < always or step >= first_step:
                yield self.batch_of(item, step)

    @property
    def is_repeatable(self) -> bool:
        """Whether the order is a function of the epoch, so that it does not matter when an epoch is read."""
        return callable(self._source) or isinstance(self._source, list | tuple)

    def epochs_from(self, first_step: int, *, always: int) -> tuple[int, Iterator[Iterable[Any]]]:
        """The items of each epoch, to be asked for when they are wanted, and the number of the first item.

        Args:
            first_step: The first item that is wanted.
            always: Number of first items that are wanted as well.
        """
        if first_step and not always and hasattr(self._source, "epochs_from"):
            return first_step, self._source.epochs_from(first_step)
        if first_step and not always and hasattr(self._source, "from_step"):
            return first_step, iter([self._source.from_step(first_step)])
        return 0, self._epochs()

    def batch_of(self, item: Any, step: int) -> OwnBatch:
        """One item as a batch.

        Args:
            item: Of the source.
            step: At which it is trained, for sentences about it.

        Returns:
            Its rows, dense features and labels, and the item itself.

        Raises:
            DataError: The item has another form, or an id that is no row of its table.
        """
        dense, ids, labels = (None, self._ids(item), None) if self._ids else _parts(item, step)
        bags = bags_of(ids, self.bags.features, step=step, weighted=self.bags.is_weighted)
        found = bags.batch(dense, labels)
        return OwnBatch(
            step, found.dense, found.labels, found.rows, found.bag_offsets, found.num_features, item, bags.weights
        )

    def _epochs(self) -> Iterator[Iterable[Any]]:
        for epoch in range(self.epochs):
            if hasattr(self._source, "epochs_from"):
                yield from self._source.epochs_from(0)
                continue
            source = self._source(epoch) if callable(self._source) else self._source
            if isinstance(source, Iterator) and not callable(self._source):
                if self._spent:
                    raise UsageError(
                        "these batches come from an iterator, which can be read only once; give a function that "
                        "makes a new one for every epoch: Batches(bags, lambda epoch: ...)"
                    )
                self._spent = True
            yield source


def _parts(item: Any, step: int) -> tuple[Any, Any, Any]:
    """Dense features, ids and labels of an item."""
    if hasattr(item, "sparse_features"):
        return getattr(item, "dense_features", None), item.sparse_features, getattr(item, "labels", None)
    if is_keyed_jagged(item) or isinstance(item, dict) or hasattr(item, "shape"):
        return None, item, None
    if isinstance(item, tuple | list) and len(item) == 3:
        return item[0], item[1], item[2]
    raise DataError(
        f"step {step}: a batch is a {type(item).__name__}; give (dense, ids, labels), or say where the ids are: "
        "Batches(bags, source, ids=lambda item: ...)"
    )
