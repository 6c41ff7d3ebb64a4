"""Three variants of any planner: whole partitions instead of rows, rows that are only read, and plans that begin anew.

`Partitions`: a partition is a run of `partition_rows` rows; the last one may be shorter. The planner inside is given
partitions and slots for partitions; here its records are spelled out in rows. All rows of a partition come with one
fetch and go with one eviction, ascending, and lie in slots that follow one another. So whoever checks, carries out,
commits or recovers a plan knows nothing of partitions, and a store reads long runs. Slots that are no whole partition
stay empty. Rows that no step touched since they came are written back like the others; their version is the one they
had, which only a planner that remembers versions can say. A fetch is so large here that as many steps ahead as for rows
would fill memory: it is issued once what is fetched for the steps before it and not yet in slots leaves room for it in
`staged_rows_max`, or is nothing.

`ReadOnly`: nothing is applied or written back, as with features of nodes. A row that leaves is dropped instead of
evicted. The store never changes, so a fetch waits for no write-back and the planner knows no version of any row.

`Restarted`: after some steps nothing is known until they are trained, such as the last one of an epoch whose loader is
then opened again. The record of a step says what it evicts, which depends on the next step. So the plan ends there, all
rows are written back, and a new plan of the same kind begins with the next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.policy import MakePlanner, Profile
from foresee.plan.record import (
    NOTHING_BEFORE,
    UNKNOWN_VERSION,
    Accesses,
    Evict,
    Fetch,
    Header,
    Kind,
    Planner,
    Record,
    Transfers,
    empty_int32,
)
from foresee.plan.row_table import RowTable

STAGED_SHARE = 4
"""A fourth of the cache may be on its way into it."""


def staged_rows_max(header: Header) -> int:
    """Rows that may lie in staging memory for steps to come; what one step fetches may always."""
    size = header.options.partition_rows
    return max(1, header.capacity_rows // size // STAGED_SHARE) * size


class Partitions:
    """The planner of partitions, made of one for rows."""

    def __init__(self, header: Header, make: MakePlanner, profile: Profile) -> None:
        """`make` makes the planner inside, from a header and a profile whose rows are partitions."""
        self.header = header
        self._size = header.options.partition_rows
        _check_sizes(header)
        self._inner = make(_header_inside(header), lambda steps: (_inside(it, self._size) for it in profile(steps)))
        self._numbering = RowTable(num_rows=header.num_rows, fresh_version=UNKNOWN_VERSION)
        at_first = 0 if header.first_step == 0 else UNKNOWN_VERSION
        remembers = header.options.remember_versions
        self._stored = np.full(header.num_rows, at_first, np.int32) if remembers else None
        """The version of every row in the store, if the planner is to remember them; in the middle, once it knows."""
        self._version = np.full(header.capacity_rows, UNKNOWN_VERSION, np.int32)
        """Of the row in each slot."""
        self._read = header.first_step
        self._waiting: deque[Accesses] = deque()
        """Batches that are read and not yet planned."""
        self._fetched: deque[tuple[int, int]] = deque()
        """(step, rows) of the latest fetches that are not in their slots when the next one is issued."""
        self._in_slots = NOTHING_BEFORE
        """The latest step whose fetch is."""

    def push(self, accesses: Accesses) -> list[Record]:
        if len(accesses.rows) and not 0 <= accesses.rows.min() <= accesses.rows.max() < self.header.num_rows:
            self._numbering.number(accesses.rows, self._read)  # says which row, before it becomes a partition
        self._waiting.append(accesses)
        self._read += 1
        try:
            records = self._inner.push(_inside(accesses, self._size))
        except BatchTooLargeError as error:
            wanted = error.num_distinct * self._size
            raise BatchTooLargeError(error.step, wanted, self.header.capacity_rows, self._size) from None
        except PlanError as error:
            raise PlanError(f"{error} (what is a row here is a partition of {self._size} rows)") from None
        return [self._in_rows(record) for record in records]

    def finish(self) -> list[Record]:
        return [self._in_rows(record) for record in self._inner.finish()]

    def _in_rows(self, record: Record) -> Record:
        """The record of a step, spelled out."""
        rows, slots = self._spelled_out(record.fetch.row, record.fetch.slot)
        versions = np.full(len(rows), UNKNOWN_VERSION, np.int32) if self._stored is None else self._stored[rows]
        fetch = Fetch(rows, slots, versions)
        self._version[slots] = versions
        accesses = self._waiting.popleft()
        distinct, inverse, checksum = self._numbering.number(accesses.rows, record.step)
        unique = np.empty(len(distinct), np.int32)
        unique[inverse] = record.unique[record.inverse] * self._size + accesses.rows % self._size
        self._version[unique] = record.step + 1
        not_before = self._not_before(record.step, len(rows), record.not_before)
        return replace(
            record, unique=unique, inverse=inverse, digest=checksum, apply=unique, fetch=fetch, not_before=not_before,
            evict=self._evict(record.evict),
        )  # fmt: skip

    def _evict(self, evict: Evict) -> Evict:
        rows, slots = self._spelled_out(evict.row, evict.slot)
        versions = self._version[slots]
        if self._stored is not None:
            self._stored[rows] = versions
        if not len(evict.next_use):
            return Evict(slots, rows, versions)
        order = np.argsort(evict.row)
        return Evict(
            slots, rows, versions, evict.next_use[order][np.searchsorted(evict.row[order], rows // self._size)]
        )

    def _spelled_out(self, partitions: Int64, slots: Int32) -> tuple[Int64, Int32]:
        """The rows of partitions in slots for partitions, ascending, and the slot of each."""
        order = np.argsort(partitions)
        within = np.arange(self._size)
        rows = (partitions[order, None] * self._size + within).reshape(-1)
        into = (slots[order, None].astype(np.int64) * self._size + within).reshape(-1).astype(np.int32)
        there = int(np.searchsorted(rows, self.header.num_rows))  # the last partition may be shorter
        return rows[:there], into[:there]

    def _not_before(self, step: int, num_rows: int, not_before: int) -> int:
        """The step after which a fetch of so many rows may be issued: what is staged by then leaves room for it."""
        if not num_rows:
            return not_before
        room = staged_rows_max(self.header) - num_rows
        for earlier, fetched in reversed(self._fetched):
            room -= fetched
            if room < 0:
                self._in_slots = max(self._in_slots, earlier)
                break
        self._in_slots = max(self._in_slots, not_before)
        self._fetched.append((step, num_rows))
        while self._fetched[0][0] <= self._in_slots:
            self._fetched.popleft()
        return self._in_slots


def _check_sizes(header: Header) -> None:
    size = header.options.partition_rows
    if header.num_workers > 1:
        raise PlanError(
            f"partitions of {size} rows are planned for one worker, and this plan is for {header.num_workers}; leave "
            "partition_rows out, or use one worker"
        )
    if header.capacity_rows < size:
        raise PlanError(
            f"a cache of {header.capacity_rows} rows holds no partition of {size} rows; give it at least {size} rows, "
            "or choose smaller partitions"
        )


def _header_inside(header: Header) -> Header:
    size = header.options.partition_rows
    return replace(
        header,
        capacity_rows=header.capacity_rows // size,
        num_rows=-(-header.num_rows // size),
        options=replace(header.options, partition_rows=1, remember_versions=False),
    )


def _inside(accesses: Accesses, partition_rows: int) -> Accesses:
    """The accesses of a step, of partitions."""
    return replace(accesses, rows=accesses.rows // partition_rows)


class ReadOnly:
    """The planner of rows that are only read, made of one for rows that learn."""

    def __init__(self, header: Header, inner: Planner) -> None:
        self.header = header
        self._inner = inner

    def push(self, accesses: Accesses) -> list[Record]:
        return [self._only_reading(record) for record in self._inner.push(accesses)]

    def finish(self) -> list[Record]:
        return [self._only_reading(record) for record in self._inner.finish()]

    def _only_reading(self, record: Record) -> Record:
        unknown = np.full(len(record.fetch), UNKNOWN_VERSION, np.int32)
        return replace(
            record,
            fetch=replace(record.fetch, version=unknown),
            not_before=max(record.step - 1 - self.header.fetch_ahead_steps, -1),
            apply=empty_int32(),
            evict=Evict(),
            drop=np.concatenate([record.drop, record.evict.slot]),
            send=_without_gradients(record.send),
            recv=_without_gradients(record.recv),
        )


def _without_gradients(transfers: Transfers) -> Transfers:
    rows = transfers.kind != Kind.GRAD
    return Transfers(transfers.peer[rows], transfers.slot[rows], transfers.kind[rows], transfers.deadline[rows])


class Restarted:
    """Ends the planner after each `Accesses.is_last_known` and makes a new one for the steps that follow.

    Args:
        header: What is planned in all.
        first_step: The step of the first accesses.
        make: Makes the planner of a header.
    """

    def __init__(self, header: Header, first_step: int, make: Callable[[Header], Planner]) -> None:
        self.header = header
        self._make = make
        self._planner: Planner | None = make(header)
        self._next = first_step
        self._not_before = NOTHING_BEFORE

    def push(self, accesses: Accesses) -> list[Record]:
        if self._planner is None:
            end = self.header.first_step + self.header.num_steps
            options = replace(self.header.options, planned_from=None)
            self._planner = self._make(
                replace(self.header, first_step=self._next, num_steps=end - self._next, options=options)
            )
            # The new planner does not know which rows the last one wrote back.
            self._not_before = self._next - 1
        self._next += 1
        records = self._planner.push(accesses)
        return self._guarded(records) + (self.finish() if accesses.is_last_known else [])

    def finish(self) -> list[Record]:
        planner, self._planner = self._planner, None
        return [] if planner is None else self._guarded(planner.finish())

    def _guarded(self, records: list[Record]) -> list[Record]:
        if self._not_before == NOTHING_BEFORE:
            return records
        return [replace(it, not_before=max(it.not_before, self._not_before)) for it in records]
