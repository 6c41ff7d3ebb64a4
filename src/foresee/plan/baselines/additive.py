"""The frame of protocols in which workers train replicas of their own and add their updates at the store.

In: the accesses of each step. Out: one record for each worker and step. A worker's cache is LRU, or ranked otherwise.
What differs between protocols is in `Rules`: who trains which sample, which replicas must be refreshed before a step,
and whose updates are pushed after it. Exact for plain SGD only, where updates may be added in any order;
`check_additive` is its checker.

The writes after a step are decided when the next one is known: its samples say whose updates are needed, and its
missing rows which others must leave. A row that leaves with updates of its own is pushed then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.recency import Numbering, Rank, RecencyCaches, Share, shares_of, users_of, widened
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import UNKNOWN_VERSION, Accesses, ComparedRecord, Evict, Fetch, Header, Push, Record


class Replicas:
    """The updates of each worker's replicas that the store does not have, and what it has, by the rows' numbers."""

    def __init__(self, num_workers: int) -> None:
        self.pending = np.empty((num_workers, 0), np.int64)
        """[workers, rows]: updates not pushed yet, one for each lookup."""
        self.updated_at = np.empty((num_workers, 0), np.int32)
        self.stored_version = np.empty(0, np.int32)
        self.written_at = np.empty(0, np.int32)

    def grow(self, num_rows: int) -> None:
        self.pending = widened(self.pending, num_rows, 0)
        self.updated_at = widened(self.updated_at, num_rows, -1)
        self.stored_version = widened(self.stored_version, num_rows, 0)
        self.written_at = widened(self.written_at, num_rows, -1)

    def push(self, step: int, worker: int, rows: Int64) -> None:
        self.pending[worker, rows] = 0
        self.stored_version[rows] = np.maximum(self.stored_version[rows], self.updated_at[worker, rows] + 1)
        self.written_at[rows] = step

    def train(self, step: int, worker: int, share: Share) -> None:
        self.pending[worker, share.distinct] += share.occurrences
        self.updated_at[worker, share.distinct] = step


class Rules(Protocol):
    """What one protocol decides."""

    def grow(self, num_rows: int) -> None:
        """Makes room for rows numbered up to here."""
        ...

    def place(self, step: int, accesses: Accesses, numbers: Int64, replicas: Replicas) -> Int32:
        """The worker of each sample."""
        ...

    def to_push(self, worker: int, trained: Int64, distinct: Int64, users: Int64, replicas: Replicas) -> Int64:
        """The rows that a worker pushes after a step; given what it trained, and the next step's rows and users."""
        ...

    def pushed(self, worker: int, rows: Int64, updates: Int64) -> None:
        """So many updates of each row reached the store."""
        ...

    def outdated(self, worker: int, rows: Int64) -> Int64:
        """Those of the rows, all held, that must be refreshed before they are read."""
        ...

    def pulled(self, worker: int, rows: Int64) -> None:
        """Rows were fetched or refreshed."""
        ...

    def trained(self, distinct: Int64, users: Int64) -> None:
        """A step's rows were trained by their users."""
        ...


class BoundedStaleness:
    """HET's rules: replicas may be stale, by at most `staleness` updates each way.

    A row at the store counts the updates it got, one for each lookup. A worker remembers the count it knows, and its
    own updates since its last push.
    """

    def __init__(self, num_workers: int, staleness: int) -> None:
        self._num_workers = num_workers
        self._staleness = staleness
        self._known = np.empty((num_workers, 0), np.int64)
        self._stored = np.empty(0, np.int64)

    def grow(self, num_rows: int) -> None:
        self._known = widened(self._known, num_rows, 0)
        self._stored = widened(self._stored, num_rows, 0)

    def place(self, step: int, accesses: Accesses, numbers: Int64, replicas: Replicas) -> Int32:
        return (np.arange(accesses.num_samples) % self._num_workers).astype(np.int32)

    def to_push(self, worker: int, trained: Int64, distinct: Int64, users: Int64, replicas: Replicas) -> Int64:
        chosen: Int64 = trained[replicas.pending[worker, trained] > self._staleness]
        return chosen

    def pushed(self, worker: int, rows: Int64, updates: Int64) -> None:
        self._stored[rows] += updates
        self._known[worker, rows] += updates

    def outdated(self, worker: int, rows: Int64) -> Int64:
        chosen: Int64 = rows[self._stored[rows] - self._known[worker, rows] > self._staleness]
        return chosen

    def pulled(self, worker: int, rows: Int64) -> None:
        self._known[worker, rows] = self._stored[rows]

    def trained(self, distinct: Int64, users: Int64) -> None:
        pass


