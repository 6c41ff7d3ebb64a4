"""Everything that happens to one row: when it was used, how it came, why it stayed, moved, left.

In: the steps of a plan, played. Out: a `RowLife`: stays, each from a fetch to a write-back, with the uses, moves,
copies and gradients in between. Why a row was given up is looked up, not assumed: the rows that stayed in its place are
watched until the row's own next use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from foresee.arrays import Int64
from foresee.plan.record import NOT_KNOWN, Kind, Record
from foresee.tools.explain.replay import FetchGuard, Played, RowTransfer

KEPT_WATCHED_MAX = 8
"""So many write-backs are compared with what stayed; each costs a pass over the window."""

Cause = Literal["needed", "expired", "end"]
"""Its slot was needed for another row; the planner keeps nothing without a known use; the plan ends."""

WaitedFor = Literal["itself", "others", "staging", "start"]
"""What holds a fetch back: the row's own write-back, those of rows fetched with it, the bound on staging, nothing."""


@dataclass(slots=True, kw_only=True)
class Kept:
    """What became of the rows that stayed when this one left."""

    num_rows: int
    num_used_before: int = 0
    """Of these, used again no later than the row that left; or at all, if it never is."""
    farthest: int | None = None
    """The latest of those uses."""


@dataclass(slots=True, kw_only=True)
class Left:
    """A write-back."""

    after: int
    worker: int
    version: int
    cause: Cause
    num_evicted: int
    """Rows that this worker gave up after that step."""
    known_until: int
    """The last step that the planner had read."""
    stated_use: int = NOT_KNOWN
    """The next use that it was written back with."""
    next_use: int | None = None
    kept: Kept | None = None


@dataclass(slots=True, kw_only=True)
class Move:
    """A change of owner."""

    source: int
    target: int
    sent_after: int
    step: int
    """The step that uses it."""
    critical: bool
    last_use: int | None


@dataclass(slots=True, kw_only=True)
class Lay:
    """Where a row was when it was fetched, and with whom it came, if the store is on disk."""

    place: Literal["nowhere", "memory", "log"] = "nowhere"
    """Never written, and so made from its id; among the rows written last; in a chunk of the log."""
    num_rows: int
    """Of that fetch, at this store."""
    num_in_memory: int
    num_in_log: int
    chunk: int | None = None
    num_in_chunk: int = 0
    """Rows of the fetch in the same chunk, itself included."""
    num_reads: int = 0
    """That brought all rows of the fetch which were in the log."""
    num_together: int = 0
    """Rows that came with the same read, itself included."""
    read_bytes: int = 0
    companions: list[str] = field(default_factory=list)
    """Names of some of those."""


@dataclass(slots=True, kw_only=True)
class Stay:
    """From a fetch to the write-back."""

    fetched_for: int
    workers: list[int]
    """Who fetched it: its owner, and those who needed a copy at once."""
    not_before: int
    guard: WaitedFor
    num_guarding: int
    """Rows of that fetch that were written back after `not_before`."""
    version: int
    uses: list[int] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)
    """The worker that applied the row's update, for each use."""
    num_users: list[int] = field(default_factory=list)
    """Workers that used it, for each use."""
    moves: list[Move] = field(default_factory=list)
    num_copies: int = 0
    num_copies_critical: int = 0
    num_gradients: int = 0
    num_gradients_critical: int = 0
    lay: Lay | None = None
    """None: the store is not on disk."""
    left: Left | None = None


@dataclass(slots=True, kw_only=True)
class RowLife:
    """One row, over all steps of a plan."""

    row: int
    name: str
    value: str | None
    num_rows: int
    planner: str
    window_steps: int | None
    num_workers: int
    first_step: int
    num_steps: int
    stays: list[Stay] = field(default_factory=list)

    @property
    def uses(self) -> list[int]:
        return [step for stay in self.stays for step in stay.uses]

    @property
    def num_fetched(self) -> int:
        """How often it was read from the store, by whomever."""
        return sum(len(stay.workers) for stay in self.stays)

    @property
    def hit_rate(self) -> float:
        """Share of its uses for which it was with the workers already."""
        return 1.0 - len(self.stays) / len(self.uses) if self.stays else 0.0


