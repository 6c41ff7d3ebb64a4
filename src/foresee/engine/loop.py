"""The training loop's view of a plan: steps whose rows are there.

    for step in lookahead(log, tables, batch_size=2048, cache_rows=500_000):
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

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from foresee.custom_data.batches import Batches
from foresee.data.batch import BatchStream
from foresee.data.click_log import ClickLog
from foresee.engine.cache import Cache, SlotCache
from foresee.engine.exchange.contract import Exchange, LocalExchange
from foresee.engine.kernels import Threads
from foresee.engine.pipeline import Pipeline, PipelineTimes, Ready
from foresee.engine.planned_step import PlannedStep, Pooling, planned, replayed
from foresee.engine.recording.timeline import NOT_RECORDED, TRAIN, UPDATE, UPDATE_THREAD, Recording, Timeline, Track
from foresee.engine.step import Step
from foresee.engine.tables import Tables, Trained
from foresee.engine.torch_cache import TorchCache
from foresee.errors import ConsistencyError, PlanError, UsageError
from foresee.plan import WINDOW_BYTES
from foresee.plan.count import Counting, num_unused
from foresee.plan.record import Counters, Header, PlannerOptions, Record
from foresee.run.sources import enter

FETCH_AHEAD_STEPS = 8


@dataclass
class Run:
    """An iterable of steps over a stream of batches. Made by `lookahead`, or from its parts where those are at hand."""

    stream: BatchStream
    tables: Tables
    header: Header
    pooling: Pooling
    records: Iterable[Record] | None = None
    """A kept plan; without one the header's planner plans as it goes."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_threads: int = 1
    """Threads of the row kernels."""
    exchange: Exchange = field(default_factory=LocalExchange)
    """What goes on between this worker and its peers."""
    commit_at_end: bool = True
    """Commit when the loop ends, also by `break`. Who commits rows together with something else says False."""
    timeline: Timeline = NOT_RECORDED
    """Who records what the run does."""
    trained: Callable[[int], Trained | None] = field(default_factory=lambda: lambda step: None)
    """What to write down with the commit of a step about its batches."""

    def __post_init__(self) -> None:
        check_fits(self.header, self.stream, self.tables)
        self.steps_done = self.header.first_step
        self.times = PipelineTimes()
        self._counters, self._counted = Counters(), dict[int, Counters]()
        """What has moved so far, and will have after each step that is planned and not done."""
        self._refills: dict[int, int] = {}
        """Rows by step that are fetched to fill the cache of a plan entered in the middle."""
        self._active: tuple[Pipeline, Cache] | None = None
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
        self.timeline.begin(self.header, self.tables.layout, num_steps=self.stream.num_steps, worker=self.exchange.rank)
        with (
            self.tables.used_by(self),
            Threads(self.num_threads) as threads,
            Pipeline(self._work(), self.tables.store, self.header, self.timeline, self.exchange.link) as pipeline,
        ):
            cache = self._cache(threads)
            self._active, self.times = (pipeline, cache), pipeline.times
            try:
                with self._never_committed_after(ConsistencyError):
                    yield from self._steps(pipeline, cache)
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
        """For the timeline of a recorded run: what this thread did after the last step, such as "evaluate"."""
        self.timeline.track(TRAIN).span(what, self.steps_done - 1)

    def flush(self) -> None:
        """Brings the store up to date with the cache, evicting nothing. Reads see the state after the last update."""
        if self._active is not None:
            pipeline, cache = self._active
            self._wait_sent()
            with self._never_committed_after(BaseException):
                for rows, values in [*self.exchange.settle(cache), cache.changed()]:
                    pipeline.write_now(self.steps_done - 1, rows, values)
                pipeline.check()

    def commit(self) -> None:
        """Makes the state after the last updated step durable."""
        self.flush()
        with self._never_committed_after(BaseException):
            self.tables.commit(self.steps_done, self.trained(self.steps_done))

    def _steps(self, pipeline: Pipeline, cache: Cache) -> Iterator[Step]:
        track = self.timeline.track(TRAIN)
        for ready in pipeline.ready():
            arrive = partial(self._arrive, ready, cache, track)
            step = Step(ready.work, self.device, arrive, self._finish, self._start, track, self.timeline)
            with self._never_committed_in_mid_step(step):
                yield step
            if not step.updated:
                raise UsageError(f"step {step.index} was not updated; call step.update() before the next step")

    def _arrive(self, ready: Ready, cache: Cache, track: Track) -> torch.Tensor:
        """The step's embeddings, as soon as all of its rows have their slots."""
        record = ready.work.record
        self._of_this_loop(ready.work)
        track.span("begin", record.step)
        with self._never_committed_after(ConsistencyError):
            if self._sending is not None:
                self._wait_sent()
                track.span("exchange", record.step)
            cache.fill(record.fetch, ready.staging)
            self.exchange.receive_rows(record.step, cache)
        track.span("fill", record.step)
        self.timeline.arrived(ready.work, cache)
        track.span("other", record.step)
        embeddings = cache.embeddings(ready.work)
        track.span("gather", record.step)
        return embeddings

    def _finish(self, work: PlannedStep, gradient: torch.Tensor) -> None:
        self._update(work, gradient, TRAIN)
        self._send_rows(work, TRAIN)

    def _start(self, work: PlannedStep, gradient: torch.Tensor) -> Callable[[], None]:
        """The same as `_finish`, on a thread of its own; the returned wait ends when the rows are updated.

        Until they have left, and the wait is over, the link is not for what has time.
        """
        self._of_this_loop(work)
        if self._updates is None:
            self._updates = ThreadPoolExecutor(1, UPDATE_THREAD)
        link = self.exchange.link
        link.close()
        updated = self._updates.submit(self._update, work, gradient, UPDATE)
        sending = self._sending = self._updates.submit(self._send_rows_after, updated, work)

        def wait() -> None:
            try:
                updated.result()
            finally:
                sending.add_done_callback(lambda _: link.open())

        return wait

    def _update(self, work: PlannedStep, gradient: torch.Tensor, lane_name: str) -> None:
        """Updates the step's rows and frees its slots; a commit or a `break` right after it includes the step."""
        (pipeline, cache), record, track = self._of_this_loop(work), work.record, self.timeline.track(lane_name)
        with self._never_committed_after(BaseException):
            track.span("compute" if lane_name == TRAIN else "other", record.step)
            self.exchange.update(work, gradient, cache)
            track.span("update", record.step)
            self.steps_done = record.step + 1
            self._counters = self._counted.pop(record.step)
            pipeline.write_back(record.step, record.evict.row, cache.take(record.evict))
            track.span("evict", record.step)

    def _send_rows(self, work: PlannedStep, lane_name: str) -> None:
        """Rows leave for the peers that need them in the next step."""
        (_, cache), track = self._of_this_loop(work), self.timeline.track(lane_name)
        with self._never_committed_after(BaseException):
            self.exchange.send_rows(work.record, cache)
            track.span("exchange", work.record.step)
        self.timeline.done(work, cache)

    def _send_rows_after(self, updated: Future[None], work: PlannedStep) -> None:
        if updated.exception() is None:  # else whoever waits for the update is told
            self._send_rows(work, UPDATE)

    def _wait_sent(self) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.result()

    def _of_this_loop(self, work: PlannedStep) -> tuple[Pipeline, Cache]:
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
            source = planned(self.stream, self.header, self.pooling, worker=self.exchange.rank)
        else:
            source = replayed(self.stream, self.records, self.header.first_step, self.pooling)
        counting = Counting()
        for work in source:
            counting.add(work.record)
            self._counted[work.record.step] = counting.counters
            if work.record.step <= self.header.first_step + 1:
                self._refills[work.record.step] = num_unused(work.record)
            self.exchange.expect(work.record)
            yield work

    def _cache(self, threads: Threads) -> Cache:
        layout, capacity = self.tables.layout, self.header.capacity_rows
        if self.device.type == "cpu":
            return SlotCache(layout, self.tables.optimizer, self.pooling, capacity_rows=capacity, threads=threads)
        return TorchCache(layout, self.tables.optimizer, self.pooling, capacity_rows=capacity, device=self.device)


