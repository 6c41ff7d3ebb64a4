"""What a plan moves. One counter for every planner, so that their numbers can stand side by side.

On the critical path is what no worker can send while an earlier step computes: a transfer or a reduction due at the
next step; a row that goes to the store after one step and is fetched for the next, both ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from foresee.plan.record import Counters, Int64, Kind, Record


class Counting:
    """Counts records as they pass, all workers of a step before the next step."""

    def __init__(self) -> None:
        self._counters = Counters()
        self._in_use: dict[tuple[int, int], int] = {}
        """By worker and step."""
        self._store = _StoreTraffic()

    @property
    def counters(self) -> Counters:
        return self._counters

    def add(self, record: Record) -> None:
        old = self._counters
        in_use = self._slots_in_use(record)
        fetched_critical, written_critical = self._store.add(record)
        self._counters = replace(
            old,
            num_steps=old.num_steps + (record.worker == 0),
            num_lookups=old.num_lookups + len(record.inverse),
            num_unique=old.num_unique + len(record.unique),
            num_fetched=old.num_fetched + len(record.fetch),
            num_evicted=old.num_evicted + len(record.evict),
            num_received=old.num_received + len(record.recv),
            num_received_critical=old.num_received_critical + _due_next(record, record.recv.deadline),
            peak_slots=max(old.peak_slots, in_use),
            num_pushed=old.num_pushed + len(record.push),
            num_refreshed=old.num_refreshed + len(record.refresh),
            num_fetched_critical=old.num_fetched_critical + fetched_critical,
            num_written_critical=old.num_written_critical + written_critical,
            num_reduced=old.num_reduced + len(record.reduce),
            num_reduced_critical=old.num_reduced_critical + _due_next(record, record.reduce.deadline),
        )

    def _slots_in_use(self, record: Record) -> int:
        """Slots of the worker in use during the step; keeps what will be in use after it."""
        in_use = self._in_use.get((record.worker, record.step), 0) + len(record.fetch)
        self._in_use.pop((record.worker, record.step), None)
        moved = int(np.count_nonzero(record.send.kind == Kind.MOVE))
        arriving = record.recv.kind != Kind.GRAD
        soon = int(np.count_nonzero(arriving & (record.recv.deadline == record.step + 1)))
        later = int(np.count_nonzero(arriving)) - soon
        after = in_use - len(record.evict) - len(record.drop) - moved + soon
        following = record.worker, record.step + 1
        self._in_use[following] = self._in_use.get(following, 0) + after
        if later:
            self._in_use[record.worker, record.step + 2] = later
        return in_use

    def watch(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, counted on the way."""
        for record in records:
            self.add(record)
            yield record


def num_unused(record: Record) -> int:
    """Rows that a record fetches and its own step does not look up."""
    return len(record.fetch) - int(np.count_nonzero(np.isin(record.fetch.slot, record.unique)))


def _due_next(record: Record, deadline: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
    return int(np.count_nonzero(deadline == record.step + 1))


class _StoreTraffic:
    """Finds the rows that go to the store after one step and are fetched for the next."""

    def __init__(self) -> None:
        self._step = -1
        self._writes: list[Int64] = []
        """Rows written after the step before."""
        self._new_writes: list[Int64] = []
        self._distinct: Int64 | None = None
        """Those rows sorted, and beside them how often each was written, 0 once that is counted."""
        self._uncounted = np.empty(0, np.int64)

    def add(self, record: Record) -> tuple[int, int]:
        """How many fetches of this record are critical, and how many more writes of the step before it."""
        if record.step != self._step:
            self._step, self._writes, self._new_writes, self._distinct = record.step, self._new_writes, [], None
        self._new_writes += [some.row for some in (record.evict, record.push) if len(some)]
        # A fetch that may be issued before the last step ended reads nothing that was written after it.
        if record.not_before < record.step - 1 or not self._writes:
            return 0, 0
        if self._distinct is None:
            self._distinct, self._uncounted = np.unique(np.concatenate(self._writes), return_counts=True)
        read = np.concatenate([record.fetch.row, record.refresh.row])
        places = np.minimum(np.searchsorted(self._distinct, read), len(self._distinct) - 1)
        places = places[self._distinct[places] == read]
        num_writes = int(self._uncounted[places].sum())
        self._uncounted[places] = 0
        return len(places), num_writes


def count(records: Iterable[Record]) -> Counters:
    """The counters of a whole plan."""
    counting = Counting()
    for record in records:
        counting.add(record)
    return counting.counters


@dataclass(frozen=True, slots=True)
class RowsMoved:
    """Rows that go over a wire, each way counted once."""

    critical: float
    total: float


def rows_moved(counters: Counters, num_workers: int) -> RowsMoved:
    """A reduced row costs 2 (workers - 1) row-sends, as in a ring: each worker's share of it is counted by itself."""
    sends = 2.0 * (num_workers - 1) / num_workers
    return RowsMoved(
        critical=counters.num_received_critical
        + counters.num_fetched_critical
        + counters.num_written_critical
        + sends * counters.num_reduced_critical,
        total=counters.num_received
        + counters.num_fetched
        + counters.num_refreshed
        + counters.num_evicted
        + counters.num_pushed
        + sends * counters.num_reduced,
    )
