"""Batches that a person makes: a DataLoader, a list, or a function, read ahead of training.

    batches = Batches(bags, loader)
    for step in lookahead(batches, tables, cache_rows=20_000):
        dense, ids, labels = step.item

In: what gives batches, and the bags their ids belong to. Out: a stream that a plan is made of. Every batch is read
once, in the planner's thread, so many steps ahead, and kept until its step: so batches need not come out the same
twice, except to go on after a commit, when those that were trained already are read again and left out (`sources`
looks whether they are the same).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from foresee.base.arrays import Float32, Int32
from foresee.custom_data.bags import EmbeddingBags
from foresee.custom_data.jagged import bags_of, is_keyed_jagged
from foresee.data.batch import Batch
from foresee.errors import DataError, UsageError
from foresee.plan.record import Header

STEPS_MAX = (1 << 31) - 1
"""Number of steps where nobody knows it."""
READ_AHEAD_STEPS = 256
"""Of which items are kept in memory. A log's stream, whose batches are small, is read four times as far."""


@dataclass(frozen=True, slots=True)
class OwnBatch(Batch):
    """A batch with what it was made from."""

    item: Any = None
    weights: Float32 | None = None  # [lookups]
    drained: bool = False
    """Its rows are read when nothing is in flight."""

    def part(self, samples: Int32) -> OwnBatch:
        """Some of the samples; the item stays whole, as nobody knows what is in it."""
        own, weights = Batch.part(self, samples), self.weights
        if weights is not None:
            # A weight for each lookup: they are chosen as rows are.
            beside = Batch(self.step, self.dense, self.labels, weights, self.bag_offsets, self.num_features)  # type: ignore[arg-type]
            weights = Batch.part(beside, samples).rows.astype(np.float32, copy=False)
        return OwnBatch(
            own.step, own.dense, own.labels, own.rows, own.bag_offsets, own.num_features, self.item, weights,
            self.drained, sample_weights=own.sample_weights,
        )  # fmt: skip


class Batches:
    """Batches that a person makes, read ahead of training: the first argument of `lookahead`.

    Items are (dense, ids, labels), ids alone, or objects with dense_features, sparse_features and labels, as TorchRec's
    batches. For other items, `ids` says where the ids of an item are.

    Args:
        bags: The tables and features that ids belong to.
        source: Anything that can be iterated, or a function of the epoch that gives such a thing. One with a method
            `from_step`, and a name, is not read from its beginning to go on (`custom_data.adapters`).
        epochs: How often the source is read.
        num_steps: Of all epochs together, where it is known and `source` cannot say it; only displays use it.
        read_ahead_steps: How many batches the planner reads beyond the one it plans; their items wait in memory.
        ids: The ids of an item.
        name: Tells these batches from others, such as "2024-05-17"; without one the ids and labels of the first do.

    Raises:
        UsageError: Nothing would be trained.
    """

    def __init__(
        self,
        bags: EmbeddingBags,
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
            always: The first so many, too.

        Yields:
            Batches, each with the item it was made from.
        """
        begin = 0
        if first_step and not always and hasattr(self._source, "from_step"):
            begin, items = first_step, self._source.from_step(first_step)
        else:
            items = self._items()
        for step, item in enumerate(items, start=begin):
            if step < always or step >= first_step:
                yield self.batch_of(item, step)

    def bounded(self, header: Header) -> Header:
        """A plan that reads no further ahead than these batches may wait in memory.

        Args:
            header: Of any plan for these batches.

        Returns:
            The same with that bound.
        """
        return replace(header, options=replace(header.options, read_ahead_steps=self.read_ahead_steps))

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

    def _items(self) -> Iterator[Any]:
        for epoch in range(self.epochs):
            source = self._source(epoch) if callable(self._source) else self._source
            if iter(source) is source and not callable(self._source):
                if self._spent:
                    raise UsageError(
                        "these batches come from an iterator, which can be read only once; give a function that "
                        "makes a new one for every epoch: Batches(bags, lambda epoch: ...)"
                    )
                self._spent = True
            yield from source


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