class WriteThrough:
    """Ordinary caches, one for each worker: push everything at once, pull whatever changed.

    Bounded staleness with a bound of 0, so a replica is used only if it contains every update; samples go in equal
    slices. Which row leaves a full cache is the ranking's.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        bounded = BoundedStaleness(num_workers, 0)
        self.grow, self.to_push, self.pushed = bounded.grow, bounded.to_push, bounded.pushed
        self.outdated, self.pulled, self.trained = bounded.outdated, bounded.pulled, bounded.trained

    def place(self, step: int, accesses: Accesses, numbers: Int64, replicas: Replicas) -> Int32:
        return (np.arange(accesses.num_samples) * self._num_workers // max(1, accesses.num_samples)).astype(np.int32)


@dataclass(slots=True)
class _Open:
    """A step whose writes are not decided yet."""

    step: int
    records: list[ComparedRecord]
    trained: list[Int64]


class Additive:
    """Plans by some rules. Looks one step ahead, and never forgets a row."""

    def __init__(self, header: Header, rules: Rules, rank: Rank | None = None, first_rows: Int64 | None = None) -> None:
        """`rank`: caches that are not LRU. `first_rows` get the first numbers, in their order: a rank may know them."""
        self.header = header
        self._rules = rules
        self._numbering = Numbering(header.num_rows)
        if first_rows is not None:
            self._numbering.number(first_rows, header.first_step)
        self._caches = RecencyCaches(header.num_workers, header.capacity_rows, rank)
        self._replicas = Replicas(header.num_workers)
        self._next = header.first_step
        self._open: _Open | None = None

    def push(self, accesses: Accesses) -> list[Record]:
        step, workers = self._next, range(self.header.num_workers)
        numbers = self._numbering.number(accesses.rows, step)
        for arrays in (self._caches, self._replicas, self._rules):
            arrays.grow(len(self._numbering.rows))
        placed = self._rules.place(step, accesses, numbers, self._replicas)
        shares = shares_of(accesses, numbers, placed, self.header.num_workers)
        distinct, users = users_of(shares)
        pushes = [self._push(worker, distinct, users) for worker in workers]
        admitted = [self._admit(step, worker, shares[worker]) for worker in workers]
        closed = self._close(pushes, [leaving for _, leaving in admitted])
        records = [self._record(step, worker, shares[worker], admitted[worker][0]) for worker in workers]
        for worker in workers:
            self._replicas.train(step, worker, shares[worker])
        self._rules.trained(distinct, users)
        self._open = _Open(step, records, [share.distinct for share in shares])
        self._next += 1
        return closed

    def finish(self) -> list[Record]:
        """All updates that the store does not have are pushed after the last step."""
        nothing, workers = np.empty(0, np.int64), range(self.header.num_workers)
        pushes = [self._push(worker, nothing, nothing) for worker in workers]
        leaving = [self._leave(worker, *self._unpushed(worker)) for worker in workers]
        return self._close(pushes, leaving)

    def _unpushed(self, worker: int) -> tuple[Int64, Int32]:
        rows = np.flatnonzero(self._replicas.pending[worker] > 0)
        return rows, self._caches.slot[worker, rows]

    def _push(self, worker: int, distinct: Int64, users: Int64) -> Push:
        """What a worker pushes after the open step because somebody needs it."""
        if self._open is None:
            return Push()
        rows = self._rules.to_push(worker, self._open.trained[worker], distinct, users, self._replicas)
        self._rules.pushed(worker, rows, self._replicas.pending[worker, rows])
        self._replicas.push(self._open.step, worker, rows)
        return Push(self._caches.slot[worker, rows], self._numbering.rows[rows])

    def _admit(self, step: int, worker: int, share: Share) -> tuple[Int64, tuple[Evict, Int32]]:
        """Gives a step's rows their slots: those that were not held, and what leaves after the open step."""
        by_row = share.distinct[np.argsort(self._numbering.rows[share.distinct])]
        missing, victims, slots = self._caches.admit(step, worker, by_row)
        return missing, self._leave(worker, victims, slots)

    def _leave(self, worker: int, rows: Int64, slots: Int32) -> tuple[Evict, Int32]:
        """Rows with updates of their own are evicted, the others dropped."""
        if self._open is None:
            return Evict(), slots
        updates = self._replicas.pending[worker, rows]
        dirty = updates > 0
        self._rules.pushed(worker, rows[dirty], updates[dirty])
        self._replicas.push(self._open.step, worker, rows[dirty])
        versions = self._replicas.updated_at[worker, rows[dirty]] + np.int32(1)
        return Evict(slots[dirty], self._numbering.rows[rows[dirty]], versions), slots[~dirty]

    def _close(self, pushes: list[Push], leaving: list[tuple[Evict, Int32]]) -> list[Record]:
        if self._open is None:
            return []
        return [
            replace(record, push=push, evict=evict, drop=drop)
            for record, push, (evict, drop) in zip(self._open.records, pushes, leaving, strict=True)
        ]

    def _record(self, step: int, worker: int, share: Share, missing: Int64) -> ComparedRecord:
        held = share.distinct[~np.isin(share.distinct, missing)]
        outdated = self._rules.outdated(worker, held)
        self._rules.pulled(worker, missing)
        self._rules.pulled(worker, outdated)
        pulled = np.concatenate([missing, outdated])
        written_at = int(self._replicas.written_at[pulled].max(initial=-1))
        unique = self._caches.slot[worker, share.distinct]
        return ComparedRecord(
            step=step,
            worker=worker,
            samples=share.samples,
            unique=unique,
            inverse=share.inverse,
            fetch=self._pull(worker, missing),
            not_before=max(written_at, step - 1 - self.header.fetch_ahead_steps, -1),
            apply=unique,
            evict=Evict(),
            digest=share.digest,
            refresh=self._pull(worker, outdated),
        )

    def _pull(self, worker: int, rows: Int64) -> Fetch:
        known = self.header.first_step == 0
        versions = self._replicas.stored_version[rows] if known else np.full(len(rows), UNKNOWN_VERSION, np.int32)
        return Fetch(self._numbering.rows[rows], self._caches.slot[worker, rows], versions)


def het(header: Header, staleness: int) -> Additive:
    """HET's planner. Only with staleness 0 is it exact."""
    return Additive(header, BoundedStaleness(header.num_workers, staleness))


def compared(header: Header, profile: Profile) -> Additive:
    return het(header, header.options.staleness)


POLICY = Policy(
    name="het",
    meaning="replicas may be stale by so many updates",
    colour="#b59a2f",
    compared=compared,
    additive=True,
    takes_staleness=True,
    workers_max=USERS_MAX,
)
