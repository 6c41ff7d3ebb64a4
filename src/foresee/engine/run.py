"""The training loop's view of a plan: steps whose rows are there.

    for step in foresee.steps(log, tables, batch_size=2048, cache_rows=500_000):
        loss = bce(model(step.dense, step.embeddings), step.labels)
        loss.backward()
        adam.step(); adam.zero_grad()
        step.update()

With `step.update_during_backward()` before `loss.backward()`, rows are updated and exchanged on another thread as soon
as their gradient exists. `step.update()` then waits until they are updated; rows that peers send for the next step are
waited for when its embeddings are needed (`step.py`).

The model, the loss and the dense optimiser stay the caller's. When the loop ends, by itself or by `break`, the rows
still cached are written back and the store is committed as the state after the last updated step. Once any thread has
found a row that is not what the plan predicts, nothing is committed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch

from foresee.data.batch import BatchStream
from foresee.engine.cache import BatchesInFlight, Cache, Caches, SlotCache
from foresee.engine.exchange.peers import Exchange, LocalExchange
from foresee.engine.header import check_fits
from foresee.engine.history import Trained
from foresee.engine.kernels import Threads
from foresee.engine.pipeline import Pipeline, PipelineTimes, ReadyStep
from foresee.engine.planned_step import PlannedStep, PlannedSteps, Pooling
from foresee.engine.step import Step
from foresee.engine.tables import Tables
from foresee.engine.torch_cache import TorchCache
from foresee.engine.trace.tracer import NULL_TRACER, Tracer, thread_name
from foresee.errors import ConsistencyError, UsageError
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
        exchange: Swaps rows and gradients with other workers.
        commit_at_end: Commit when the loop ends, also by `break`. Set to False if the caller commits rows and dense
            state together.
        tracer: Records what the run does.
        trained: Returns what the commit of a step stores about its batches.
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
    tracer: Tracer = NULL_TRACER
    trained: Callable[[int], Trained | None] = field(default_factory=lambda: lambda step: None)
    scratch: Path | None = None
    in_flight: BatchesInFlight = field(default_factory=BatchesInFlight)

    def __post_init__(self) -> None:
        check_fits(self.header, self.stream, self.tables)
        self.steps_done = self.header.first_step
        self.bytes_moved = 0  # of rows between store and cache, so far
        self.times = PipelineTimes()
        self.failed = False
        """Rows are half updated, half written or stale. They belong to no step and must never be committed."""
        self._counters = Counters()
        self._planned: PlannedSteps | None = None
        self._active: tuple[Pipeline, Caches] | None = None  # while the loop runs
        self._updates: ThreadPoolExecutor | None = None  # the thread of updates that begin during backward
        self._sending: Future[None] | None = None  # the last step's rows, to the peers that need them next

    @property
    def counters(self) -> Counters:
        """What has moved so far."""
        return self._counters

    @property
    def rows_refilled(self) -> int:
        """Of the rows fetched so far, those that only filled the cache where a run goes on; see `plan.entry`."""
        return 0 if self._planned is None else self._planned.rows_refilled(self.steps_done)

    def __iter__(self) -> Generator[Step, None, None]:
        if self._active is not None or self.steps_done != self.header.first_step:
            raise UsageError("this run was started already; make a new one for another pass over the stream")
        self._planned = steps = PlannedSteps(
            self.stream, self.header, self.pooling, self.exchange, records=self.records, scratch=self.scratch
        )
        self.tracer.begin(
            self.header, self.tables.layout, num_steps=self.stream.num_steps, worker=self.exchange.rank,
            disks=lambda: disks_of(self.tables.store),
        )  # fmt: skip
        with (
            self.tables.used_by(self),
            Threads(self.num_threads) as threads,
            Pipeline(steps, self.tables.store, self.header, self.tracer, self.exchange.link) as pipeline,
            closing(steps.feed),
        ):
            caches = self._caches(threads)
            self._active, self.times = (pipeline, caches), pipeline.times
            try:
                with self._never_committed_after(ConsistencyError):
                    yield from self._steps(pipeline, steps)
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
                    self.tracer.end()

    def span(self, what: str) -> None:
        """Name what this thread did since the last span, in the timeline of a recorded run.

        Args:
            what: Done after the last step, such as "evaluate".
        """
        self.tracer.mark(what, self.steps_done - 1)

    def lap(self, what: str) -> None:
        """Call `span`: its name in the release before, removed in the next."""
        warnings.warn("run.lap is now called run.span; rename it", DeprecationWarning, stacklevel=2)
        self.span(what)

    def flush(self) -> None:
        """Bring the store up to date with the cache without evicting: reads see the state after the last update."""
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
        """Make the state after the last updated step durable."""
        self.flush()
        with self._never_committed_after(BaseException):
            self.tables.commit(self.steps_done, self.trained(self.steps_done))

    def _steps(self, pipeline: Pipeline, steps: PlannedSteps) -> Iterator[Step]:
        steps.feed.fill(self.steps_done)
        for ready in pipeline.ready():
            step = Step(self, ready)
            try:
                yield step
            finally:
                # A loop that is left between backward and update may have updated rows without their dense half.
                self.failed = self.failed or (step.began and not step.updated)
            if not step.updated:
                raise UsageError(f"step {step.index} was not updated; call step.update() before the next step")
            steps.feed.fill(self.steps_done)
            self.tracer.mark("other", step.index)  # so that the training thread's spans add up to the whole step

    def _gather(self, ready: ReadyStep) -> tuple[torch.Tensor, ...]:
        """Return the step's embeddings of each row group, as soon as all of its rows have their slots."""
        work, step = ready.work, ready.step
        _, caches = self._loop_of(work)
        self.tracer.mark("begin", step)
        with self._never_committed_after(ConsistencyError):
            if self._sending is not None:
                with self.tracer.span("exchange", step):
                    self._wait_sent()
            with self.tracer.span("fill", step):
                for cache, part, staging in zip(caches, work.groups, ready.staging, strict=True):
                    cache.fill(part.record.fetch, staging)
                self.exchange.receive_rows(step, caches)
        self.tracer.arrived(work, caches)
        with self.tracer.span("gather", step):
            parts = zip(work.groups, caches, strict=True)
            return tuple(self.in_flight.embeddings(part, cache) for part, cache in parts)

    def _update(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> None:
        """Update the step's rows, free its slots, and send the rows that peers need next."""
        self.tracer.mark("compute", work.step)
        self._apply(work, gradients)
        self._send_rows(work)

    def _begin_update(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> Future[None]:
        """Do what `_update` does on the update thread. Pass the future, done when rows are updated, to `_end_update`.

        Background transfers are blocked until the rows are sent and the caller has stopped waiting.
        """
        self._loop_of(work)
        if self._updates is None:
            self._updates = ThreadPoolExecutor(1, thread_name("update"))
        self.exchange.link.close()
        updated = self._updates.submit(self._apply, work, gradients)
        self._sending = self._updates.submit(self._send_rows_after, updated, work)
        return updated

    def _end_update(self, updated: Future[None], step: int) -> None:
        """Wait until the rows are updated; sending them may take longer."""
        sending, link = self._sending, self.exchange.link
        self.tracer.mark("compute", step)
        try:
            with self.tracer.span("exchange", step):
                updated.result()
        finally:
            if sending is None:  # a flush has waited for it
                link.open()
            else:
                sending.add_done_callback(lambda _: link.open())

    def _apply(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> None:
        """Update the step's rows and free its slots; a commit or a `break` right after it includes the step."""
        pipeline, caches = self._loop_of(work)
        assert self._planned is not None
        with self._never_committed_after(BaseException):
            with self.tracer.span("update", work.step):
                self.exchange.update(work, gradients, caches)
            self.steps_done = work.step + 1
            self._counters = self._planned.take_counters(work.step)
            for part, layout in zip(work.groups, self.tables.layout.groups, strict=True):
                self.bytes_moved += (len(part.record.fetch) + len(part.record.evict)) * layout.row_bytes
            with self.tracer.span("evict", work.step):
                evicted = [part.record.evict for part in work.groups]
                taken = (cache.take(evict) for cache, evict in zip(caches, evicted, strict=True))
                pipeline.write_back(work.step, zip(evicted, taken, strict=True))

    def _squared_norm(self, work: PlannedStep, gradients: Sequence[torch.Tensor]) -> float:
        """Return the squared norm of the gradients of the step's rows, of all workers together."""
        _, caches = self._loop_of(work)
        return self.exchange.squared_norm(work, gradients, caches)

    def _send_rows(self, work: PlannedStep) -> None:
        """Send rows to the peers that need them in the next step."""
        _, caches = self._loop_of(work)
        with self._never_committed_after(BaseException):
            with self.tracer.span("exchange", work.step):
                self.exchange.send_rows(work, caches)
            self.tracer.done(work, caches)

    def _send_rows_after(self, updated: Future[None], work: PlannedStep) -> None:
        if updated.exception() is None:  # else `_end_update` raises it in the training thread
            self._send_rows(work)

    def _wait_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def _loop_of(self, work: PlannedStep) -> tuple[Pipeline, Caches]:
        if self._active is None:
            raise UsageError(
                f"step {work.record.step} belongs to a loop that has ended; use its rows and update it inside the loop"
            )
        return self._active

    @contextmanager
    def _never_committed_after(self, kind: type[BaseException]) -> Iterator[None]:
        """Mark the run as failed if the block raises.

        Rows that are half updated, half written or stale belong to no step and must not be committed. The block
        may run on the training thread or the update thread; what the pipeline's threads find is raised here, too, by
        `Pipeline.ready` and by `Pipeline.check` in `flush`. `failed` is only ever set, so no lock is needed.
        """
        try:
            yield
        except kind:
            self.failed = True
            raise

    def _caches(self, threads: Threads) -> Caches:
        capacities = [group.capacity_rows for group in self.header.groups] or [self.header.capacity_rows]
        layouts = zip(self.tables.layout.groups, capacities, strict=True)
        return Caches([self._cache(layout, capacity, threads) for layout, capacity in layouts], self.header.groups)

    def _cache(self, layout: Layout, capacity_rows: int, threads: Threads) -> Cache:
        if self.device.type == "cpu":
            return SlotCache(layout, self.tables.optimizer, capacity_rows=capacity_rows, threads=threads)
        return TorchCache(layout, self.tables.optimizer, capacity_rows=capacity_rows, device=self.device)
