"""Planning without training: what a plan would move, under this policy and under the others.

    for cache_rows, fetched in fetches_by_cache(batches).items():
        print(f"{cache_rows:>10,} rows in the cache: {fetched:,.0f} fetched a step")

In: a stream of batches (your own, or a log's) and the header of a plan. Out: records; counters of several policies on
the same steps and the same cache; rows fetched a step for caches of any size; and which lookup positions of a sample
are worth the time that placement takes to look at them, best first. Opens no tables and writes nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.data.batch import Batch, BatchStream
from foresee.engine.header import make_header
from foresee.engine.planned_step import Advance, accesses_of, planned_records
from foresee.errors import DataError, PlanError
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.plan import trainable
from foresee.plan.check import check
from foresee.plan.check_step import Verdict
from foresee.plan.count import Counting, count
from foresee.plan.in_flight import MissedUpdates
from foresee.plan.ownership import Ownership
from foresee.plan.placement import LocationAware, Placement, Scene, location_aware, rank_positions
from foresee.plan.record import Accesses, Counters, Header, Record
from foresee.plan.registry import DEFAULT
from foresee.plan.row_groups import numbering_of
from foresee.store.layout import Layout

CURVE_POINTS = 8

PENDING_ROWS_MIN = 1 << 20


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """The beginning of a stream. It keeps the stream's digest: these are its batches."""

    whole: BatchStream
    num_steps: int

    @property
    def num_rows(self) -> int:
        return self.whole.num_rows

    @property
    def digest(self) -> str:
        return self.whole.digest

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        return islice(self.whole.batches(first_step), max(0, self.num_steps - first_step))


def first_steps(stream: BatchStream, num_steps: int | None) -> FirstSteps:
    """So many steps, or all of them if there are fewer or none are named."""
    return FirstSteps(stream, stream.num_steps if num_steps is None else min(num_steps, stream.num_steps))


def counters_of(stream: BatchStream, header: Header, advance: Advance | None = None) -> Counters:
    """What a plan moves; that needs no next uses."""
    header = replace(header, options=replace(header.options, uses_ahead_steps=None))
    return count(planned_records(stream, header, advance))


def traffic_of(
    stream: BatchStream, header: Header, layout: Layout, advance: Advance | None = None
) -> tuple[Counters, int]:
    """The same, and the bytes of the rows that it moves, each as wide as it is."""
    header = replace(header, options=replace(header.options, uses_ahead_steps=None))
    counting, num_bytes = Counting(), 0
    for record in counting.watch(planned_records(stream, header, advance)):
        num_bytes += bytes_moved(record, header, layout)
    return counting.counters, num_bytes


def bytes_moved(record: Record, header: Header, layout: Layout) -> int:
    """Of the rows that a record fetches, evicts and receives."""
    moved = (record.fetch.slot, record.evict.slot, record.recv.slot)
    if not header.groups:
        return sum(map(len, moved)) * layout.row_bytes
    slots, numbering = np.concatenate(moved), numbering_of(header.groups)
    return sum(
        int(np.count_nonzero(numbering.has_slot(number, slots))) * group.row_bytes
        for number, group in enumerate(layout.groups)
    )


def proved(
    stream: BatchStream,
    header: Header,
    records: Iterable[Record],
    promised: Counters | None,
    advance: Advance | None = None,
) -> Verdict:
    """Plays a plan through against the batches it is for; what is wrong with it is in the verdict."""
    if (header.num_rows, header.stream_digest) != (stream.num_rows, stream.digest):
        raise PlanError(
            f"the plan is for {header.num_rows} rows and the batches {header.stream_digest[:12]}, this run has "
            f"{stream.num_rows} and {stream.digest[:12]}: another log, seed, batch size or number of epochs; give the "
            "run that the plan was made for"
        )

    def accesses() -> Iterator[Accesses]:
        for batch in islice(stream.batches(header.first_step), header.num_steps):
            yield accesses_of(batch)
            if advance is not None:
                advance()

    return check(header, accesses(), records, promised)


def same_for(header: Header, planner: str, *, num_steps: int, capacity_rows: int | None = None) -> Header:
    """The header of another planner for the first steps, in the same cache or another one."""
    options = header.options if planner == header.planner else replace(header.options, window_steps=None)
    other = replace(header, planner=planner, options=options, num_steps=num_steps)
    return other if capacity_rows is None else other.in_slots(capacity_rows)


