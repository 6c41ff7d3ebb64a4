"""What a run over a graph would read, without training: the same plan that training makes, counted.

In: a configuration and a number of steps. Out: the order in words, and for rows and for whole partitions how much the
first steps, by default the first epoch, would read and write.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice

from foresee.engine.planned_step import accesses_of, planned_records
from foresee.errors import PlanError
from foresee.graph import build
from foresee.graph.config import GraphConfig
from foresee.plan.count import Counting
from foresee.plan.in_flight import MissedUpdates
from foresee.plan.record import Counters


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
                name=name, chosen=header.options.partition_rows == size, counters=counters,
                table_share=counters.num_fetched / header.num_rows if counters else 0.0,
                bytes_read=counters.num_fetched * row_bytes if counters else 0,
                bytes_written=counters.num_evicted * row_bytes if counters else 0,
            )
        )  # fmt: skip
    missed = MissedUpdates(header.options.staleness)
    for batch in islice(stream.batches(), num_steps if header.options.staleness else 0):
        missed.add(accesses_of(batch))
    traversal = stream.traversal(0)
    return Expected(
        order=chosen.words or f"order {chosen.order.name}: {chosen.order.meaning}", num_steps=num_steps,
        steps_of_epoch=stream.steps_of_epoch(0), num_states=len(traversal.states),
        partition_reads=traversal.reads(), capacity_rows=header.capacity_rows, num_rows=header.num_rows,
        units=tuple(units), why=unit, stale_reads=missed.stale_reads, missing_updates=missed.missing_updates,
        missing_updates_max=missed.missing_updates_max, num_reads=missed.num_reads,
    )  # fmt: skip