class RowFollower:
    """Collects one row's life, step by step."""

    def __init__(self, life: RowLife, *, keeps_expired: bool, knows_the_future: bool) -> None:
        """
        keeps_expired: the planner keeps rows until their slots are needed.
        knows_the_future: it gives up those whose next use is farthest, so what stayed is worth a comparison.
        """
        self.life = life
        self._cause: Cause = "needed" if keeps_expired else "expired"
        self._comparisons_left = KEPT_WATCHED_MAX if knows_the_future else 0
        self._watched: list[tuple[Left, Int64]] = []
        """Write-backs, and the rows that stayed then and were not used since."""

    def add(self, played: Played) -> None:
        users = [worker for worker, rows in enumerate(played.used) if self._in(rows)]
        self._watch(played, used=bool(users))
        self._fetched(played)
        if users:
            self._used(played, users)
        for transfer in (*played.arrived, *played.sent):
            if self._in(transfer.rows):
                self._carried(transfer, played.step)
        for record in played.records:
            place = np.flatnonzero(record.evict.row == self.life.row)
            if len(place):
                self._left(played, record, int(place[0]))

    def _in(self, rows: Int64) -> bool:
        return bool((rows == self.life.row).any())

    def _fetched(self, played: Played) -> None:
        for record, guard in zip(played.records, played.guards, strict=True):
            place = np.flatnonzero(record.fetch.row == self.life.row)
            if not len(place):
                continue
            if self.life.stays and self.life.stays[-1].fetched_for == played.step:
                self.life.stays[-1].workers.append(record.worker)
                continue
            self.life.stays.append(
                Stay(
                    fetched_for=played.step,
                    workers=[record.worker],
                    not_before=guard.not_before,
                    guard=self._waited_for(guard),
                    num_guarding=len(guard.written),
                    version=int(record.fetch.version[place[0]]),
                )
            )

    def _waited_for(self, guard: FetchGuard) -> WaitedFor:
        # A bound on staging may fall on a write-back that the fetch needs as well, so the rows are asked first.
        if len(guard.written):
            return "itself" if self._in(guard.written) else "others"
        return "start" if guard.not_before < self.life.first_step else "staging"

    def _used(self, played: Played, users: list[int]) -> None:
        stay = self.life.stays[-1]
        slots = {worker: played.records[worker].unique[played.used[worker] == self.life.row] for worker in users}
        owner = [worker for worker in users if np.isin(slots[worker], played.records[worker].apply).any()]
        stay.uses.append(played.step)
        stay.owners.append(owner[0] if owner else users[0])
        stay.num_users.append(len(users))

    def _carried(self, transfer: RowTransfer, step: int) -> None:
        stay = self.life.stays[-1]
        if transfer.kind == Kind.GRAD:
            stay.num_gradients += 1
            stay.num_gradients_critical += transfer.critical
        elif transfer.deadline != step:
            return  # counted when it arrives
        elif transfer.kind == Kind.VALUE:
            stay.num_copies += 1
            stay.num_copies_critical += transfer.critical
        else:
            earlier = [use for use in stay.uses if use < step]
            stay.moves.append(
                Move(
                    source=transfer.source,
                    target=transfer.target,
                    sent_after=transfer.sent_after,
                    step=step,
                    critical=transfer.critical,
                    last_use=earlier[-1] if earlier else None,
                )
            )

    def _left(self, played: Played, record: Record, place: int) -> None:
        worker, evict = record.worker, record.evict
        ends = played.step == self.life.first_step + self.life.num_steps - 1
        left = Left(
            after=played.step,
            worker=worker,
            version=int(evict.version[place]),
            cause="end" if ends else self._cause,
            num_evicted=len(evict),
            known_until=played.known_until,
            stated_use=int(evict.next_use[place]) if len(evict.next_use) else NOT_KNOWN,
        )
        self.life.stays[-1].left = left
        if left.cause == "needed" and self._comparisons_left:
            self._comparisons_left -= 1
            left.kept = Kept(num_rows=len(played.kept[worker]))
        self._watched.append((left, np.sort(played.kept[worker]) if left.kept else np.empty(0, np.int64)))

    def _watch(self, played: Played, *, used: bool) -> None:
        """Looks for the rows that stayed when this one left, until this one is used again or the window ends."""
        watched, self._watched = self._watched, []
        for left, rows in watched:
            remaining = rows
            if left.kept is not None and played.step <= left.known_until:
                found = np.isin(rows, np.concatenate(list(played.used)))
                if found.any():
                    left.kept.num_used_before += int(np.count_nonzero(found))
                    left.kept.farthest = played.step
                    remaining = rows[~found]
            if used:
                left.next_use = played.step
            else:
                self._watched.append((left, remaining))
