"""How much memory a run will take, before it takes it, and a refusal if the machine lacks it.

In: the layout of rows, the header of the plan and one batch of the stream to measure. Out: bytes by purpose, for one
process, for a planner, or for all processes of a launched run; and a sentence that names what to lower. Upper bounds as
far as the batch is typical: lookups and distinct rows of later batches are taken to be about the same.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from foresee.base.machine import available_bytes, in_megabytes
from foresee.data.batch import Batch
from foresee.data.stream import GROUPS_KEPT
from foresee.engine import uses_ahead
from foresee.engine.pipeline import WRITES_IN_FLIGHT
from foresee.errors import ConfigError
from foresee.plan import window_bytes
from foresee.plan.record import Header
from foresee.plan.upcoming import LOOKUP_BYTES, NEXT_USE_BYTES, ROW_TABLE_BYTES, WINDOW_STEPS, bytes_in_window
from foresee.plan.variants import staged_rows_max
from foresee.store.contract import Layout

SLOT_TABLE_BYTES = 12
"""Which row a slot holds and in which version the store has it."""
PLANNER_SLOT_BYTES = 24
"""What the planner keeps for each slot: row, last use, place in a list, place among the free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes by purpose."""

    slots: int
    """The cache."""
    staging: int
    """Rows on their way between store and cache."""
    window: int
    """Batches that the planner has looked at and the loop has not finished, and what it knows of their rows."""
    log: int
    """Decoded samples that batches are cut from."""
    rows: int = 0
    """All rows of the tables, where they are kept in memory."""
    programs: int = 0
    """Of a launched run: its processes, before they do anything."""
    next_uses: int = 0
    """For looking for next uses beyond the window."""

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


LOWER = {
    "slots": "cache.rows or cache.share",
    "staging": "train.batch_size",
    "window": "cache.window_bytes or train.batch_size",
    "log": "train.shuffle_samples",
    "rows": "the rows in memory (tables.store: disk)",
    "programs": "distributed.workers or distributed.servers",
    "next_uses": "cache.uses_ahead_steps",
}
"""For each purpose, what a person lowers to need less."""
OPTIONAL = ("rows", "programs", "next_uses")
"""Purposes that most runs do not have; they are shown where they are."""
PROGRAM_BYTES = 256 << 20
"""Of one process with torch, beyond what all of them share."""


def memory_needed(
    layout: Layout, header: Header, batch: Batch, shuffle_samples: int, *, rows_in_memory: bool = False
) -> Memory:
    """What a run of this plan takes, beside the model and torch."""
    distinct = len(np.unique(batch.rows))
    in_flight = _steps_in_flight(header)
    return Memory(
        slots=header.capacity_rows * (layout.row_bytes + SLOT_TABLE_BYTES),
        staging=_staged_rows(header, batch, distinct) * layout.row_bytes,
        window=_window(header, batch, distinct, in_flight),
        log=(GROUPS_KEPT + 1) * shuffle_samples * sample_bytes(batch),  # one more while it is decoded
        rows=layout.num_rows * layout.row_bytes + layout.num_rows // 8 if rows_in_memory else 0,
        next_uses=uses_ahead.memory_bytes(header, distinct),
    )


def _steps_in_flight(header: Header) -> int:
    return 2 * header.fetch_ahead_steps + 4 + WRITES_IN_FLIGHT + 2


def _staged_rows(header: Header, batch: Batch, distinct: int) -> int:
    """Rows between store and cache. Of partitions the plan itself bounds those that come."""
    size = header.options.partition_rows
    if size == 1:
        return _steps_in_flight(header) * distinct
    whole = len(np.unique(batch.rows // size)) * size
    return max(staged_rows_max(header), whole) + (WRITES_IN_FLIGHT + 2) * whole


def planner_memory(layout: Layout, header: Header, batch: Batch, shuffle_samples: int) -> Memory:
    """What a planner takes that does nothing else; it has no cache, and rows never reach it."""
    return replace(memory_needed(layout, header, batch, shuffle_samples), slots=0, staging=0)


def launched_memory(
    layout: Layout, header: Header, batch: Batch, shuffle_samples: int, *, num_servers: int, rows_in_memory: bool
) -> Memory:
    """What all processes of a launched run take on one machine: workers, the planner, and servers without requests."""
    one = memory_needed(layout, header, batch, shuffle_samples, rows_in_memory=rows_in_memory)
    num_workers = header.num_workers
    return Memory(
        slots=num_workers * one.slots,
        staging=one.staging,  # each worker fetches its share of a batch's rows
        window=one.window,
        log=(num_workers + 1) * one.log,
        rows=one.rows,
        programs=(num_workers + num_servers + 1) * PROGRAM_BYTES,
        next_uses=one.next_uses,
    )


def check_memory(memory: Memory, available: int | None = None) -> None:
    """Refuses what the machine, its control group or the process's own limit lacks."""
    available = available_bytes() if available is None else available
    if available is None or memory.total <= available:
        return
    largest = max((field.name for field in fields(memory)), key=lambda name: int(getattr(memory, name)))
    raise ConfigError(
        f"this run needs up to {megabytes(memory.total)} of memory, most of it for {largest} "
        f"({megabytes(getattr(memory, largest))}), and {megabytes(available)} are available; lower {LOWER[largest]}"
    )


