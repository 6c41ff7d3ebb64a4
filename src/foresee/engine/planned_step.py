"""What the training loop gets for a step: a batch with its record, planned ahead in the background.

In: a stream of batches and the header of a plan. Out: `PlannedStep` in step order, from a planner that runs beside
training, or from a saved plan; `PlannedSteps` is what a run iterates. The planner thread does what can be done before
rows arrive, grouping the lookups by row included, and its kernels release the GIL.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foresee.arrays import Int64
from foresee.data.batch import Batch, BatchStream, Vectors
from foresee.data.batch import Pooling as Pooling
from foresee.engine.channel import Abandoned
from foresee.engine.feed import feed_of
from foresee.engine.kernels import LookupOrder, order_lookups
from foresee.engine.next_uses import looking_ahead
from foresee.errors import PlanError, UsageError
from foresee.plan import make_planner, planned_from
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError, in_words
from foresee.plan.count import Counting, num_unused
from foresee.plan.grouped import parted
from foresee.plan.record import Accesses, Counters, Header, Planner, Record, refuse_compared
from foresee.plan.row_groups import RowGroup, numbering_of
from foresee.plan.row_table import checksum_of
from foresee.plan.variants import Restarted

if TYPE_CHECKING:
    from foresee.engine.exchange.peers import Exchange

Advance = Callable[[], None]
"""Called once for every step that was planned."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step of one worker, ready to be carried out once its rows have arrived."""

    batch: Batch
    record: Record
    order: LookupOrder
    vectors: Vectors
    batch_size: int  # samples of the step, those of all workers together
    looked_ahead_steps: int = 0
    """Steps after this one that the planner had read when it decided; 0 if the plan came from elsewhere."""
    parts: tuple[PlannedStep, ...] = ()
    """For tables of several widths: the step of each row group, in the rows and slots of that group."""
    features: Int64 | None = None
    """Which features of the batch such a part has."""

    @property
    def step(self) -> int:
        return self.record.step

    @property
    def groups(self) -> tuple[PlannedStep, ...]:
        """The step of each row group; the step itself if all tables have one width."""
        return self.parts or (self,)


def accesses_of(batch: Batch) -> Accesses:
    return Accesses(
        batch.rows, batch.sample_offsets, drained=getattr(batch, "drained", False),
        is_last_known=getattr(batch, "is_last_known", False),
    )  # fmt: skip


def planned_records(
    stream: BatchStream, header: Header, advance: Advance | None = None, scratch: Path | None = None
) -> Iterator[Record]:
    """Yield the records of a plan for the header's steps, those of all workers.

    The error for a batch that does not fit names the smallest cache that works. `scratch`: the folder of temporary
    files.
    """
    begun = planned_from(header)
    batches = islice(stream.batches(begun), header.first_step + header.num_steps - begun)
    return _records(stream, header, batches if advance is None else _followed(batches, advance), scratch)


def _followed(batches: Iterable[Batch], advance: Advance) -> Iterator[Batch]:
    for batch in batches:
        yield batch
        advance()


def _records(stream: BatchStream, header: Header, batches: Iterable[Batch], scratch: Path | None) -> Iterator[Record]:
    """What the header's planner makes of the stream's batches, from the plan's first one on."""

    feed = feed_of(stream)
    failure: Exception | None = None

    def profile(first_step: int, num_steps: int) -> Iterator[Accesses]:
        for batch in islice(stream.batches(first_step), num_steps):
            accesses = accesses_of(batch)
            yield accesses
            if accesses.is_last_known:
                return

    def accesses() -> Iterator[Accesses]:
        nonlocal failure
        try:
            for step, batch in enumerate(batches, start=planned_from(header)):
                if batch.step != step:
                    raise PlanError(
                        f"the stream gives the batch of step {batch.step} where step {step} is due; give batches in "
                        "step order"
                    )
                yield with_uses(step, accesses_of(batch))
        except Abandoned:
            raise
        except Exception as error:
            failure = error  # the steps before it are planned first

    try:
        with looking_ahead(stream, header, scratch) as with_uses:
            planner = Restarted(
                header, planned_from(header), lambda part: make_planner(part, partial(profile, part.first_step))
            )
            for record in driven(planner, accesses()):
                feed.planned(record.step)
                yield record
            if failure is not None:
                raise failure
    except BatchTooLargeError as error:
        raise too_large(
            error.step, error.num_distinct, error.capacity_rows, stream, partition_rows=error.partition_rows
        ) from None
    finally:
        feed.planned(None)


