"""Everything that one step does and waits for: its rows, where they came from, what leaves after it.

In: the steps of a plan, played. Out: a `StepAccount` with one `WorkerAccount` for each worker. The steps after it are
asked when the rows that it gave up are used again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from foresee.engine.explanation.following import Played
from foresee.engine.explanation.measured import MeasuredStep
from foresee.plan.record import UNKNOWN_VERSION, Int64, Kind, Record

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


def account_of(played: Played, *, capacity_rows: int) -> list[WorkerAccount]:
    return [_worker_account(played, record, capacity_rows) for record in played.records]


def _worker_account(played: Played, record: Record, capacity_rows: int) -> WorkerAccount:
    worker = record.worker
    received = {kind.name: Traffic() for kind in (Kind.VALUE, Kind.MOVE)}
    sent = {kind.name: Traffic() for kind in (Kind.VALUE, Kind.MOVE)}
    gradients_sent, gradients_received = Traffic(), Traffic()
    for parcel in played.arrived:
        if parcel.target == worker:
            received[parcel.kind.name].add(len(parcel.rows), parcel.critical)
    for parcel in played.sent:
        if parcel.kind != Kind.GRAD and parcel.source == worker:
            sent[parcel.kind.name].add(len(parcel.rows), parcel.critical)
        elif parcel.kind == Kind.GRAD and worker in (parcel.source, parcel.target):
            mine = gradients_sent if parcel.source == worker else gradients_received
            mine.add(len(parcel.rows), parcel.critical)
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


def _fetching(played: Played, record: Record) -> Fetching:
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

    def add(self, played: Played) -> None:
        if played.step == self.account.step:
            self.account.workers = account_of(played, capacity_rows=self.account.capacity_rows)
            self.account.known_until = played.known_until
            self._watched = [record.evict.row for record in played.records]
        elif self.account.workers:
            self._look(played)

    def _look(self, played: Played) -> None:
        for worker, account in enumerate(self.account.workers):
            leaving, rows = account.leaving, self._watched[worker]
            if played.step == self.account.step + 1:
                leaving.num_needed = len(played.records[worker].fetch) + sum(
                    len(parcel.rows) for parcel in played.arrived if parcel.target == worker
                )
            if played.step > self.account.known_until:
                self._watched[worker] = rows[:0]
                continue
            used = np.isin(rows, np.concatenate(list(played.used)))
            leaving.num_used_again += int(np.count_nonzero(used))
            if used.any() and leaving.nearest_use is None:
                leaving.nearest_use = played.step
            self._watched[worker] = rows[~used]
