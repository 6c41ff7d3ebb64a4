"""The slots of one worker: rows that are in use, in one tensor on the device.

In: what a record says, slot by slot. Out: embeddings for a step, rows changed by its gradients, rows to write back. It
has no hash map and decides nothing. `SlotCache` is the CPU's, on fused kernels; `torch_cache.TorchCache` serves any
device. Both keep, for each slot, which row it holds and in which version the store has it, so that a commit can write
the changed rows without evicting them.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from foresee.arrays import Float32, Int32, Int64
from foresee.data.batch import Batch, Vectors
from foresee.engine.kernels import (
    Threads,
    apply_rows,
    gather,
    gather_bags,
    put_rows,
    sum_gradients,
    take_rows,
    update_rows,
    zeroed_rows,
)
from foresee.engine.kernels.values import Form, form_of
from foresee.engine.optimizers import Optimizer, at_step
from foresee.engine.planned_step import PlannedStep
from foresee.plan.record import Evict, Fetch
from foresee.plan.row_groups import RowGroup, numbering_of
from foresee.store.contract import Rows
from foresee.store.layout import Layout

EMPTY = -1

NEVER_STORED = -1

COMMIT_BYTES = 1 << 24
"""Rows that a commit copies out of a cache at a time, so that it needs little memory where all rows have changed."""

COMMIT_SLOTS = 1 << 20
"""Slots that a commit looks through at a time."""


class Cache(Protocol):
    """What the engine asks of a cache."""

    def fill(self, fetch: Fetch, staging: Rows) -> None:
        """Puts fetched rows into their slots."""
        ...

    def embeddings(self, work: PlannedStep, read: Float32 | None = None) -> torch.Tensor:
        """[samples, features, width]: the step's rows, pooled; [vectors, width] where some are apart.

        A leaf that collects the gradient where one is used. `read`: the values of its distinct rows, if it has read
        them before; else they are read from their slots now.
        """
        ...

    def update(
        self, work: PlannedStep, gradient: torch.Tensor, positions: Int32 | None = None, *, divisor: int = 1
    ) -> None:
        """One optimiser step on the step's rows, or on those at some positions of `unique`.

        Each with its gradient summed over this worker's lookups, and divided.
        """
        ...

    def sums(self, work: PlannedStep, gradient: torch.Tensor, positions: Int32) -> torch.Tensor:
        """[positions, width]: gradients of distinct rows, summed over this worker's lookups. On the CPU."""
        ...

    def apply(self, slots: Int32, sums: torch.Tensor, *, version: int) -> None:
        """One optimiser step on these rows, with gradients that were summed over workers."""
        ...

    def copy(self, slots: Int32) -> Rows:
        """The rows of these slots."""
        ...

    def put(self, slots: Int32, arrived: Rows) -> None:
        """Puts copies of rows that another worker owns into slots."""
        ...

    def take(self, evict: Evict) -> Rows:
        """Copies out the rows of slots that are now free."""
        ...

    @property
    def table(self) -> SlotTable:
        """Which rows the slots hold."""
        ...

    def changed(self) -> Iterator[tuple[Int64, Rows]]:
        """Yield the rows that the store has in an older version, in parts of up to COMMIT_BYTES, at least one part.

        Rows that were yielded count as written.
        """
        ...