def driven(planner: Planner, steps: Iterable[Accesses], advance: Advance | None = None) -> Iterator[Record]:
    """Yield records as they are decided. Every plan is made here, to be run, counted or compared."""
    for accesses in steps:
        yield from planner.push(accesses)
        if advance is not None:
            advance()
    yield from planner.finish()


class PlannedSteps:
    """One worker's steps in order, planned while the stream is read, or taken from a saved plan.

    The planner thread iterates it, once. The other methods are called by the training loop.

    Args:
        stream: The batches of all steps.
        header: What is planned.
        pooling: Which features are averaged over their bag.
        exchange: Names the worker, and is told each step as soon as it is planned.
        records: A saved plan; None: the header's planner plans.
        scratch: A folder for temporary files of the planner; None: where the system has them.
    """

    def __init__(
        self,
        stream: BatchStream,
        header: Header,
        pooling: Pooling,
        exchange: Exchange,
        *,
        records: Iterable[Record] | None = None,
        scratch: Path | None = None,
    ) -> None:
        if records is None:
            self._steps = planned(stream, header, pooling, worker=exchange.rank, scratch=scratch)
        else:
            self._steps = replayed(stream, records, header.first_step, pooling, header.groups)
        self.feed = feed_of(stream)
        self._exchange, self._first_step = exchange, header.first_step
        self._counters: dict[int, Counters] = {}  # what has moved after each step that is planned and not trained
        self._refills: dict[int, int] = {}  # rows by step that fill the cache of a plan entered in the middle

    def __iter__(self) -> Iterator[PlannedStep]:
        counting = Counting()
        for work in self._steps:
            counting.add(work.record)
            self._counters[work.step] = counting.counters
            if work.step <= self._first_step + 1:
                self._refills[work.step] = num_unused(work.record)
            self._exchange.expect(work)
            yield work

    def take_counters(self, step: int) -> Counters:
        """Return what has moved once a step is trained; call it once for each."""
        return self._counters.pop(step)

    def rows_refilled(self, steps_done: int) -> int:
        """Return how many rows of the steps done were fetched only to fill the cache; see `plan.entry`."""
        return sum(rows for step, rows in self._refills.items() if step < steps_done)


def planned(
    stream: BatchStream, header: Header, pooling: Pooling, *, worker: int = 0, scratch: Path | None = None
) -> Iterator[PlannedStep]:
    """Yield one worker's steps from the header's first one on, planned as the stream is read."""
    waiting: deque[Batch] = deque()

    def read() -> Iterator[Batch]:
        for batch in stream.batches(planned_from(header)):
            if batch.step >= header.first_step:
                waiting.append(batch.without_rows())
            yield batch

    for record in _records(stream, header, read(), scratch):
        if record.worker == worker:
            batch = waiting.popleft()
            yield _work(_own(batch, record), record, pooling, header.groups, batch.num_samples, len(waiting))


