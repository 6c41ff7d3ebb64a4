"""Carries rows between a store and a cache in the background, under the guards of the plan.

    planner thread ──work──► reader thread ──work + rows──► training loop ──rows to write──► writer thread
                                   ▲                                                              │
                                   └───────────────── applied up to step z ───────────────────────┘

The reader issues the fetch of a step once the write-backs of `not_before` are applied at the store: not sent, applied.
Where a request costs more than its rows, it rests while training has a few steps in hand, and then asks at once for all
steps whose write-backs are applied (`FetchBatching`). It checks that every row has the version the plan predicts. The
writer applies write-backs in step order. Nothing here decides anything: what, when and where stand in the record. All
queues are bounded, and an error in any thread reaches the training loop after the steps that were ready before it. A
broken invariant is known at once, by `check`: nobody may commit after it, whether the loop gets that far or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import NamedTuple

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.engine.channel import Abandoned, Channel, Watermark
from foresee.engine.exchange.mesh import LinkScheduler
from foresee.engine.planned_step import PlannedStep
from foresee.engine.trace.tracer import NOT_RECORDED, TRAIN, Timeline
from foresee.errors import ConsistencyError, LostWriteError, StaleReadError
from foresee.io import failpoints
from foresee.io.failpoints import failpoint
from foresee.plan.record import UNKNOWN_VERSION, Evict, Fetch, Header, Record
from foresee.store.contract import GuardedStore, Rows, Store, guarded
from foresee.store.row_groups import groups_of

PLANNED_WITH_TIME = 4
"""Once this many steps are planned and not fetched, planning yields to training."""
WRITES_IN_FLIGHT = 4


class ReadyStep(NamedTuple):
    """A planned step whose missing rows have arrived in staging memory."""

    work: PlannedStep
    staging: tuple[Rows, ...]  # one per row group

    @property
    def step(self) -> int:
        return self.work.step


class _GroupWrite(NamedTuple):
    """Rows of one row group."""

    group: int
    rows: Int64
    values: Rows
    next_use: Int32 | None = None


class _Write(NamedTuple):
    """Rows to assign at the stores; afterwards `step` counts as applied."""

    step: int
    groups: list[_GroupWrite]
    ticket: int = 0
    """Counts the writes that somebody waits for."""


@dataclass
class PipelineTimes:
    """Seconds the training loop spent waiting, since the pipeline started."""

    rows_seconds: float = 0.0
    """For rows to arrive."""
    writes_seconds: float = 0.0
    """For the writer to take what was evicted."""


class Pipeline:
    """Overlap storage I/O with training: a planner, a reader and a writer thread around one consumer.

    Use it as a context manager: leaving it lets the writer finish.

    Args:
        steps: Planned steps in order; iterated on the planner thread.
        store: Where rows live when they are not cached.
        header: The plan's first step, and how many steps may be fetched ahead.
        timeline: What records the activities of the threads.
        link: Shared with the exchange between workers; fetches and write-backs wait while it is closed.
    """

    def __init__(
        self,
        steps: Iterable[PlannedStep],
        store: Store,
        header: Header,
        timeline: Timeline = NOT_RECORDED,
        link: LinkScheduler | None = None,
    ) -> None:
        self.times = PipelineTimes()
        self._link = link or LinkScheduler()
        self._timeline = timeline
        self._stores = [guarded(it) for it in groups_of(store)]
        self._steps = timeline.each("planner", steps, "plan", then="ahead")
        self._batching = FetchBatching.of(header, at_once=any(it.requests_cost for it in self._stores))
        self._planned: Channel[PlannedStep] = Channel("plan", capacity=header.fetch_ahead_steps + 2)
        self._ready: Channel[ReadyStep] = Channel("fetch", capacity=header.fetch_ahead_steps + 2)
        self._writes: Channel[_Write] = Channel("write-back", capacity=WRITES_IN_FLIGHT)
        self._applied = Watermark("write-backs of step", reached=header.first_step - 1)
        self._tickets_done = Watermark("write", reached=0)
        self._num_tickets = 0
        self._inconsistency: ConsistencyError | None = None
        self._threads = [
            Thread(target=body, name=f"foresee-{name}", daemon=True)
            for name, body in (("planner", self._plan), ("reader", self._read), ("writer", self._write))
        ]

    def __enter__(self) -> Pipeline:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ready.refuse(Abandoned())
        self._planned.refuse(Abandoned())
        self._applied.fail(Abandoned())
        self._writes.close()
        for thread in self._threads:
            thread.join()

    def ready(self) -> Iterator[ReadyStep]:
        """Steps in order, each as soon as its rows are there."""
        yield from self._timeline.each(TRAIN, self._timed_arrivals(), "wait_rows", then="other")

    def _timed_arrivals(self) -> Iterator[ReadyStep]:
        arrivals = iter(self._ready)
        while True:
            begun = time.perf_counter()
            item = next(arrivals, None)
            self.times.rows_seconds += time.perf_counter() - begun
            if item is None:
                return
            yield item

    def write_back(self, step: int, evicted: Iterable[tuple[Evict, Rows]]) -> None:
        """Hands the evicted rows of each group to the writer. Every step must be handed over, also without any."""
        groups = [
            _GroupWrite(group, evict.row, values, evict.known_next_use) for group, (evict, values) in enumerate(evicted)
        ]
        begun = time.perf_counter()
        self._writes.put(_Write(step, groups))
        self.times.writes_seconds += time.perf_counter() - begun

    def write_now(self, step: int, group: int, rows: Int64, values: Rows) -> None:
        """Writes rows that stay cached, after everything handed over before; returns when all is applied."""
        self._num_tickets += 1
        self._writes.put(_Write(step, [_GroupWrite(group, rows, values)], self._num_tickets))
        self._tickets_done.wait_for(self._num_tickets)

    def check(self) -> None:
        """Raises what any of the threads found broken so far."""
        if self._inconsistency is not None:
            raise self._inconsistency

    def _found(self, error: BaseException) -> None:
        if isinstance(error, ConsistencyError):
            self._inconsistency = self._inconsistency or error

    def _plan(self) -> None:
        try:
            for work in self._steps:
                self._planned.put(work)
                if len(self._planned) >= PLANNED_WITH_TIME:
                    self._link.wait_for_closed()
            self._planned.close()
        except BaseException as error:
            self._found(error)
            self._planned.close(error)

    def _read(self) -> None:
        rest = self._timeline.after("reader", self._rest_while_ahead, "ahead")
        wait = self._timeline.after("reader", self._wait_for_writes, "wait_writes")
        try:
            for work in self._timeline.each("reader", self._planned, "wait_plan"):
                rest(work)
                wait(work)
                fetched = self._fetch(self._together(work, self._batching.steps(len(self._ready))))
                for ready in self._timeline.each("reader", fetched, "fetch", num_bytes=self._bytes_of_fetch):
                    self._ready.put(ready)
            self._ready.close()
        except BaseException as error:
            self._found(error)
            self._planned.refuse(Abandoned())
            self._ready.close(error)

    def _write(self) -> None:
        apply = self._timeline.after("writer", self._write_rows, "write_back", self._bytes_of_write)
        try:
            for write in self._timeline.each("writer", self._writes_in_turn(), "idle"):
                apply(write)
                self._applied.raise_to(write.step)
                self._tickets_done.raise_to(write.ticket)
        except BaseException as error:
            self._found(error)
            self._writes.refuse(error)
            self._applied.fail(error)
            self._tickets_done.fail(error)

    def _rest_while_ahead(self, work: PlannedStep) -> None:
        self._ready.wait_until_few(self._batching.in_hand_steps)

    def _wait_for_writes(self, work: PlannedStep) -> None:
        self._applied.wait_for(work.record.not_before)
        self._link.wait(for_early=len(self._ready) > 0)

    def _writes_in_turn(self) -> Iterator[_Write]:
        for write in self._writes:
            self._link.wait()
            yield write

    def _write_rows(self, write: _Write) -> None:
        for it in write.groups:
            self._stores[it.group].write_step(write.step, it.rows, it.values, it.next_use)
            if len(it.rows):
                failpoint(failpoints.ROWS_WRITTEN)

    def _bytes_of_fetch(self, ready: ReadyStep) -> int:
        staged = zip(ready.staging, self._stores, strict=True)
        return sum(len(rows) * store.layout.row_bytes for rows, store in staged)

    def _bytes_of_write(self, write: _Write) -> int:
        return sum(len(it.rows) * self._stores[it.group].layout.row_bytes for it in write.groups)

    def _together(self, work: PlannedStep, num_steps: int) -> list[PlannedStep]:
        """The work, and what is planned after it and may be fetched now, up to so many steps."""
        works = [work]
        while len(works) < num_steps:
            following = self._planned.take_if(lambda work: may_be_fetched(work.record, self._applied.reached))
            if following is None:
                break
            works.append(following)
        return works

    def _fetch(self, works: list[PlannedStep]) -> list[ReadyStep]:
        by_group = zip(*(work.groups for work in works), strict=True)
        fetched = [
            self._fetch_group(store, [work.record for work in of_group])
            for store, of_group in zip(self._stores, by_group, strict=True)
        ]
        return [ReadyStep(work, parts) for work, parts in zip(works, zip(*fetched, strict=True), strict=True)]

    def _fetch_group(self, store: GuardedStore, records: list[Record]) -> list[Rows]:
        fetch, not_before = joined(records)
        staging = Rows.empty(len(fetch), store.layout)
        store.read_guarded(fetch.row, fetch.version, not_before, staging)
        if len(fetch):
            failpoint(failpoints.ROWS_FETCHED)
        return parted(records, staging)


def joined(records: Sequence[Record]) -> tuple[Fetch, int]:
    """What several steps fetch, as one fetch, and the step whose write-backs it needs."""
    columns = zip(*[(record.fetch.row, record.fetch.slot, record.fetch.version) for record in records], strict=True)
    return Fetch(*map(np.concatenate, columns)), max(record.not_before for record in records)


def parted(records: Sequence[Record], staging: Rows) -> list[Rows]:
    """The rows of each step again, held against the versions that the plan predicts."""
    ends = np.cumsum([len(record.fetch) for record in records])
    parts = [staging.part(slice(end - len(record.fetch), end)) for record, end in zip(records, ends, strict=True)]
    for record, part in zip(records, parts, strict=True):
        check_versions(record.step, record.fetch, part)
    return parts


@dataclass(frozen=True, slots=True)
class FetchBatching:
    """How many steps are fetched at once, and when.

    With just enough in hand, one for one that was taken: each when training begins its step and the link is idle, and
    too little to be still under way when it is needed for something urgent. With less in hand, many at once: a request
    takes longer than a step, so it should bring more than one.
    """

    steps_max: int
    in_hand_steps: int
    """Only once training has so few steps in hand, or fewer."""

    @classmethod
    def of(cls, header: Header, *, at_once: bool) -> FetchBatching:
        """Half of what may be fetched ahead, when a quarter is left; or one by one, as early as may be."""
        ahead = header.fetch_ahead_steps
        return cls(ahead // 2, ahead // 4) if at_once and ahead >= 4 else cls(1, ahead + 1)

    def steps(self, in_hand: int) -> int:
        return 1 if in_hand >= self.in_hand_steps else self.steps_max


def may_be_fetched(record: Record, applied: int) -> bool:
    """Whether a step can join the fetch of one before it: what it needs is applied.

    Were it not, the earlier step would wait for the later one's rows, which may be written only after it.
    """
    return record.not_before <= applied


def check_versions(step: int, fetch: Fetch, staging: Rows) -> None:
    """Refuses a row that is not in the version the plan predicts."""
    wrong = (fetch.version != UNKNOWN_VERSION) & (fetch.version != staging.versions)
    if wrong.any():
        first = int(np.argmax(wrong))
        found, predicted = staging.versions[first], fetch.version[first]
        what = f"step {step}: row {fetch.row[first]} was read in version {found}, the plan predicts {predicted}"
        if found < predicted:  # all write-backs that this fetch needs were applied before it was issued
            raise LostWriteError(f"{what}: the row's write-back was lost; resume from the last commit")
        raise StaleReadError(f"{what}; these tables are not as this run left them: resume from the last commit")
