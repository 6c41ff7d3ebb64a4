"""What a plan moves, counted alike for every policy, so that their numbers can stand side by side.

In: the records of a plan, all workers of a step before the next step. Out: `Counters` (sums), `Volumes` (the same with
steps and workers apart, because a step waits for its slowest worker: what the cost model works on), and `Staleness`
where workers add their own updates at the store. On the critical path is what no worker can send while an earlier step
computes: a transfer or a reduction due at the next step; a row that goes to the store after one step and is fetched for
the next, both ways. Never: seconds or bytes on a wire; those depend on widths and links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.recency import widened
from foresee.plan.record import Counters, Kind, Record, Transfers, compared_parts


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
        push, refresh, reduce = compared_parts(record)
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
            num_pushed=old.num_pushed + len(push),
            num_refreshed=old.num_refreshed + len(refresh),
            num_fetched_critical=old.num_fetched_critical + fetched_critical,
            num_written_critical=old.num_written_critical + written_critical,
            num_reduced=old.num_reduced + len(reduce),
            num_reduced_critical=old.num_reduced_critical + _due_next(record, reduce.deadline),
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


def _due_next(record: Record, deadline: Int32) -> int:
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
        push, refresh, _ = compared_parts(record)
        self._new_writes += [some.row for some in (record.evict, push) if len(some)]
        # A fetch that may be issued before the last step ended reads nothing that was written after it.
        if record.not_before < record.step - 1 or not self._writes:
            return 0, 0
        if self._distinct is None:
            self._distinct, self._uncounted = np.unique(np.concatenate(self._writes), return_counts=True)
        read = np.concatenate([record.fetch.row, refresh.row])
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
        push, refresh, reduce = compared_parts(record)
        fetched, written = (len(record.fetch), len(refresh)), (len(record.evict), len(push))
        reduced = (_due_next(record, reduce.deadline), len(reduce))
        self._rows.append((*lookups, self._missed(record), *fetched, not_before, *written, *reduced, _bytes_of(record)))
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
        slots = np.concatenate([record.fetch.slot, compared_parts(record)[1].slot, *arrived])
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


def _by_kind(record: Record, transfers: Transfers) -> Int64:
    """[kinds, urgencies]."""
    later = transfers.deadline != record.step + 1
    return np.bincount(2 * transfers.kind + later, minlength=2 * len(Kind)).reshape(len(Kind), 2).astype(np.int64)


def _bytes_of(record: Record) -> int:
    """Bytes of a record's arrays: what a planner sends a worker for one step, but for a few hundred bytes of frame."""
    groups = (record.fetch, record.evict, record.recv, record.send, *compared_parts(record))
    arrays = [record.samples, record.unique, record.inverse, record.apply, record.drop]
    arrays += [getattr(group, name) for group in groups for name in group.__slots__]
    return sum(array.nbytes for array in arrays)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Reads are distinct rows of a worker's samples, summed over steps."""

    num_reads: int = 0
    stale_reads: int = 0
    missing_updates: int = 0

    @property
    def stale_share(self) -> float:
        return self.stale_reads / self.num_reads if self.num_reads else 0.0


def staleness_of(records: Iterable[Record], num_workers: int, capacity_rows: int) -> Staleness:
    """Plays a plan through."""
    reading = Reading(num_workers, capacity_rows)
    for record in records:
        reading.add(record)
    return reading.staleness


class Reading:
    """Counts stale reads as records pass.

    An update is a (worker, step) that accesses a row. A replica never contains an update that was not made, so a read
    is exact if and only if it contains as many as were made: one number for each row and worker is enough.
    `check_additive` proves the same update by update, and far more slowly.
    """

    def __init__(self, num_workers: int, capacity_rows: int) -> None:
        self.staleness = Staleness()
        self._numbers: dict[int, int] = {}
        self._held = np.full((num_workers, capacity_rows), -1, np.int64)
        """The number of the row in each slot."""
        self._made, self._stored = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._seen, self._pending = np.zeros((num_workers, 0), np.int64), np.zeros((num_workers, 0), np.int64)
        self._step = -1
        self._after: list[Record] = []
        """Records of the step, whose updates are made and pushed once all workers have read."""

    def add(self, record: Record) -> None:
        if record.step != self._step:
            self._finish_step()
            self._step = record.step
        worker = record.worker
        for pulled in (record.fetch, compared_parts(record)[1]):
            rows = self._number(pulled.row)
            self._held[worker, pulled.slot] = rows
            self._seen[worker, rows] = self._stored[rows] + self._pending[worker, rows]
        read = self._held[worker, record.unique]
        missing = self._made[read] - self._seen[worker, read]
        self.staleness = Staleness(
            num_reads=self.staleness.num_reads + len(read),
            stale_reads=self.staleness.stale_reads + int(np.count_nonzero(missing)),
            missing_updates=self.staleness.missing_updates + int(missing.sum()),
        )
        self._after.append(record)

    def _finish_step(self) -> None:
        for record in self._after:
            rows = self._held[record.worker, record.unique]
            self._made[rows] += 1
            self._seen[record.worker, rows] += 1
            self._pending[record.worker, rows] += 1
        for record in self._after:
            rows = self._held[record.worker, np.concatenate([compared_parts(record)[0].slot, record.evict.slot])]
            self._stored[rows] += self._pending[record.worker, rows]
            self._pending[record.worker, rows] = 0
        self._after = []

    def _number(self, rows: Int64) -> Int64:
        numbers = np.array([self._numbers.setdefault(row, len(self._numbers)) for row in rows.tolist()], np.int64)
        self._made, self._stored = (widened(array, len(self._numbers), 0) for array in (self._made, self._stored))
        self._seen, self._pending = (widened(array, len(self._numbers), 0) for array in (self._seen, self._pending))
        return numbers