def compared(header: Header) -> tuple[str, ...]:
    """The planners to put beside the header's, which comes first; `comparison` has those that only compare."""
    return tuple(dict.fromkeys([header.planner, DEFAULT.name, *trainable(header.num_workers)]))


@dataclass(frozen=True, slots=True)
class Demand:
    """What some steps ask for, whoever plans them."""

    rows: Int64
    """Different rows of all steps together, ascending."""
    largest_batch: int
    """Distinct rows of the largest batch: the smallest cache that works."""


def demand_of(batches: Iterable[Batch], advance: Advance | None = None) -> Demand:
    """One pass over the batches; memory grows with the rows they touch."""
    touched, largest = np.empty(0, np.int64), 1
    pending: list[Int64] = []
    for batch in batches:
        pending.append(np.unique(batch.rows))
        largest = max(largest, len(pending[-1]))
        # Merging when as much is new as is known already keeps the whole pass linear, up to a logarithm.
        if sum(map(len, pending)) > max(PENDING_ROWS_MIN, len(touched)):
            touched, pending = np.unique(np.concatenate([touched, *pending])), []
        if advance is not None:
            advance()
    return Demand(np.unique(np.concatenate([touched, *pending])), largest)


def curve_capacities(demand: Demand, capacity_rows: int) -> list[int]:
    """Cache sizes from the smallest that works to all touched rows, in equal ratios, with the run's own among them."""
    least, most = demand.largest_batch, max(1, len(demand.rows))
    sizes = {round(size) for size in np.geomspace(least, most, CURVE_POINTS)} | {least, most}
    return sorted(sizes | ({capacity_rows} if least <= capacity_rows <= most else set()))


def curve(
    stream: BatchStream, header: Header, capacities: Sequence[int], advance: Advance | None = None
) -> dict[str, list[int]]:
    """For each planner the rows it fetches at each capacity; windows follow the cache, whatever the header's is.

    Rows of several widths share all slots here: a curve is over rows, and each of its points has to hold a batch.
    """
    free = replace(header, options=replace(header.options, window_steps=None), groups=())
    fetched: dict[str, list[int]] = {}
    for planner in dict.fromkeys([DEFAULT.name, *trainable(header.num_workers)]):
        headers = [
            same_for(free, planner, num_steps=stream.num_steps, capacity_rows=capacity) for capacity in capacities
        ]
        fetched[planner] = [counters_of(stream, header, advance).num_fetched for header in headers]
    return fetched


TIMED_STEPS = 4

REPEATS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """One position, in the order of what it saves."""

    position: int
    saved: float
    """Transfers a step that routing by it can save at best, critical ones counting more."""
    seconds: float
    """Placement's time a step with this position and all before it."""


def measure(
    stream: BatchStream, header: Header, *, num_steps: int, advance: Callable[[], None] = lambda: None
) -> list[Choice]:
    scenes = _scenes(stream, header, num_steps, advance)
    ranked = rank_positions(scenes)
    # Time is linear in the number of positions: two points give the line.
    timed = scenes[-TIMED_STEPS:]
    one = _seconds(LocationAware(positions=(ranked[0][0],)), timed)
    every = _seconds(location_aware, timed)
    slope = max(0.0, every - one) / max(1, len(ranked) - 1)
    return [Choice(position, saved, one + slope * place) for place, (position, saved) in enumerate(ranked)]


def _scenes(stream: BatchStream, header: Header, num_steps: int, advance: Callable[[], None]) -> list[Scene]:
    """What placement sees in the first steps, as they come out if it looks at everything."""
    scenes: list[Scene] = []

    def watched(scene: Scene) -> Int32:
        scenes.append(scene)
        advance()
        return location_aware(scene)

    beginning = first_steps(stream, num_steps)
    planner = Ownership(replace(header, num_steps=beginning.num_steps), watched)
    for batch in beginning.batches(header.first_step):
        planner.push(accesses_of(batch))
    planner.finish()
    return scenes


