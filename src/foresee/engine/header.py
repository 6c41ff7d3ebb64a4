"""The header of a plan: what is planned, for which batches, in how many slots.

In: a stream of batches and what a person chooses (planner, cache, window, workers). Out: a `Header`, or a sentence
where nothing could be planned so; and the check that a plan, a stream and tables belong together.
"""

from __future__ import annotations

from collections.abc import Sequence

from foresee.data.batch import BatchStream
from foresee.engine.lookup import row_groups as row_groups
from foresee.engine.tables import Tables
from foresee.errors import PlanError
from foresee.plan import WINDOW_BYTES, WINDOW_FIRST_BYTES
from foresee.plan.record import Header, PlannerOptions
from foresee.plan.row_groups import RowGroup, demand_of
from foresee.store.layout import Layout

FETCH_AHEAD_STEPS = 8


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
    read_only: bool = False,
    partition_rows: int = 1,
    uses_ahead_steps: int | None = None,
    groups: tuple[RowGroup, ...] = (),
) -> Header:
    """The header of a plan for this stream.

    planned_from: the step at which the plan began, if it is entered at `first_step` and has to go on as it would have.
    read_only: rows are only read: nothing learns, nothing is written back.
    partition_rows: so many rows come and go together, in slots that follow one another.
    uses_ahead_steps: next uses of rows are looked for so far ahead, for stores that lay rows out by them.
    groups: the row groups of tables of several widths (`groups_for`), which share the slots.
    """
    if cache_rows < 1:
        raise PlanError(f"a cache of {cache_rows} rows cannot hold anything; give at least one batch's distinct rows")
    if partition_rows < 1:
        raise PlanError(f"partitions of {partition_rows} rows hold nothing; give partition_rows at least 1")
    header = Header(
        planner=planner,
        options=PlannerOptions(
            window_steps=window_steps,
            window_bytes=WINDOW_BYTES if window_bytes is None and window_steps is None else window_bytes,
            window_first_bytes=WINDOW_FIRST_BYTES if window_steps is None else None,
            remember_versions=remember_versions,
            placement=placement,
            placement_positions=None if placement_positions is None else tuple(placement_positions),
            planned_from=planned_from,
            read_only=read_only,
            partition_rows=partition_rows,
            uses_ahead_steps=uses_ahead_steps or None,
        ),
        num_workers=num_workers,
        capacity_rows=cache_rows,
        num_rows=stream.num_rows,
        first_step=first_step,
        num_steps=stream.num_steps - first_step,
        fetch_ahead_steps=fetch_ahead_steps,
        stream_digest=stream.digest,
        groups=groups,
    )
    return header.in_slots(cache_rows) if groups else header


def groups_for(layout: Layout, stream: BatchStream, *, read_once: bool = False) -> tuple[RowGroup, ...]:
    """The row groups of tables of several widths; what each table wants of a cache is seen in the first batch.

    read_once: of batches that can be read only once none is read; then all tables want the same.
    """
    groups = row_groups(layout)
    if not groups or read_once:
        return groups
    return demand_of(groups, next(iter(stream.batches())).rows)


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
    if [group.tables for group in header.groups] != [group.tables for group in row_groups(tables.layout)]:
        raise PlanError(
            "the plan was made for tables of other widths than these; plan this run again with the widths it has"
        )
    if header.first_step != tables.store.committed_step:
        raise PlanError(
            f"the plan begins at step {header.first_step}, the tables are at step {tables.store.committed_step}; "
            "plan from there, or start with new tables"
        )