def in_words(memory: Memory) -> str:
    """One line for a person."""
    needed = [field.name for field in fields(memory) if field.name not in OPTIONAL or getattr(memory, field.name)]
    parts = ", ".join(f"{name} {megabytes(getattr(memory, name))}" for name in needed)
    return f"memory needed, at most: {megabytes(memory.total)} ({parts}) beside model and torch"


megabytes = in_megabytes


def sample_bytes(batch: Batch) -> int:
    """Bytes of a sample in memory: dense values, label, row ids."""
    return (batch.dense.nbytes + batch.labels.nbytes + batch.rows.nbytes) // max(1, batch.num_samples)


def window_steps(header: Header, batch: Batch) -> int:
    """Batches in the planner's window: as many as asked for, and no more than its bound on bytes and the log give."""
    wanted, bound = _wanted_steps(header), window_bytes(header)
    return wanted + 1 if bound is None else min(wanted, max(1, bound // _bytes_of(batch))) + 1


def window_in_words(header: Header, batch: Batch) -> str:
    """One line for a person: how far the planner sees, and what ends it there."""
    found, wanted, bound = window_steps(header, batch) - 1, _wanted_steps(header), window_bytes(header)
    seen = f"window: up to {found:,} steps beyond the one that is planned"
    if bound is None:
        return seen
    seen += f", in at most {megabytes(bound)} (cache.window_bytes)"
    if not window_is_cut(header, batch):
        return seen
    return f"{seen}; memory cuts it: all {wanted:,} steps would take {megabytes(wanted * _bytes_of(batch))}"


def uses_in_words(header: Header, batch: Batch) -> str:
    """One line for a person: how far next uses are looked for, and what that takes."""
    size, steps = header.options.partition_rows, header.options.uses_ahead_steps
    if not steps:
        return "next uses: known inside the window only"
    num_bytes = uses_ahead.file_bytes(header, len(np.unique(batch.rows // size)))
    return (
        f"next uses: looked for up to {min(steps, header.num_steps):,} steps ahead (cache.uses_ahead_steps), in "
        f"temporary files of up to {megabytes(num_bytes)}"
    )


def window_is_cut(header: Header, batch: Batch) -> bool:
    """Does memory end the window before its steps or the log do?"""
    return window_steps(header, batch) <= _wanted_steps(header)


def _wanted_steps(header: Header) -> int:
    """Steps beyond the planned one, if there were memory for all."""
    if header.planner != "lookahead":
        return 0
    asked = header.options.window_steps
    return min(WINDOW_STEPS if asked is None else asked, header.num_steps)


def _bytes_of(batch: Batch) -> int:
    return max(1, bytes_in_window(len(batch.rows), len(np.unique(batch.rows))))


def _window(header: Header, batch: Batch, distinct: int, in_flight: int) -> int:
    num_steps = window_steps(header, batch)
    planned = batch.without_rows()
    of_batches = (num_steps + in_flight) * (batch.num_samples * sample_bytes(planned) + LOOKUP_BYTES * len(batch.rows))
    rows_known = min(header.num_rows, header.capacity_rows + num_steps * distinct)
    of_rows = num_steps * NEXT_USE_BYTES * distinct + rows_known * ROW_TABLE_BYTES
    return of_batches + of_rows + header.capacity_rows * PLANNER_SLOT_BYTES
