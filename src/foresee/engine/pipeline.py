"""Carries rows between a store and a cache in the background, under the guards of the plan.

    planner thread ──work──► reader thread ──work + rows──► training loop ──rows to write──► writer thread
                                   ▲                                                              │
                                   └───────────────── applied up to step z ───────────────────────┘

The reader issues the fetch of a step once the write-backs of `not_before` are applied at the store: not sent, applied.
Where a request costs more than its rows, it rests while training has a few steps in hand, and then asks with one
request for all steps whose write-backs are applied (`FetchBatching`). It checks that every row has the version the plan
predicts. The writer applies write-backs in step order. The pipeline decides nothing: the record fixes which rows move,
when and where. All queues are bounded, and an error in any thread reaches the training loop after the steps that were
ready before it. `check` raises a broken invariant as soon as a thread has found it: nothing may be committed after it,
whether the loop gets that far or not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Thread
from types import TracebackType
from typing import NamedTuple, TypeVar

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.engine.channel import Abandoned, Channel, Watermark
from foresee.engine.exchange.mesh import LinkScheduler
from foresee.engine.planned_step import PlannedStep
from foresee.engine.trace.tracer import NULL_TRACER, Tracer, thread_name
from foresee.errors import ConsistencyError, LostWriteError, StaleReadError
from foresee.io import failpoints
from foresee.io.failpoints import failpoint
from foresee.plan.record import UNKNOWN_VERSION, Evict, Fetch, Header, Record
from foresee.store.contract import GuardedStore, Rows, Store, guarded
from foresee.store.row_groups import groups_of

PLANNED_WITH_TIME = 4
"""Once this many steps are planned and not fetched, planning yields to training."""
WRITES_IN_FLIGHT = 4
Item = TypeVar("Item")


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
    ticket: int = 0  # counts the writes that a caller waits for


@dataclass
class PipelineTimes:
    """Seconds the training loop spent waiting, since the pipeline started."""

    rows_seconds: float = 0.0  # for rows to arrive
    writes_seconds: float = 0.0  # for the writer to take what was evicted


class Pipeline:
    """Overlap storage I/O with training: a planner, a reader and a writer thread around one consumer.

    Use it as a context manager: leaving it lets the writer finish.

    Args:
        steps: Planned steps in order; iterated on the planner thread.
        store: Where rows live when they are not cached.
        header: The plan's first step, and how many steps may be fetched ahead.
        tracer: Receives a span per activity and step.
        link: Shared with the exchange between workers; fetches and write-backs wait while it is closed.
    """

    def __init__(
        self,
        steps: Iterable[PlannedStep],
        store: Store,
        header: Header,
        tracer: Tracer = NULL_TRACER,
        link: LinkScheduler | None = None,
    ) -> None:
        self.times = PipelineTimes()
        self._link = link or LinkScheduler()
        self._tracer = tracer
        self._stores = [guarded(it) for it in groups_of(store)]
        self._steps, self._first_step = steps, header.first_step
        self._batching = FetchBatching.from_header(header, at_once=any(it.requests_cost for it in self._stores))
        self._planned: Channel[PlannedStep] = Channel("plan", capacity=header.fetch_ahead_steps + 2)
        self._ready: Channel[ReadyStep] = Channel("fetch", capacity=header.fetch_ahead_steps + 2)
        self._writes: Channel[_Write] = Channel("write-back", capacity=WRITES_IN_FLIGHT)
        self._applied = Watermark("write-backs of step", reached=header.first_step - 1)
        self._tickets_done = Watermark("write", reached=0)
        self._num_tickets = 0
        self._inconsistency: ConsistencyError | None = None
        self._threads = [
            Thread(target=body, name=thread_name(name), daemon=True)
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
        """Yield the steps in order, each as soon as its rows have arrived."""
        arrivals, step = iter(self._ready), self._first_step
        while True:
            begun = time.perf_counter()
            ready = self._next("wait_rows", step, arrivals)
            self.times.rows_seconds += time.perf_counter() - begun
            if ready is None:
                return
            yield ready
            step += 1

    def write_back(self, step: int, evicted: Iterable[tuple[Evict, Rows]]) -> None:
        """Hand the evicted rows of each group to the writer. Call it for every step, also if it evicts nothing."""
        groups = [
            _GroupWrite(group, evict.row, values, evict.known_next_use) for group, (evict, values) in enumerate(evicted)
        ]
        begun = time.perf_counter()
        self._writes.put(_Write(step, groups))
        self.times.writes_seconds += time.perf_counter() - begun

    def write_now(self, step: int, group: int, rows: Int64, values: Rows) -> None:
        """Write rows that stay cached, after everything handed over before. Return when all of it is applied."""
        self._num_tickets += 1
        self._writes.put(_Write(step, [_GroupWrite(group, rows, values)], self._num_tickets))
        self._tickets_done.wait_for(self._num_tickets)

    def check(self) -> None:
        """Raise the broken invariant that a thread has found so far, if any."""
        if self._inconsistency is not None:
            raise self._inconsistency

    def _found(self, error: BaseException) -> None:
        if isinstance(error, ConsistencyError):
            self._inconsistency = self._inconsistency or error

    def _next(self, what: str, step: int, items: Iterator[Item]) -> Item | None:
        """Return the next item, None after the last; waiting for it is a span of `step`."""
        try:
            with self._tracer.span(what, step):
                return next(items)
        except StopIteration:
            return None

    def _plan(self) -> None:
        try:
            steps, step = iter(self._steps), self._first_step
            while (work := self._next("plan", step, steps)) is not None:
                self._planned.put(work)
                if len(self._planned) >= PLANNED_WITH_TIME:
                    self._link.wait_for_closed()
                step += 1
            self._planned.close()
        except BaseException as error:
            self._found(error)
            self._planned.close(error)

    def _read(self) -> None:
        try:
            planned, step = iter(self._planned), self._first_step
            while (work := self._next("wait_plan", step, planned)) is not None:
                self._ready.wait_until_few(self._batching.in_hand_steps)
                with self._tracer.span("wait_writes", work.step):
                    # Until write-backs are applied at the store, not only sent: else the read may overtake them and
                    # return the rows before their last update.
                    self._applied.wait_for(work.record.not_before)
                    self._link.wait(for_early=len(self._ready) > 0)
                works = self._together(work, self._batching.num_steps(len(self._ready)))
                with self._tracer.span("fetch", work.step, self._bytes_of_fetch(work)):
                    fetched = self._fetch(works)
                for other in works[1:]:
                    # Read by the same request: a span without length, so that every step has one, with its bytes.
                    with self._tracer.span("fetch", other.step, self._bytes_of_fetch(other)):
                        pass
                for ready in fetched:
                    self._ready.put(ready)
                step += len(works)
            self._ready.close()
        except BaseException as error:
            self._found(error)
            self._planned.refuse(Abandoned())
            self._ready.close(error)

    def _write(self) -> None:
        try:
            for write in self._writes:
                self._link.wait()
                with self._tracer.span("write_back", write.step, self._bytes_of_write(write)):
                    for it in write.groups:
                        self._stores[it.group].write_step(write.step, it.rows, it.values, it.next_use)
                        if len(it.rows):
                            failpoint(failpoints.ROWS_WRITTEN)
                self._applied.raise_to(write.step)
                self._tickets_done.raise_to(write.ticket)
        except BaseException as error:
            self._found(error)
            self._writes.refuse(error)
            self._applied.fail(error)
            self._tickets_done.fail(error)

    def _bytes_of_fetch(self, work: PlannedStep) -> int:
        parts = zip(work.groups, self._stores, strict=True)
        return sum(len(part.record.fetch) * store.layout.row_bytes for part, store in parts)

    def _bytes_of_write(self, write: _Write) -> int:
        return sum(len(it.rows) * self._stores[it.group].layout.row_bytes for it in write.groups)

    def _together(self, work: PlannedStep, num_steps: int) -> list[PlannedStep]:
        """Return the step, and those planned after it that may be fetched now, up to `num_steps` in all."""
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
        fetch, not_before = merge_fetches(records)
        staging = Rows.empty(len(fetch), store.layout)
        store.read_guarded(fetch.row, fetch.version, not_before, staging)
        if len(fetch):
            failpoint(failpoints.ROWS_FETCHED)
        return split_staging(records, staging)


def merge_fetches(records: Sequence[Record]) -> tuple[Fetch, int]:
    """Return what several steps fetch as one fetch, and the step whose write-backs it needs."""
    columns = zip(*[(record.fetch.row, record.fetch.slot, record.fetch.version) for record in records], strict=True)
    return Fetch(*map(np.concatenate, columns)), max(record.not_before for record in records)


def split_staging(records: Sequence[Record], staging: Rows) -> list[Rows]:
    """Return the rows of each step; refuse those that are not in the version that the plan predicts."""
    ends = np.cumsum([len(record.fetch) for record in records])
    parts = [staging.part(slice(end - len(record.fetch), end)) for record, end in zip(records, ends, strict=True)]
    for record, part in zip(records, parts, strict=True):
        check_versions(record.step, record.fetch, part)
    return parts


@dataclass(frozen=True, slots=True)
class FetchBatching:
    """How many steps are fetched with one request, and when.

    With just enough steps in hand, each step that training takes is replaced by one: its fetch begins while the link is
    idle, and is short enough to end before the link is needed for a critical transfer. With fewer in hand, several
    steps are fetched together: a request takes longer than a step, so it should return more than one.
    """

    steps_max: int
    in_hand_steps: int
    """Fetch once training has at most this many steps in hand."""

    @classmethod
    def from_header(cls, header: Header, *, at_once: bool) -> FetchBatching:
        """Fetch half of the steps ahead once a quarter is left; unless `at_once`, one by one as early as allowed."""
        ahead = header.fetch_ahead_steps
        return cls(ahead // 2, ahead // 4) if at_once and ahead >= 4 else cls(1, ahead + 1)

    def num_steps(self, in_hand: int) -> int:
        """Return how many steps to fetch together, given the steps in hand."""
        return 1 if in_hand >= self.in_hand_steps else self.steps_max


def may_be_fetched(record: Record, applied: int) -> bool:
    """Return whether a step can join the fetch of one before it: the write-backs it needs are applied.

    Otherwise the earlier step would wait for the later one's rows, which may be written only after it.
    """
    return record.not_before <= applied


def check_versions(step: int, fetch: Fetch, staging: Rows) -> None:
    """Raise an error for a row that is not in the version the plan predicts."""
    wrong = (fetch.version != UNKNOWN_VERSION) & (fetch.version != staging.versions)
    if wrong.any():
        first = int(np.argmax(wrong))
        found, predicted = staging.versions[first], fetch.version[first]
        what = f"step {step}: row {fetch.row[first]} was read in version {found}, the plan predicts {predicted}"
        if found < predicted:  # all write-backs that this fetch needs were applied before it was issued
            raise LostWriteError(f"{what}: the row's write-back was lost; resume from the last commit")
        raise StaleReadError(f"{what}; these tables are not as this run left them: resume from the last commit")