def _seconds(place: Placement, scenes: list[Scene]) -> float:
    place(scenes[0])  # compiles

    def once() -> float:
        begun = time.perf_counter()
        for scene in scenes:
            place(scene)
        return (time.perf_counter() - begun) / len(scenes)

    return statistics.median(once() for _ in range(REPEATS))


STEPS = 200


@dataclass(frozen=True, slots=True)
class _Read:
    """Batches that were read already: a source need not give them twice."""

    read: Sequence[Batch]
    num_rows: int
    digest: str = "read already"

    @property
    def num_steps(self) -> int:
        return len(self.read)

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        return iter(self.read[first_step:])


def fetches_by_cache(stream: BatchStream, *, num_steps: int = STEPS) -> dict[int, float]:
    """How many rows a step would fetch with caches of several sizes. Keeps the steps in memory meanwhile.

    Args:
        stream: `Batches`, or `log.batches(batch_size=...)`.
        num_steps: So many steps from the first on are planned.

    Returns:
        Rows of the cache → rows fetched a step, from the smallest cache that works to one that holds everything.

    Raises:
        DataError: There is no batch.
    """
    read = list(first_steps(stream, num_steps).batches())
    if not read:
        raise DataError("there is no batch to plan; give batches, or a log with more samples than a batch")
    kept = _Read(read, stream.num_rows)
    sizes = curve_capacities(demand_of(read), capacity_rows=0)
    headers = [make_header(kept, planner=DEFAULT.name, cache_rows=size) for size in sizes]
    return {size: counters_of(kept, it).num_fetched / len(read) for size, it in zip(sizes, headers, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one unit of transfer would move."""

    name: str
    chosen: bool
    counters: Counters | None
    """None: the cache is too small for it."""
    table_share: float
    """Rows read over rows of the table."""
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a run would do."""

    order: str
    num_steps: int
    """Counted here."""
    steps_of_epoch: int
    num_states: int
    partition_reads: int
    """Partitions that the order brings in during the first epoch, into an empty buffer."""
    capacity_rows: int
    num_rows: int
    units: tuple[Unit, ...]
    why: str
    """What moves, and why."""
    stale_reads: int
    """Rows that are read before some update of an earlier step, where batches are in flight."""
    missing_updates: int
    """Updates that these have missed, one for each step that made one."""
    missing_updates_max: int
    num_reads: int


def expect(config: GraphConfig, num_steps: int | None = None) -> Expected:
    """Plans the first steps by rows and by partitions."""
    graph = build.open_graph(config)
    chosen = build.choose_order(config, graph)
    stream = build.train_stream(config, graph, chosen)
    header, unit = build.header_and_unit(config, graph, stream, chosen)
    num_steps = min(num_steps or stream.steps_of_epoch(0), stream.num_steps)
    row_bytes = build.table_layout(config, graph).row_bytes
    units = []
    for name, size in (("rows", 1), ("partitions", int(graph.partition_rows))):
        sized = replace(header, num_steps=num_steps, options=replace(header.options, partition_rows=size))
        counting = Counting()
        try:
            for record in islice(planned_records(stream, sized), num_steps):
                counting.add(record)
            counters = counting.counters
        except PlanError:
            counters = None
        units.append(
            Unit(
                name=name,
                chosen=header.options.partition_rows == size,
                counters=counters,
                table_share=counters.num_fetched / header.num_rows if counters else 0.0,
                bytes_read=counters.num_fetched * row_bytes if counters else 0,
                bytes_written=counters.num_evicted * row_bytes if counters else 0,
            )
        )
    missed = MissedUpdates(header.options.staleness)
    for batch in islice(stream.batches(), num_steps if header.options.staleness else 0):
        missed.add(accesses_of(batch))
    traversal = stream.traversal(0)
    return Expected(
        order=chosen.words or f"order {chosen.order.name}: {chosen.order.meaning}",
        num_steps=num_steps,
        steps_of_epoch=stream.steps_of_epoch(0),
        num_states=len(traversal.states),
        partition_reads=traversal.reads(),
        capacity_rows=header.capacity_rows,
        num_rows=header.num_rows,
        units=tuple(units),
        why=unit,
        stale_reads=missed.stale_reads,
        missing_updates=missed.missing_updates,
        missing_updates_max=missed.missing_updates_max,
        num_reads=missed.num_reads,
    )
