"""Several workers in one process: what a plan says is carried out row by row, whatever the protocol.

In: the first value of every row, and for each step the batch and the records of all workers. Out: the rows, changed as
the protocol changes them. Every worker has slots of its own and reads nothing else: a stale replica is read stale.

    owners      (ours, FAE and others) one worker applies the sum of all gradients; replicas apply the same sum
    additive    (HET, Herald) every worker applies its own gradient to its own replica at once, and what it did since
                its last push is added to the store's row when the plan says so

Rows learn by plain SGD, which is what HET adds up. The dense half is one model, as if its gradients were summed over
all workers after every step. Every bag has one row. Nothing is decided here: what the records do not say does not
happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from foresee.arrays import Int32, Int64
from foresee.data.batch import Batch
from foresee.plan.record import Header, Kind, Record, compared_parts

EMPTY = -1


class Learner(Protocol):
    """The dense half: the gradient of the loss by the embeddings of a global batch, after which it has learned too."""

    def __call__(self, dense: Tensor, embeddings: Tensor, labels: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Rows on their way into other workers' slots."""

    deadline: int
    targets: Int64
    rows: Int64
    values: Tensor


@dataclass(slots=True)
class Staleness:
    """What the reads of a run did not see."""

    num_reads: int = 0
    """Distinct rows that a worker read in a step, summed."""
    num_stale_reads: int = 0
    num_lookups: int = 0
    num_stale_lookups: int = 0
    num_missing_updates: int = 0
    """(worker, step) updates that a read did not contain, summed over reads."""