class BatchesInFlight:
    """What later steps have read already, as their plan says: values of distinct rows, by step.

    Empty in a run that is synchronous. A commit keeps it (`state_dict`): nobody could read it again, as the rows have
    learned since.
    """

    def __init__(self) -> None:
        self._read: dict[int, Float32] = {}  # each [distinct rows, width]

    def embeddings(self, work: PlannedStep, cache: Cache) -> torch.Tensor:
        """Those of a step whose rows are all in their slots; later ones read theirs, too, if they are to."""
        for ahead in work.record.read_ahead:
            if ahead.step not in self._read:  # else before a commit from which this run goes on
                self._read[ahead.step] = cache.copy(ahead.slot).values
        return cache.embeddings(work, self._read.pop(work.step, None))

    def state_dict(self) -> dict[str, Any]:
        """What has been read, by step."""
        return {str(step): values for step, values in self._read.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on with what was read before."""
        self._read = {int(step): np.asarray(values, np.float32) for step, values in state_dict.items()}


class SlotTable:
    """Which row each slot holds, and in which version the store has it."""

    def __init__(self, capacity_rows: int) -> None:
        self.row = np.full(capacity_rows, EMPTY, np.int64)
        self.stored_version = np.zeros(capacity_rows, np.int32)

    def hold(self, fetch: Fetch, versions: Int32) -> None:
        self.row[fetch.slot] = fetch.row
        self.stored_version[fetch.slot] = versions

    def adopt(self, slots: Int32, rows: Int64) -> None:
        """Rows that came from another worker, and may be newer than the store's in any case."""
        self.row[slots] = rows
        self.stored_version[slots] = NEVER_STORED

    def free(self, slots: Int32) -> None:
        self.row[slots] = EMPTY

    def changed(self, versions: Int32, row_bytes: int) -> Iterator[Int32]:
        """Yield the slots whose row is newer here than in the store, up to COMMIT_BYTES of rows at a time.

        Slots that were yielded count as written. There is at least one part, which may be empty: a commit waits for the
        write of each part, and so finds out whether an earlier write has failed.
        """
        num_max = max(1, COMMIT_BYTES // row_bytes)
        for begin in range(0, len(self.row), COMMIT_SLOTS):
            part = slice(begin, begin + COMMIT_SLOTS)
            newer = (self.row[part] != EMPTY) & (versions[part] > self.stored_version[part])
            found = (np.flatnonzero(newer) + begin).astype(np.int32)
            for first in range(0, max(1, len(found)), num_max):
                slots = found[first : first + num_max]
                self.stored_version[slots] = versions[slots]
                yield slots


class ReusedMemory:
    """Arrays whose memory is used again, but never while somebody still looks at it.

    A tensor made of an array keeps that array alive, and so does everything that shares the tensor's memory: views,
    detached ones, numpy arrays, graphs of losses that were kept. So each array is a new view of a buffer, and a buffer
    is free once its view is gone. A loop whose last loss is still there takes two buffers in turn; whoever keeps more
    has them for himself, and later arrays are fresh memory.
    """

    def __init__(self) -> None:
        self._buffers: list[tuple[NDArray[np.float32], weakref.ref[NDArray[np.float32]]]] = []

    def take(self, num_rows: int, width: int) -> NDArray[np.float32]:
        """[num_rows, width] of anything."""
        free = [buffer for buffer, view in self._buffers if view() is None and len(buffer) >= num_rows]
        # Of torch, which aligns it: kernels may sum in another order where memory begins elsewhere.
        buffer = free[0] if free else torch.empty(num_rows, width).numpy()
        view = buffer[:num_rows]
        others = [kept for kept in self._buffers if kept[0] is not buffer and len(kept[0]) >= num_rows]
        self._buffers = [*others[-1:], (buffer, weakref.ref(view))]
        return view


class SlotCache:
    """A cache in CPU memory."""

    def __init__(self, layout: Layout, optimizer: Optimizer, *, capacity_rows: int, threads: Threads) -> None:
        self._layout = layout
        self._optimizer = optimizer
        self._threads = threads
        self._rows = Rows(
            zeroed_rows(capacity_rows, layout.value_words),
            zeroed_rows(capacity_rows, layout.state_width),
            np.zeros(capacity_rows, np.int32),
        )
        self.table = SlotTable(capacity_rows)
        self._pooled = ReusedMemory()
        self._form = form_of(layout)

    def fill(self, fetch: Fetch, staging: Rows) -> None:
        self.put(fetch.slot, staging)
        self.table.hold(fetch, staging.versions)

    def embeddings(self, work: PlannedStep, read: Float32 | None = None) -> torch.Tensor:
        record, shape = work.record, shape_of(work.batch, work.vectors)
        out = self._pooled.take(math.prod(shape), self._layout.width)
        values, unique = self._rows.values, record.unique
        if read is not None:
            values, unique = read, np.arange(len(read), dtype=np.int32)
        pool(values, unique, record.inverse, work.vectors, out, self._threads, self._form)
        return torch.from_numpy(out).view(*shape, self._layout.width).requires_grad_(record.learns)

    def update(
        self, work: PlannedStep, gradient: torch.Tensor, positions: Int32 | None = None, *, divisor: int = 1
    ) -> None:
        record = work.record
        gradients = gradient.reshape(-1, self._layout.width).contiguous().numpy()
        update_rows(
            at_step(self._optimizer, record.step), self._rows, record.unique, gradients, work.order,
            version=record.step + 1, positions=positions, divisor=divisor, form=self._form,
            row_of_slot=self.table.row, threads=self._threads,
        )  # fmt: skip

    def sums(self, work: PlannedStep, gradient: torch.Tensor, positions: Int32) -> torch.Tensor:
        gradients = gradient.reshape(-1, self._layout.width).contiguous().numpy()
        out = torch.empty(len(positions), self._layout.width)
        sum_gradients(gradients, work.order, out.numpy(), positions=positions, threads=self._threads)
        return out

    def apply(self, slots: Int32, sums: torch.Tensor, *, version: int) -> None:
        optimizer = at_step(self._optimizer, version - 1)
        apply_rows(
            optimizer, self._rows, slots, sums.numpy(), version=version, form=self._form, row_of_slot=self.table.row,
            threads=self._threads,
        )  # fmt: skip

    def put(self, slots: Int32, arrived: Rows) -> None:
        put_rows(self._rows, slots, arrived, threads=self._threads)

    def take(self, evict: Evict) -> Rows:
        out = self.copy(evict.slot)
        self.table.free(evict.slot)
        return out

    def changed(self) -> Iterator[tuple[Int64, Rows]]:
        for slots in self.table.changed(self._rows.versions, self._layout.row_bytes):
            yield self.table.row[slots], self.copy(slots)

    def copy(self, slots: Int32) -> Rows:
        out = Rows.empty(len(slots), self._layout)
        take_rows(self._rows, slots, out, threads=self._threads)
        return out


def shape_of(batch: Batch, vectors: Vectors) -> tuple[int, ...]:
    """How the vectors of a batch lie: by sample and feature, or one after the other where bags have any number."""
    if vectors.of_bag is None:
        return batch.num_samples, batch.num_features
    return (int(vectors.of_bag[-1]),)


def pool(
    values: NDArray[np.float32], unique: Int32, inverse: Int32, vectors: Vectors, out: NDArray[np.float32],
    threads: Threads, form: Form = None,
) -> None:  # fmt: skip
    """Gathers the rows of a batch into its vectors."""
    if vectors.offsets is None:
        gather(values, unique, inverse, out, form=form, threads=threads)
    else:
        gather_bags(values, unique, inverse, vectors.offsets, vectors.mean, out, form=form, threads=threads)


class Caches:
    """In the order of the row groups."""

    def __init__(self, caches: Sequence[Cache], groups: tuple[RowGroup, ...] = ()) -> None:
        self._caches = tuple(caches)
        self._groups = groups

    def __iter__(self) -> Iterator[Cache]:
        return iter(self._caches)

    @property
    def num_occupied(self) -> int:
        """Slots that hold a row."""
        return sum(int(np.count_nonzero(cache.table.row != EMPTY)) for cache in self._caches)

    def rows_in(self, work: PlannedStep) -> Int64:
        """The distinct rows of a step that belong to this worker, as the log numbers them: copies are not known."""
        rows = []
        for group, (cache, part) in enumerate(zip(self._caches, work.groups, strict=True)):
            held = cache.table.row[part.record.unique]
            held = held[held != EMPTY]
            rows.append(numbering_of(self._groups).rows_of(group, held) if self._groups else held)
        return np.concatenate(rows)
