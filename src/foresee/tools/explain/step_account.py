"""Everything that one step does and waits for: its rows, where they came from, what leaves after it, and its time.

In: the steps of a plan, played; for a recorded run also the spans of one worker (`engine/trace/tracer.py`). Out: a
`StepAccount` with one `WorkerAccount` for each worker, and a `MeasuredStep`, or None if that step was not recorded in
full. While the training thread waited for rows, the reading thread did something: what it did longest is what the step
waited for. Later steps are read on to see when evicted rows are used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from foresee.arrays import Int64
from foresee.plan.record import UNKNOWN_VERSION, Kind, Record
from foresee.tools.explain.replay import Played

TRAIN, READER = "train", "reader"
MOVING = ("fill", "gather", "evict")
COMPUTING = ("begin", "forward", "backward", "dense", "compute")
BETWEEN_STEPS = ("evaluate", "commit")
Culprit = Literal["fetch", "wait_writes", "wait_plan"]


class Span(Protocol):
    """One thing that a thread did, in seconds since the run began."""

    @property
    def track(self) -> str: ...

    @property
    def what(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def begin(self) -> float: ...

    @property
    def end(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Seconds of one worker's step."""

    worker: int
    seconds: float
    waited_seconds: float
    """For rows."""
    waited_for: Culprit | None
    """What the reader did meanwhile: it read, it waited for write-backs, or for the plan."""
    moving_seconds: float
    """Rows into and out of slots."""
    computing_seconds: float
    update_seconds: float
    exchange_seconds: float
    """Rows and gradients that the next step needs."""
    fetch_seconds: float | None
    there_before_seconds: float | None
    """How long before the step began its rows had been read; below 0: after it began."""


def measured_step(spans: Sequence[Span], *, step: int, worker: int) -> MeasuredStep | None:
    """One worker's step, if the run recorded all of it."""
    own = [span for span in spans if span.step == step and span.track == TRAIN and span.what not in BETWEEN_STEPS]
    waits = [span for span in own if span.what == "wait_rows"]
    if not waits or not _ends(own):
        return None
    reading = [span for span in spans if span.step == step and span.track == READER]
    fetch = next((span for span in reading if span.what == "fetch"), None)
    begun = min(span.begin for span in own)

    def total(*activities: str) -> float:
        return sum(span.end - span.begin for span in own if span.what in activities)

    return MeasuredStep(
        worker=worker,
        seconds=max(span.end for span in own) - begun,
        waited_seconds=total("wait_rows"),
        waited_for=_culprit(waits, reading),
        moving_seconds=total(*MOVING),
        computing_seconds=total(*COMPUTING),
        update_seconds=total("update"),
        exchange_seconds=total("exchange", "background_wait"),
        fetch_seconds=None if fetch is None else fetch.end - fetch.begin,
        there_before_seconds=None if fetch is None else begun - fetch.end,
    )


def _ends(own: Sequence[Span]) -> bool:
    """Whether the update was recorded, or, if it went on beside backward, the wait for it."""
    computed = [span.end for span in own if span.what == "compute"]
    return any(
        span.what == "update" or (span.what == "exchange" and computed and span.begin >= min(computed)) for span in own
    )


def _culprit(waits: Sequence[Span], reading: Sequence[Span]) -> Culprit | None:
    overlaps: dict[Culprit, float] = {}
    culprits: tuple[Culprit, ...] = ("fetch", "wait_writes", "wait_plan")
    for culprit in culprits:
        overlaps[culprit] = sum(
            max(0.0, min(wait.end, span.end) - max(wait.begin, span.begin))
            for wait in waits
            for span in reading
            if span.what == culprit
        )
    worst = max(overlaps, key=lambda culprit: overlaps[culprit])
    return worst if overlaps[worst] > 0 else None


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