class EmulatedWorkers:
    """Carries out plans in memory. Slot s of worker w is place w * capacity + s of one array for all workers."""

    def __init__(self, header: Header, store: Tensor, *, lr: float, additive: bool) -> None:
        """store: [rows, width], changed in place."""
        places = header.num_workers * header.capacity_rows
        self.store = store
        self.staleness = Staleness()
        self._capacity = header.capacity_rows
        self._lr = lr
        self._additive = additive
        self._values = torch.zeros(places, store.shape[1])
        self._gradients = torch.zeros(places, store.shape[1])
        self._pending = torch.zeros(places, store.shape[1])
        """Additive: what each replica did since its last push."""
        self._row = np.full(places, EMPTY, np.int64)
        self._parcels: list[_Parcel] = []
        # Updates are counted as well as made: a read that contains fewer than were made is stale.
        self._num_made = np.zeros(len(store), np.int64)
        self._num_stored = np.zeros(len(store), np.int64)
        self._num_seen = np.zeros(places, np.int64)
        self._num_pending = np.zeros(places, np.int64)

    def step(self, batch: Batch, records: Sequence[Record], learner: Learner) -> None:
        """One step of all workers."""
        self._deliver(records[0].step)
        self._fetch(records)
        if self._additive:
            self._refresh(records)
        read = self._places(records, "unique")
        lookups = self._flat(records, [record.unique[record.inverse] for record in records])
        self._count_stale(read, lookups)
        self._gradients[read] = 0.0
        self._gradients.index_add_(0, torch.from_numpy(lookups), self._learn(batch, records, lookups, learner))
        if self._additive:
            self._train_replicas(read)
            self._push(records)
        else:
            self._exchange(records)
            self._write_back(records)
        moved = [record.send.slot[record.send.kind == Kind.MOVE] for record in records]
        for freed in (self._places(records, "evict.slot"), self._places(records, "drop"), self._flat(records, moved)):
            self._row[freed] = EMPTY

    def all_rows(self) -> Tensor:
        """Every row with every update that was made, also those that have not reached the store."""
        rows, held = self.store.clone(), np.flatnonzero(self._row != EMPTY)
        if self._additive:
            return rows.index_add_(0, torch.from_numpy(self._row[held]), self._pending[held])
        rows[self._row[held]] = self._values[held]
        for parcel in self._parcels:
            rows[parcel.rows] = parcel.values
        return rows

    def _places(self, records: Sequence[Record], field: str) -> Int64:
        """The slots in a field of every worker's record, worker after worker."""
        return self._flat(records, [attrgetter(field)(record) for record in records])

    def _flat(self, records: Sequence[Record], slots: Sequence[Int32]) -> Int64:
        first = [record.worker * self._capacity for record in records]
        return np.concatenate([begin + some.astype(np.int64) for begin, some in zip(first, slots, strict=True)])

    def _deliver(self, step: int) -> None:
        for parcel in self._parcels:
            if parcel.deadline == step:
                self._values[parcel.targets] = parcel.values
                self._row[parcel.targets] = parcel.rows
        self._parcels = [parcel for parcel in self._parcels if parcel.deadline > step]

    def _fetch(self, records: Sequence[Record]) -> None:
        places, rows = self._places(records, "fetch.slot"), _all(records, "fetch.row")
        self._values[places] = self.store[rows]
        self._pending[places] = 0.0
        self._row[places] = rows
        self._num_seen[places] = self._num_stored[rows]
        self._num_pending[places] = 0

    def _refresh(self, records: Sequence[Record]) -> None:
        places, rows = self._places(records, "refresh.slot"), _all(records, "refresh.row")
        self._values[places] = self.store[rows] + self._pending[places]
        self._num_seen[places] = self._num_stored[rows] + self._num_pending[places]

    def _count_stale(self, read: Int64, lookups: Int64) -> None:
        found = self.staleness
        found.num_reads += len(read)
        found.num_lookups += len(lookups)
        if not self._additive:
            return  # the checker proves that owners read nothing stale
        missing = self._num_made[self._row[read]] - self._num_seen[read]
        found.num_stale_reads += int(np.count_nonzero(missing))
        found.num_missing_updates += int(missing.sum())
        found.num_stale_lookups += int(np.count_nonzero(self._num_made[self._row[lookups]] - self._num_seen[lookups]))

    def _learn(self, batch: Batch, records: Sequence[Record], lookups: Int64, learner: Learner) -> Tensor:
        """The gradient of every lookup, worker after worker, [lookups, width]."""
        assert batch.bag_offsets is None, "every bag has one row"
        order = _all(records, "samples")
        embeddings = self._values[lookups].view(len(order), batch.num_features, -1)
        dense, labels = torch.from_numpy(batch.dense[order]), torch.from_numpy(batch.labels[order])
        return learner(dense, embeddings, labels).reshape(len(lookups), -1)

    def _train_replicas(self, read: Int64) -> None:
        """Every worker applies its own gradients to its own replicas."""
        change = self._lr * self._gradients[read]
        self._values[read] -= change
        self._pending[read] -= change
        np.add.at(self._num_made, self._row[read], 1)
        self._num_seen[read] += 1
        self._num_pending[read] += 1

    def _push(self, records: Sequence[Record]) -> None:
        for written in ("push", "evict"):
            places, rows = self._places(records, f"{written}.slot"), _all(records, f"{written}.row")
            self.store.index_add_(0, torch.from_numpy(rows), self._pending[places])
            self._pending[places] = 0.0
            np.add.at(self._num_stored, rows, self._num_pending[places])
            self._num_pending[places] = 0

    def _exchange(self, records: Sequence[Record]) -> None:
        """Gradients go to the owners, who apply them; then copies and moves leave with what came of it."""
        sources, targets, kinds, deadlines = self._transfers(records)
        gradients = kinds == Kind.GRAD
        self._gradients.index_add_(0, torch.from_numpy(targets[gradients]), self._gradients[sources[gradients]])
        applied = self._places(records, "apply")
        self._values[applied] -= self._lr * self._gradients[applied]
        self._reduce(records)
        for deadline in np.unique(deadlines[~gradients]).tolist():
            sent = ~gradients & (deadlines == deadline)
            values = self._values[sources[sent]]
            self._parcels.append(_Parcel(deadline, targets[sent], self._row[sources[sent]], values))

    def _transfers(self, records: Sequence[Record]) -> tuple[Int64, Int64, Int32, Int32]:
        """Sources, targets, kinds and deadlines of all transfers: lists of a pair of workers are in the same order."""
        sent, received = self._places(records, "send.slot"), self._places(records, "recv.slot")
        senders = np.repeat(np.arange(len(records)), [len(record.send) for record in records])
        receivers = np.repeat(np.arange(len(records)), [len(record.recv) for record in records])
        out = np.lexsort((_all(records, "send.peer"), senders))
        into = np.lexsort((receivers, _all(records, "recv.peer")))
        kinds, deadlines = (_all(records, part)[out] for part in ("send.kind", "send.deadline"))
        return sent[out], received[into], kinds, deadlines

    def _reduce(self, records: Sequence[Record]) -> None:
        """Replicas at all workers apply the sum over all of them. A worker that did not touch a row adds nothing."""
        slots = np.stack([compared_parts(record)[2].slot for record in records]).astype(np.int64)
        if not slots.size:
            return
        places = slots + self._capacity * np.arange(len(records))[:, None]
        touched = np.isin(places, self._places(records, "unique"))
        gradients = self._gradients[places] * torch.from_numpy(touched)[:, :, None]
        self._values[places] -= self._lr * gradients.sum(dim=0)

    def _write_back(self, records: Sequence[Record]) -> None:
        self.store[_all(records, "evict.row")] = self._values[self._places(records, "evict.slot")]


def _all(records: Sequence[Record], field: str) -> Any:
    """A field of every worker's record, worker after worker."""
    return np.concatenate([attrgetter(field)(record) for record in records])
