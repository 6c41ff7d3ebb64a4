"""Marius's pipeline as a plan: a step reads its rows while updates of up to `staleness` steps before it are missing.

`InFlight` is a variant of any planner for one worker. With a staleness of s, step g reads its rows in step g - s,
before that step's update, and misses what steps g - s to g - 1 learn. They are in flight until step g applies its
gradient, to rows as they are by then. So the planner inside is given, for each step, the rows of all steps that are in
flight beside it, and finds slots for all of them; what a step reads, and when, stands in its record (`read_ahead`). A
step whose accesses are `drained` is read when nothing is in flight, as Marius does where its buffer changes, so that no
two buffers are needed at once. Nothing depends on the size of the cache: the same accesses give the same reads.

`MissedUpdates` counts what reads have missed, as the checker does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError, in_words
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Evict, Fetch, Header, Planner, ReadAhead, Record
from foresee.plan.row_table import checksum_of


@dataclass(frozen=True, slots=True)
class _Flight:
    """The steps that the planner inside was given as one."""

    own: Accesses
    bounds: tuple[int, ...]
    """Where the lookups of each step begin and end, its own first."""
    num_read: int
    """Of these steps, its own included, how many were read before."""


class InFlight:
    """The planner of batches in flight, made of one that is synchronous."""

    def __init__(self, header: Header, inner: Planner) -> None:
        if header.num_workers > 1:
            raise PlanError(
                f"batches in flight are planned for one worker, and this plan is for {header.num_workers}; leave "
                "staleness out, or use one worker"
            )
        self.header, self._inner = header, inner
        self._version = np.full(header.num_rows, 0 if header.first_step == 0 else UNKNOWN_VERSION, np.int32)
        """Of every row: the planner inside takes a row for updated whenever it is in flight."""
        self._waiting: deque[Accesses] = deque()
        self._given: deque[_Flight] = deque()
        self._step = header.first_step
        self._read_until = header.first_step
        """All steps before it are read, or will be by the records of steps before `_step`."""

    def push(self, accesses: Accesses) -> list[Record]:
        self._waiting.append(accesses)
        records: list[Record] = []
        while len(self._waiting) > self._num_in_flight() or len(self._waiting) > self.header.options.staleness:
            records += self._give()
        return records

    def finish(self) -> list[Record]:
        records: list[Record] = []
        while self._waiting:
            records += self._give()
        return [*records, *(self._in_flight(record) for record in self._inner.finish())]

    def _num_in_flight(self) -> int:
        """Steps that are in flight beside the first one that waits, itself included, as far as is known."""
        for number, accesses in enumerate(self._waiting):
            if number and (accesses.drained or number > self.header.options.staleness):
                return number
        return len(self._waiting)

    def _give(self) -> list[Record]:
        number = self._num_in_flight()
        steps = [self._waiting[index] for index in range(number)]
        bounds = (0, *np.cumsum([len(it.rows) for it in steps]).tolist())
        self._given.append(_Flight(steps[0], bounds, max(1, self._read_until - self._step)))
        self._read_until = max(self._read_until, self._step + number)
        self._step += 1
        self._waiting.popleft()
        try:
            records = self._inner.push(_together(steps))
        except BatchTooLargeError as error:
            last = error.step + number - 1
            raise PlanError(
                f"steps {error.step} to {last} are in flight together and touch "
                f"{in_words(error.num_distinct, error.partition_rows)}, but the cache holds {error.capacity_rows}; "
                f"lower train.staleness_bound, or raise cache.rows to {error.num_distinct} or more"
            ) from None
        return [self._in_flight(record) for record in records]

    def _in_flight(self, record: Record) -> Record:
        """The record of a step: its own rows are updated, and those of later steps are read."""
        flight = self._given.popleft()
        inverse = record.inverse[: flight.bounds[1]]
        unique = record.unique[: int(inverse.max(initial=-1)) + 1]
        fetch = Fetch(record.fetch.row, record.fetch.slot, self._version[record.fetch.row])
        self._version[flight.own.rows] = record.step + 1
        evict = Evict(record.evict.slot, record.evict.row, self._version[record.evict.row])
        return replace(
            record, samples=np.arange(flight.own.num_samples, dtype=np.int32), unique=unique, inverse=inverse,
            digest=checksum_of(flight.own.rows), apply=unique, fetch=fetch, evict=evict,
            read_ahead=tuple(
                ReadAhead(record.step + index, record.unique[_first(record.inverse[begin:end])])
                for index, (begin, end) in enumerate(pairwise(flight.bounds))
                if index >= flight.num_read
            ),
        )  # fmt: skip


def _together(steps: list[Accesses]) -> Accesses:
    """The accesses of several steps as those of one."""
    begins = np.cumsum([0, *(len(it.rows) for it in steps[:-1])])
    offsets = [it.sample_offsets[:-1] + begin for it, begin in zip(steps, begins, strict=True)]
    rows = np.concatenate([it.rows for it in steps])
    return Accesses(rows, np.concatenate([*offsets, [len(rows)]]).astype(np.int32))


def _first(positions: Int32) -> Int32:
    """Distinct positions, in order of their first appearance."""
    distinct, at = np.unique(positions, return_index=True)
    ordered: Int32 = distinct[np.argsort(at)]
    return ordered


class MissedUpdates:
    """Counts the updates that reads miss; one update is that of a row by a step."""

    def __init__(self, staleness: int) -> None:
        self._in_flight: deque[Int64] = deque(maxlen=staleness)
        """The distinct rows of steps that the next one does not wait for."""
        self.num_reads = 0
        self.stale_reads = 0
        """Rows that a step read without some update of an earlier step."""
        self.missing_updates = 0
        self.missing_updates_max = 0
        """Of one read."""

    def add(self, accesses: Accesses) -> None:
        """The next step."""
        if accesses.drained:
            self._in_flight.clear()
        rows = np.unique(accesses.rows)
        missing = np.zeros(len(rows), np.int64)
        for earlier in self._in_flight:
            missing += np.isin(rows, earlier, assume_unique=True)
        self.num_reads += len(rows)
        self.stale_reads += int((missing > 0).sum())
        self.missing_updates += int(missing.sum())
        self.missing_updates_max = max(self.missing_updates_max, int(missing.max(initial=0)))
        self._in_flight.append(rows)