def lookahead(
    log: ClickLog | Batches,
    tables: Tables,
    *,
    batch_size: int | None = None,
    cache_rows: int,
    epochs: int = 1,
    seed: int = 0,
    planner: str = "lookahead",
    window_steps: int | None = None,
    window_bytes: int | None = None,
    device: str | torch.device = "cpu",
    num_threads: int = 1,
    record: str | Path | None = None,
    first_step: int | None = None,
) -> Run:
    """Steps over the log's train split, or over `Batches` of one's own, from the step after the tables' last commit.

    Tables that were trained on other batches refuse these, unless first_step says that they are meant.

    batch_size, epochs, seed: of a log; batches of one's own have theirs.
    cache_rows: slots of the cache; at least the distinct rows of the largest batch.
    planner: any of `foresee.plan.trainable()`; all give the same bytes, with more or fewer rows moved.
    window_steps: a fixed lookahead as in the Bagpipe paper, instead of all that the cache can use.
    window_bytes: what the batches that the planner looks at may take; left out, 2 GB, and as much as window_steps need.
    record: a folder into which the run records itself, for `foresee report` and `foresee watch`.
    first_step: the batch to begin with, such as 0 to train all batches of a new day on the tables of the days before,
    whose steps go on counting. Without it, a loop goes on after the last batch that these tables have committed.
    """
    stream, pooling = _stream_of(log, tables, batch_size=batch_size, epochs=epochs, seed=seed)
    committed_step = tables.store.committed_step
    source = enter(stream, first_step, committed_step, tables.history)
    header = make_header(
        source, planner=planner, cache_rows=cache_rows, first_step=committed_step, window_steps=window_steps,
        window_bytes=window_bytes,
    )  # fmt: skip
    if isinstance(log, Batches):
        header = log.bounded(header)
    timeline = NOT_RECORDED if record is None else Recording(Path(record))
    return Run(
        source, tables, header, pooling, device=torch.device(device), num_threads=num_threads, timeline=timeline,
        trained=source.trained,
    )  # fmt: skip