def replayed(
    stream: BatchStream, records: Iterable[Record], first_step: int, pooling: Pooling, groups: tuple[RowGroup, ...] = ()
) -> Iterator[PlannedStep]:
    """Yield the steps of a saved plan of one worker; refuse a plan of other data at the first step that differs."""
    remaining = iter(records)
    for batch in stream.batches(first_step):
        record = next(remaining, None)
        if record is None:
            raise PlanError(f"step {batch.step}: the plan ends before it; plan this log again")
        own = _own(batch, record)
        if record.step != batch.step or record.digest != checksum_of(own.rows):
            raise PlanError(
                f"step {batch.step}: the plan was made for other rows than this log gives; plan this log again"
            )
        yield _work(own, record, pooling, groups, batch.num_samples)
    if next(remaining, None) is not None:
        raise PlanError("the plan goes on after the last step of this log; plan this log again")


def _own(batch: Batch, record: Record) -> Batch:
    """Return the samples of a global batch that the record's worker trains."""
    if len(record.samples) == batch.num_samples:
        return batch
    if int(record.samples.max(initial=-1)) >= batch.num_samples:
        raise PlanError(
            f"step {batch.step}: the plan was made for larger batches than this log gives; plan this log again"
        )
    return batch.part(record.samples)


def _work(
    batch: Batch, record: Record, pooling: Pooling, groups: tuple[RowGroup, ...], batch_size: int,
    looked_ahead_steps: int = 0,
) -> PlannedStep:  # fmt: skip
    refuse_compared(record, "run")
    if not groups:
        vectors = pooling.vectors(batch)
        order = order_lookups(record.inverse, len(record.unique), bag_offsets=vectors.offsets, mean=vectors.mean)
        return PlannedStep(batch, record, order, vectors, batch_size, looked_ahead_steps)
    parts = tuple(
        replace(_work(part, of_group, pooling.of_features(features), (), batch_size), features=features)
        for part, of_group, features in by_group(batch, record, pooling, groups)
    )
    first = parts[0]  # a step of several groups is read through its parts
    return PlannedStep(batch, record, first.order, first.vectors, batch_size, looked_ahead_steps, parts)


def by_group(
    batch: Batch, record: Record, pooling: Pooling, groups: tuple[RowGroup, ...]
) -> Iterator[tuple[Batch, Record, Int64]]:
    """Return for each row group the batch of its features, its record, and which features those are."""
    numbering = numbering_of(groups)
    features = group_features(pooling, groups)
    batches = [batch.of_features(some) for some in features]
    records = parted(record, numbering, [lookups for _, lookups in batches])
    return zip((part for part, _ in batches), records, features, strict=True)


def group_features(pooling: Pooling, groups: tuple[RowGroup, ...]) -> list[Int64]:
    """Return the features of each row group."""
    if pooling.tables is None:
        raise UsageError(
            "these tables have several widths, and nothing says which feature looks up which table; give "
            "Pooling.of(..., tables=...), or use foresee.steps"
        )
    return numbering_of(groups).features(pooling.tables)


TOO_LARGE_REMEDY = (
    "raise cache.rows or cache.share, or lower train.batch_size, in the run file (in Python cache_rows and the size of "
    "batches)"
)


def too_large(
    step: int, num_distinct: int, capacity_rows: int, stream: BatchStream, *, partition_rows: int = 1
) -> PlanError:
    """Return the error for a batch that the cache cannot hold. Reads the rest to find the smallest cache that can."""
    what = f"step {step} touches {in_words(num_distinct, partition_rows)}, but the cache holds {capacity_rows}"
    try:
        again: Callable[[int], Iterator[Batch]] = getattr(stream, "read_again", stream.batches)
        units = (len(np.unique(later.rows // partition_rows)) for later in again(step))
        needed = max(units, default=0) * partition_rows
    except UsageError:  # batches that can be read only once
        return PlanError(f"{what}; give the cache at least {num_distinct} rows: {TOO_LARGE_REMEDY}")
    fewest, source = max(needed, num_distinct), getattr(stream, "source", "log")
    share = min(1.0, math.ceil(fewest / stream.num_rows * 10_000) / 10_000)
    return PlanError(
        f"{what}; the smallest cache that works for this {source} is {fewest} rows (a share of {share:g}): "
        f"{TOO_LARGE_REMEDY}"
    )
