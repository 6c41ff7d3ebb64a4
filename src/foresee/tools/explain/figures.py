"""What a plan does with one row (`RowLife`) and in one step (`StepAccount`), as figures.

In: the steps of a plan, replayed into rows. A row's life is a list of stays in a cache, each from a fetch to a
write-back. Why a row was given up is looked up, not assumed: the rows that stayed in its place are watched until the
row's own next use. The followers read each step once and keep only what they still watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from foresee.arrays import Int64
from foresee.plan.record import NOT_KNOWN, UNKNOWN_VERSION, Kind, Record
from foresee.plan.replay import Played, RowTransfer
from foresee.tools.explain.measured import MeasuredStep


@dataclass(frozen=True, slots=True)
class FetchGuard:
    """Why the fetch of a record cannot be issued earlier."""

    not_before: int
    written: Int64
    """Rows of the fetch that were written back after that very step; none: it is the bound on staging, or the start."""


@dataclass(frozen=True, slots=True)
class PlannedStep(Played):
    """A replayed step, with what the planner knew when it decided it."""

    known_until: int
    """The last step that the planner had read."""
    guards: Sequence[FetchGuard]
    kept: Sequence[Int64]
    """Rows in each worker's cache after the step."""


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

    def add(self, played: PlannedStep) -> None:
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

    def _fetched(self, played: PlannedStep) -> None:
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

    def _used(self, played: PlannedStep, users: list[int]) -> None:
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

    def _left(self, played: PlannedStep, record: Record, place: int) -> None:
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

    def _watch(self, played: PlannedStep, *, used: bool) -> None:
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


ROWS_NAMED_MAX = 3


@dataclass(slots=True, kw_only=True)
class Fetching:
    """The reads of one worker for the step."""

    num_rows: int
    num_first: int
    """Never trained before: their first value follows from the seed."""
    last_used: list[int]
    """Of the others, the steps that updated them last, ascending."""
    not_before: int
    steps_ahead: int
    """Steps that can compute while the read is under way."""
    guard: Literal["rows", "staging", "start"]
    guarding: list[int]
    """Rows of the fetch that were written back after `not_before`."""
    rows: list[int]
    """Some of them."""


@dataclass(slots=True, kw_only=True)
class Traffic:
    """Rows of one kind that go from or to a worker."""

    num_critical: int = 0
    num_background: int = 0

    def add(self, num_rows: int, critical: bool) -> None:
        if critical:
            self.num_critical += num_rows
        else:
            self.num_background += num_rows

    @property
    def num_rows(self) -> int:
        return self.num_critical + self.num_background


@dataclass(slots=True, kw_only=True)
class Leaving:
    """What one worker gives up after the step."""

    num_rows: int
    num_needed: int
    """Rows that the next step puts into slots of this worker."""
    num_used_again: int = 0
    """Of those given up, used again in a step that the planner knew."""
    nearest_use: int | None = None
    rows: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class WorkerAccount:
    """One worker's part in the step."""

    worker: int
    num_samples: int
    num_lookups: int
    num_rows: int
    num_hits: int
    fetching: Fetching
    received: dict[str, Traffic]
    """Before the step: copies and moves, by kind."""
    gradients_sent: Traffic
    gradients_received: Traffic
    sent: dict[str, Traffic]
    """After the step, for later ones: copies and moves, by kind."""
    num_applied: int
    leaving: Leaving
    num_cached: int
    """Rows in its cache after the step."""


@dataclass(slots=True, kw_only=True)
class StepAccount:
    """One step of a plan."""

    step: int
    last_step: int
    planner: str
    window_steps: int | None
    capacity_rows: int
    fetch_ahead_steps: int
    known_until: int
    workers: list[WorkerAccount]
    measured: list[MeasuredStep] = field(default_factory=list)
    """What the run recorded of this step, if it did."""


def _worker_account(played: PlannedStep, record: Record) -> WorkerAccount:
    worker = record.worker
    received = {kind.name: Traffic() for kind in (Kind.VALUE, Kind.MOVE)}
    sent = {kind.name: Traffic() for kind in (Kind.VALUE, Kind.MOVE)}
    gradients_sent, gradients_received = Traffic(), Traffic()
    for transfer in played.arrived:
        if transfer.target == worker:
            received[transfer.kind.name].add(len(transfer.rows), transfer.critical)
    for transfer in played.sent:
        if transfer.kind != Kind.GRAD and transfer.source == worker:
            sent[transfer.kind.name].add(len(transfer.rows), transfer.critical)
        elif transfer.kind == Kind.GRAD and worker in (transfer.source, transfer.target):
            mine = gradients_sent if transfer.source == worker else gradients_received
            mine.add(len(transfer.rows), transfer.critical)
    arrived = sum(traffic.num_rows for traffic in received.values())
    return WorkerAccount(
        worker=worker,
        num_samples=len(record.samples),
        num_lookups=len(record.inverse),
        num_rows=len(record.unique),
        num_hits=len(record.unique) - len(record.fetch) - arrived,
        fetching=_fetching(played, record),
        received=received,
        gradients_sent=gradients_sent,
        gradients_received=gradients_received,
        sent=sent,
        num_applied=len(record.apply),
        leaving=Leaving(num_rows=len(record.evict), num_needed=0, rows=_some(record.evict.row)),
        num_cached=len(played.kept[worker]),
    )


def _fetching(played: PlannedStep, record: Record) -> Fetching:
    fetch, guard = record.fetch, played.guards[record.worker]
    again = fetch.version[(fetch.version != UNKNOWN_VERSION) & (fetch.version > 0)] - 1
    return Fetching(
        num_rows=len(fetch),
        num_first=int(np.count_nonzero(fetch.version == 0)),
        last_used=np.sort(again).tolist(),
        not_before=record.not_before,
        steps_ahead=record.step - 1 - record.not_before,
        guard="rows" if len(guard.written) else "start" if record.not_before < 0 else "staging",
        guarding=guard.written.tolist(),
        rows=_some(fetch.row),
    )


def _some(rows: Int64) -> list[int]:
    return [int(row) for row in rows[:ROWS_NAMED_MAX]]


class StepFollower:
    """Waits for one step, then watches what it gave up."""

    def __init__(self, account: StepAccount) -> None:
        self.account = account
        self._watched: list[Int64] = []

    @property
    def done(self) -> bool:
        """Whether nothing is left to be found out."""
        return bool(self.account.workers) and not any(len(rows) for rows in self._watched)

    def add(self, played: PlannedStep) -> None:
        if played.step == self.account.step:
            self.account.workers = [_worker_account(played, record) for record in played.records]
            self.account.known_until = played.known_until
            self._watched = [record.evict.row for record in played.records]
        elif self.account.workers:
            self._look(played)

    def _look(self, played: PlannedStep) -> None:
        for worker, account in enumerate(self.account.workers):
            leaving, rows = account.leaving, self._watched[worker]
            if played.step == self.account.step + 1:
                leaving.num_needed = len(played.records[worker].fetch) + sum(
                    len(transfer.rows) for transfer in played.arrived if transfer.target == worker
                )
            if played.step > self.account.known_until:
                self._watched[worker] = rows[:0]
                continue
            used = np.isin(rows, np.concatenate(list(played.used)))
            leaving.num_used_again += int(np.count_nonzero(used))
            if used.any() and leaving.nearest_use is None:
                leaving.nearest_use = played.step
            self._watched[worker] = rows[~used]