def _stream_of(
    log: ClickLog | Batches, tables: Tables, *, batch_size: int | None, epochs: int, seed: int
) -> tuple[BatchStream, Pooling]:
    if isinstance(log, Batches):
        if batch_size is not None or epochs != 1 or seed != 0:
            raise UsageError("batches of one's own have their size, order and epochs; give these to Batches, not here")
        log.bags.check_tables(tables)
        return log, Pooling.of(log.bags.mean_features)
    if batch_size is None:
        raise UsageError("a log is cut into batches of batch_size samples; give it, such as batch_size=2048")
    return log.batches(batch_size=batch_size, seed=seed, epochs=epochs), Pooling.of(log.mean_features)


def make_header(
    stream: BatchStream,
    *,
    planner: str,
    cache_rows: int,
    first_step: int = 0,
    window_steps: int | None = None,
    window_bytes: int | None = None,
    fetch_ahead_steps: int = FETCH_AHEAD_STEPS,
    remember_versions: bool = False,
    num_workers: int = 1,
    placement: str | None = None,
    placement_positions: Sequence[int] | None = None,
    planned_from: int | None = None,
) -> Header:
    """The header of a plan for this stream.

    planned_from: the step at which the plan began, if it is entered at `first_step` and has to go on as it would have.
    """
    if cache_rows < 1:
        raise PlanError(f"a cache of {cache_rows} rows cannot hold anything; give at least one batch's distinct rows")
    return Header(
        planner=planner,
        options=PlannerOptions(
            window_steps=window_steps,
            window_bytes=WINDOW_BYTES if window_bytes is None and window_steps is None else window_bytes,
            remember_versions=remember_versions,
            placement=placement,
            placement_positions=None if placement_positions is None else tuple(placement_positions),
            planned_from=planned_from,
        ),
        num_workers=num_workers,
        capacity_rows=cache_rows,
        num_rows=stream.num_rows,
        first_step=first_step,
        num_steps=stream.num_steps - first_step,
        fetch_ahead_steps=fetch_ahead_steps,
        stream_digest=stream.digest,
    )


def check_fits(header: Header, stream: BatchStream, tables: Tables) -> None:
    """Refuses a plan of another log, or tables of another size or at another step."""
    if header.stream_digest != stream.digest:
        raise PlanError(
            f"the plan was made for the batch stream {header.stream_digest[:12]}, this run reads {stream.digest[:12]}: "
            "another log, seed, batch size or number of epochs; plan this run again"
        )
    if header.num_rows != tables.layout.num_rows:
        raise PlanError(
            f"the plan is for {header.num_rows} rows, the tables have {tables.layout.num_rows}; "
            "open the tables of this log, or make new ones"
        )
    if header.first_step != tables.store.committed_step:
        raise PlanError(
            f"the plan begins at step {header.first_step}, the tables are at step {tables.store.committed_step}; "
            "plan from there, or start with new tables"
        )
