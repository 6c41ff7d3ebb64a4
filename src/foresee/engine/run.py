"""The training loop's view of a plan: steps whose rows are there.

    for step in foresee.steps(log, tables, batch_size=2048, cache_rows=500_000):
        loss = bce(model(step.dense, step.embeddings), step.labels)
        loss.backward()
        adam.step(); adam.zero_grad()
        step.update()

With `step.update_during_backward()` before `loss.backward()`, rows are updated and exchanged on a thread of their own
as soon as their gradient is there. `step.update()` then waits until they are updated; those that peers send for the
next step are waited for when somebody asks for its embeddings (`step.py`).

The model, the loss and the dense optimiser stay the caller's. When the loop ends, by itself or by `break`, the rows
still cached are written back and the store is committed as the state after the last updated step. Where a row was found
that is not what the plan predicts, by whichever thread, nothing is committed any more.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

import torch

from foresee.data.batch import BatchStream
from foresee.engine.cache import BatchesInFlight, Cache, Caches, SlotCache
from foresee.engine.exchange.peers import Exchange, LocalExchange, recorded
from foresee.engine.feed import Feed, feed_of
from foresee.engine.header import check_fits
from foresee.engine.history import Trained
from foresee.engine.kernels import Threads
from foresee.engine.pipeline import Pipeline, PipelineTimes, Ready
from foresee.engine.planned_step import PlannedStep, Pooling, planned, replayed
from foresee.engine.step import Step
from foresee.engine.tables import Tables
from foresee.engine.torch_cache import TorchCache
from foresee.engine.trace.tracer import NOT_RECORDED, TRAIN, UPDATE_THREAD, Timeline, Track
from foresee.errors import ConsistencyError, UsageError
from foresee.plan.count import Counting, num_unused
from foresee.plan.record import Counters, Header, Record
from foresee.store.contract import disks_of
from foresee.store.layout import Layout


@dataclass
class Run:
    """An iterable of steps over a stream of batches, made by `foresee.steps` or from its parts.

    Args:
        stream: The batches of all steps.
        tables: The rows, and how they learn.
        header: What is planned: first step, slots of the cache, planner.
        pooling: Which features are averaged over their bag.
        records: A saved plan; without one the header's planner plans as it goes.
        device: Where the model computes and the cache is.
        num_threads: Threads of the row kernels.
        exchange: What goes on between this worker and its peers.
        commit_at_end: Commit when the loop ends, also by `break`. Who commits rows together with something else says
            False.
        timeline: Who records what the run does.
        trained: What to write down with the commit of a step about its batches.
        scratch: A folder for temporary files of the planner; None: where the system has them.
        in_flight: What steps to come have read before this run begins.
    """

    stream: BatchStream
    tables: Tables
    header: Header
    pooling: Pooling
    records: Iterable[Record] | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_threads: int = 1
    exchange: Exchange = field(default_factory=LocalExchange)
    commit_at_end: bool = True
    timeline: Timeline = NOT_RECORDED
    trained: Callable[[int], Trained | None] = field(default_factory=lambda: lambda step: None)
    scratch: Path | None = None
    in_flight: BatchesInFlight = field(default_factory=BatchesInFlight)

    def __post_init__(self) -> None:
        check_fits(self.header, self.stream, self.tables)
        self.steps_done = self.header.first_step
        self.bytes_moved = 0
        """Of rows between store and cache, so far."""
        self.times = PipelineTimes()
        self._exchange = self.exchange
        """As the steps use it: recorded, if the run is."""
        self._counters, self._counted = Counters(), dict[int, Counters]()
        """What has moved so far, and will have after each step that is planned and not done."""
        self._refills: dict[int, int] = {}
        """Rows by step that are fetched to fill the cache of a plan entered in the middle."""
        self._active: tuple[Pipeline, Caches] | None = None
        self._updates: ThreadPoolExecutor | None = None
        """The thread of updates that begin during backward."""
        self._sending: Future[None] | None = None
        """The last step's rows, on their way to the peers that need them next."""
        self.failed = False
        """Rows are half updated, half written or stale: no state of any step, and never to be committed."""

    @property
    def counters(self) -> Counters:
        """What has moved so far."""
        return self._counters

    @property
    def rows_refilled(self) -> int:
        """Of the rows fetched so far, those that only filled the cache where a run goes on; see `plan.entry`."""
        return sum(rows for step, rows in self._refills.items() if step < self.steps_done)

    def __iter__(self) -> Generator[Step, None, None]:
        if self._active is not None or self.steps_done != self.header.first_step:
            raise UsageError("this run was started already; make a new one for another pass over the stream")
        self._exchange = recorded(self.exchange, self.timeline)
        self.timeline.begin(
            self.header, self.tables.layout, num_steps=self.stream.num_steps, worker=self.exchange.rank,
            disks=lambda: disks_of(self.tables.store),
        )  # fmt: skip
        with (
            self.tables.used_by(self),
            Threads(self.num_threads) as threads,
            Pipeline(self._work(), self.tables.store, self.header, self.timeline, self.exchange.link) as pipeline,
            closing(feed_of(self.stream)) as feed,
        ):
            caches = self._caches(threads)
            self._active, self.times = (pipeline, caches), pipeline.times
            try:
                with self._never_committed_after(ConsistencyError):
                    yield from self._steps(pipeline, caches, feed)
            finally:
                if self._updates is not None:
                    self._updates.shutdown()
                    self.exchange.link.open()
                # Also after `break`: the rows are those of the last updated step, and that is a state worth keeping.
                try:
                    self._wait_sent()
                    if self.commit_at_end and not self.failed:
                        self.commit()
                except BaseException as error:
                    # After `break` Python only prints what a generator raises while it is closed.
                    self.tables.failure = error
                    raise
                finally:
                    self._active = None
                    self.timeline.end()

    def span(self, what: str) -> None:
        """For the timeline of a recorded run.

        Args:
            what: What this thread did after the last step, such as "evaluate".
        """
        self.timeline.track(TRAIN).span(what, self.steps_done - 1)

    def lap(self, what: str) -> None:
        """The name of `span` in the release before; goes with the next."""
        warnings.warn("run.lap is now called run.span; rename it", DeprecationWarning, stacklevel=2)
        self.span(what)

    def flush(self) -> None:
        """Brings the store up to date with the cache, evicting nothing. Reads see the state after the last update."""
        if self._active is not None:
            pipeline, caches = self._active
            self._wait_sent()
            with self._never_committed_after(BaseException):
                settled = zip(self.exchange.settle(caches), caches, strict=True)
                for group, (waiting, cache) in enumerate(settled):
                    for rows, values in chain(waiting, cache.changed()):
                        pipeline.write_now(self.steps_done - 1, group, rows, values)
                pipeline.check()

    def commit(self) -> None:
        """Makes the state after the last updated step durable."""
        self.flush()
        with self._never_committed_after(BaseException):
            self.tables.commit(self.steps_done, self.trained(self.steps_done))

    def _steps(self, pipeline: Pipeline, caches: Caches, feed: Feed) -> Iterator[Step]:
        track = self.timeline.track(TRAIN)
        feed.fill(self.steps_done)
        for ready in pipeline.ready():
            arrive = partial(self._arrive, ready, caches, track)
            step = Step(
                ready.work, self.device, arrive, self._finish, self._start, track, self.timeline, self._squared_norm
            )  # fmt: skip
            with self._never_committed_in_mid_step(step):
                yield step
            if not step.updated:
                raise UsageError(f"step {step.index} was not updated; call step.update() before the next step")
            feed.fill(self.steps_done)

    def _arrive(self, ready: Ready, caches: Caches, track: Track) -> tuple[torch.Tensor, ...]:
        """The step's embeddings of each row group, as soon as all of its rows have their slots."""
        record = ready.work.record
        self._of_this_loop(ready.work)
        track.span("begin", record.step)
        with self._never_committed_after(ConsistencyError):
            if self._sending is not None:
                self._wait_sent()
                track.span("exchange", record.step)
            for cache, part, staging in zip(caches, ready.work.groups, ready.staging, strict=True):
                cache.fill(part.record.fetch, staging)
            self._exchange.receive_rows(record.step, caches)
        self.timeline.arrived(ready.work, caches)
        track.span("other", record.step)
        parts = zip(ready.work.groups, caches, strict=True)
        embeddings = tuple(self.in_flight.embeddings(part, cache) for part, cache in parts)
        track.span("gather", record.step)
        return embeddings

    def _finish(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> None:
        self._update(work, gradients)
        self._send_rows(work)

    def _start(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> Callable[[], None]:
        """The same as `_finish`, on a thread of its own; the returned wait ends when the rows are updated.

        Until they have left, and the wait is over, the link is not for what has time.
        """
        self._of_this_loop(work)
        if self._updates is None:
            self._updates = ThreadPoolExecutor(1, UPDATE_THREAD)
        link = self.exchange.link
        link.close()
        updated = self._updates.submit(self._update, work, gradients)
        sending = self._sending = self._updates.submit(self._send_rows_after, updated, work)

        def wait() -> None:
            try:
                updated.result()
            finally:
                sending.add_done_callback(lambda _: link.open())

        return wait

    def _update(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> None:
        """Updates the step's rows and frees its slots; a commit or a `break` right after it includes the step."""
        pipeline, caches = self._of_this_loop(work)
        with self._never_committed_after(BaseException):
            self._exchange.update(work, gradients, caches)
            self.steps_done = work.step + 1
            self._counters = self._counted.pop(work.step)
            self.bytes_moved += self._bytes_of(work)
            evicted = [part.record.evict for part in work.groups]
            taken = (cache.take(evict) for cache, evict in zip(caches, evicted, strict=True))
            pipeline.write_back(work.step, zip(evicted, taken, strict=True))

    def _bytes_of(self, work: PlannedStep) -> int:
        """Rows that a step fetches and evicts, each as wide as it is."""
        parts = zip(work.groups, self.tables.layout.groups, strict=True)
        return sum((len(it.record.fetch) + len(it.record.evict)) * layout.row_bytes for it, layout in parts)

    def _squared_norm(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> float:
        """Of the gradients of the step's rows."""
        _, caches = self._of_this_loop(work)
        return self._exchange.squared_norm(work, gradients, caches)

    def _send_rows(self, work: PlannedStep) -> None:
        """Rows leave for the peers that need them in the next step."""
        _, caches = self._of_this_loop(work)
        with self._never_committed_after(BaseException):
            self._exchange.send_rows(work, caches)

    def _send_rows_after(self, updated: Future[None], work: PlannedStep) -> None:
        if updated.exception() is None:  # else whoever waits for the update is told
            self._send_rows(work)

    def _wait_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def _of_this_loop(self, work: PlannedStep) -> tuple[Pipeline, Caches]:
        if self._active is None:
            raise UsageError(
                f"step {work.record.step} belongs to a loop that has ended; use its rows and update it inside the loop"
            )
        return self._active

    @contextmanager
    def _never_committed_in_mid_step(self, step: Step) -> Iterator[None]:
        """A loop that is left between backward and update may have updated rows without their dense half."""
        try:
            yield
        finally:
            self.failed = self.failed or (step.began and not step.updated)

    @contextmanager
    def _never_committed_after(self, kind: type[BaseException]) -> Iterator[None]:
        """Rows half updated, half written or stale are no state of any step: nobody may commit them."""
        try:
            yield
        except kind:
            self.failed = True
            raise

    def _work(self) -> Iterator[PlannedStep]:
        if self.records is None:
            source = planned(self.stream, self.header, self.pooling, worker=self.exchange.rank, scratch=self.scratch)
        else:
            source = replayed(self.stream, self.records, self.header.first_step, self.pooling, self.header.groups)
        counting = Counting()
        for work in source:
            counting.add(work.record)
            self._counted[work.record.step] = counting.counters
            if work.record.step <= self.header.first_step + 1:
                self._refills[work.record.step] = num_unused(work.record)
            self.exchange.expect(work)
            yield work

    def _caches(self, threads: Threads) -> Caches:
        capacities = [group.capacity_rows for group in self.header.groups] or [self.header.capacity_rows]
        layouts = zip(self.tables.layout.groups, capacities, strict=True)
        return Caches([self._cache(layout, capacity, threads) for layout, capacity in layouts], self.header.groups)

    def _cache(self, layout: Layout, capacity_rows: int, threads: Threads) -> Cache:
        if self.device.type == "cpu":
            return SlotCache(layout, self.tables.optimizer, capacity_rows=capacity_rows, threads=threads)
        return TorchCache(layout, self.tables.optimizer, capacity_rows=capacity_rows, device=self.device)
