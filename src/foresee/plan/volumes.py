"""How much each worker has to move in each step, by what it is and when it is due: what the cost model works on.

In: the records of a plan, all workers of a step before the next step. Out: arrays [steps, workers, ...] of rows. Sums
over them are the counters of `count`; this keeps the steps and the workers apart, because a step waits for its slowest
worker and for its own fetches, not for the mean.
Never: seconds or bytes on a wire; those depend on widths and links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foresee.plan.record import Int32, Int64, Kind, Record, Transfers

CRITICAL, BACKGROUND = 0, 1
"""Positions of the last axis: due at the next step, or one later."""
SENT, RECEIVED = 0, 1
"""Positions of the axis of directions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Rows by step and worker."""

    lookups: Int64  # [steps, workers]
    unique: Int64  # [steps, workers]
    missed: Int64  # [steps, workers]
    """Distinct rows of the worker's samples that were not in its cache, or not in a value it may use."""
    fetched: Int64  # [steps, workers]
    refreshed: Int64  # [steps, workers]
    not_before: Int64  # [steps, workers]
    """The step whose write-backs the fetch has to wait for."""
    evicted: Int64  # [steps, workers]
    pushed: Int64  # [steps, workers]
    transfers: Int64  # [steps, workers, directions, kinds, urgencies]
    reduced: Int64  # [steps, workers, urgencies]
    plan_bytes: Int64  # [steps, workers]

    @property
    def num_steps(self) -> int:
        return len(self.lookups)

    @property
    def num_workers(self) -> int:
        return int(self.lookups.shape[1])

    @property
    def hit_rate(self) -> float:
        """Share of a worker's distinct rows that were in its own cache. With one worker, that of the counters."""
        num_unique = int(self.unique.sum())
        return 1.0 - int(self.missed.sum()) / num_unique if num_unique else 0.0

    def until_step(self, step: int) -> Volumes:
        """Without this step and those after it."""
        return Volumes(**{name: getattr(self, name)[:step] for name in self.__slots__})

    def from_step(self, step: int) -> Volumes:
        """Without the steps before; fetches that wait for one of those wait for nothing."""
        parts = {name: getattr(self, name)[step:] for name in self.__slots__}
        return Volumes(**{**parts, "not_before": np.maximum(parts["not_before"] - step, -1)})


class Measuring:
    """Collects volumes as records pass. Use `watch`, or `add`, then `volumes`."""

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._first_step: int | None = None
        self._rows: list[tuple[int, ...]] = []
        self._transfers: list[Int64] = []
        self._arriving: dict[tuple[int, int], list[Int32]] = {}
        """Slots that rows of peers take before a (worker, step)."""

    def add(self, record: Record) -> None:
        self._first_step = record.step if self._first_step is None else self._first_step
        lookups, not_before = (len(record.inverse), len(record.unique)), record.not_before - self._first_step
        fetched, written = (len(record.fetch), len(record.refresh)), (len(record.evict), len(record.push))
        reduced = (_due_next(record, record.reduce.deadline), len(record.reduce))
        self._rows.append(
            (*lookups, self._missed(record), *fetched, not_before, *written, *reduced, _bytes_of(record))
        )
        self._transfers.append(np.stack([_by_kind(record, record.send), _by_kind(record, record.recv)]))
        self._expect(record)

    def volumes(self) -> Volumes:
        shape = (len(self._rows) // self._num_workers, self._num_workers)
        columns = np.array(self._rows, np.int64).reshape(*shape, 11)
        names = ("lookups", "unique", "missed", "fetched", "refreshed", "not_before", "evicted", "pushed")
        soon, all_reduced = columns[..., 8], columns[..., 9]
        return Volumes(
            **{name: columns[..., place] for place, name in enumerate(names)},
            transfers=np.array(self._transfers, np.int64).reshape(*shape, 2, len(Kind), 2),
            reduced=np.stack([soon, all_reduced - soon], axis=-1),
            plan_bytes=columns[..., 10],
        )

    def _expect(self, record: Record) -> None:
        rows = record.recv.kind != Kind.GRAD
        for deadline in np.unique(record.recv.deadline[rows]).tolist():
            slots = record.recv.slot[rows & (record.recv.deadline == deadline)]
            self._arriving.setdefault((record.worker, deadline), []).append(slots)

    def _missed(self, record: Record) -> int:
        arrived = self._arriving.pop((record.worker, record.step), [])
        slots = np.concatenate([record.fetch.slot, record.refresh.slot, *arrived])
        if not len(slots) or not len(record.unique):
            return 0
        came = np.zeros(max(int(slots.max()), int(record.unique.max())) + 1, np.bool_)
        came[slots] = True
        return int(np.count_nonzero(came[record.unique]))


def measure(records: Iterable[Record], num_workers: int) -> Volumes:
    """The volumes of a whole plan."""
    measuring = Measuring(num_workers)
    for record in records:
        measuring.add(record)
    return measuring.volumes()


def _due_next(record: Record, deadline: Int32) -> int:
    return int(np.count_nonzero(deadline == record.step + 1))


def _by_kind(record: Record, transfers: Transfers) -> Int64:
    """[kinds, urgencies]."""
    later = transfers.deadline != record.step + 1
    return np.bincount(2 * transfers.kind + later, minlength=2 * len(Kind)).reshape(len(Kind), 2).astype(np.int64)


def _bytes_of(record: Record) -> int:
    """Bytes of a record's arrays: what a planner sends a worker for one step, but for a few hundred bytes of frame."""
    groups = (record.fetch, record.evict, record.recv, record.send, record.push, record.refresh, record.reduce)
    arrays = [record.samples, record.unique, record.inverse, record.apply, record.drop]
    arrays += [getattr(group, name) for group in groups for name in group.__slots__]
    return sum(array.nbytes for array in arrays)
