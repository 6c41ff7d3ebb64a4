"""How much memory a run will take, before it takes it, and a refusal if the machine lacks it.

In: the layout of rows, the header of the plan and one batch of the stream to measure. Out: bytes by purpose, for one
process, for a planner, or for all processes of a launched run; and a sentence that names what to lower. What is taken
from the start (slots, rows, index) is what will be allocated, to a few per cent. The rest are upper bounds as far as
the batch is typical: lookups and distinct rows of later batches are taken to be about the same.
"""

from __future__ import annotations

import numpy as np

from foresee.data.batch import Batch
from foresee.data.stream import GROUPS_KEPT
from foresee.engine import next_uses as uses_ahead
from foresee.engine.cache import COMMIT_BYTES, COMMIT_SLOTS
from foresee.engine.pipeline import WRITES_IN_FLIGHT
from foresee.errors import ConfigError
from foresee.io.machine import MemoryNeed, available_bytes
from foresee.io.units import in_megabytes
from foresee.plan import window_bytes
from foresee.plan.record import Header
from foresee.plan.row_groups import numbering_of
from foresee.plan.upcoming import LOOKUP_BYTES, NEXT_USE_BYTES, ROW_TABLE_BYTES, WINDOW_STEPS, bytes_in_window
from foresee.plan.variants import staged_rows_max
from foresee.store.layout import Layout
from foresee.store.registry import StoreKind

SLOT_TABLE_BYTES = 12
"""Which row a slot holds and in which version the store has it."""
GROUP_BYTES, ID_BYTES = 1, 8
"""Of a lookup in the window, where tables have several widths: its group, and for several workers its row."""
COMMIT_SLOT_BYTES = 16
"""Of a slot that a commit looks through: whether its row is newer here, and its number, as int64 and as int32."""
PLANNER_SLOT_BYTES = 24
"""What the planner keeps for each slot: row, last use, place in a list, place among the free."""
SHARED_SLOT_BYTES = 4
"""What the planner of several workers keeps for each slot beside that: when the row was last shared."""


AT_START = ("slots", "rows", "index", "programs")
"""What is allocated before the first step, and stays."""
LOWER = {
    "slots": "cache.rows or cache.share",
    "staging": "train.batch_size",
    "window": "cache.window_bytes or train.batch_size",
    "log": "train.shuffle_samples",
    "commit": "cache.rows or cache.share",
    "rows": "the rows in memory (tables.store: disk)",
    "index": "the rows of each process (distributed.servers on several machines)",
    "buffers": "the rows of each process (distributed.servers on several machines)",
    "programs": "distributed.workers or distributed.servers",
    "next_uses": "cache.uses_ahead_steps",
}
"""For each purpose, what a person lowers to need less."""
ALWAYS_SHOWN = ("slots", "staging", "window", "log")
"""Purposes that every run has; the others are shown where they are."""
PROGRAM_BYTES = 256 << 20
"""Of one process with torch, beyond what all of them share."""


def memory_needed(
    layout: Layout, header: Header, batch: Batch, shuffle_samples: int, *, kind: StoreKind | None = None
) -> MemoryNeed:
    """Return what a run of this plan takes, beside the model and torch.

    slots: the cache. staging: rows on their way between store and cache. window: batches that the planner has looked
    at and the loop has not finished, and what it knows of their rows. log: decoded samples that batches are cut from.
    commit: rows that a commit has copied out of the cache and not written yet. rows: all rows of the tables, where they
    are kept in memory. index: where each row is on disk, and rows written a moment ago. buffers: what such a store
    takes beside it while rows are read and written. next_uses: for looking for next uses beyond the window. A launched
    run also has programs: its processes, before they do anything.
    """
    distinct = len(np.unique(batch.rows))
    in_flight = _steps_in_flight(header)
    caches = slots_of(layout, header)
    return MemoryNeed(
        slots=sum(slots * (group.row_bytes + SLOT_TABLE_BYTES) for group, slots in caches),
        staging=_staged_bytes(layout, header, batch),
        window=_window(header, batch, distinct, in_flight),
        log=(GROUPS_KEPT + 1) * shuffle_samples * sample_bytes(batch),  # one more while it is decoded
        commit=max(_commit_bytes(group, slots) for group, slots in caches),  # caches are written one after the other
        rows=layout.num_bytes + layout.num_rows // 8 if kind and kind.rows_in_memory else 0,
        index=sum(kind.memory_bytes(group) - kind.buffer_bytes(group) for group in layout.groups) if kind else 0,
        buffers=sum(kind.buffer_bytes(group) for group in layout.groups) if kind else 0,
        next_uses=uses_ahead.memory_bytes(header, distinct),
    )


def _commit_bytes(group: Layout, slots: int) -> int:
    """Bytes that the commit of one cache takes: two copies, one being written, and the slots looked through."""
    rows = min(slots, max(1, COMMIT_BYTES // group.row_bytes))
    return 2 * rows * (group.row_bytes + ID_BYTES) + min(slots, COMMIT_SLOTS) * COMMIT_SLOT_BYTES


def slots_of(layout: Layout, header: Header) -> list[tuple[Layout, int]]:
    """The layout of each row group, and its slots."""
    slots = [group.capacity_rows for group in header.groups] or [header.capacity_rows]
    return list(zip(layout.groups, slots, strict=True))


def _staged_bytes(layout: Layout, header: Header, batch: Batch) -> int:
    """Rows of each width between store and cache."""
    distinct = np.unique(batch.rows)
    if not header.groups:
        return _staged_rows(header, batch, len(distinct)) * layout.row_bytes
    groups, _ = numbering_of(header.groups).of_rows(distinct)
    counts: list[int] = np.bincount(groups, minlength=len(header.groups)).tolist()
    return _steps_in_flight(header) * sum(
        count * group.row_bytes for count, group in zip(counts, layout.groups, strict=True)
    )


def rows_in_words(layout: Layout, header: Header) -> str:
    """The rows and slots of a run, for a person: such as "1,000 rows of 132 bytes"."""
    if not layout.widths:
        return f"{layout.num_rows:,} rows of {layout.row_bytes} bytes"
    each = ", ".join(
        f"{slots:,} slots for {group.num_rows:,} of width {group.width} ({group.row_bytes} bytes)"
        for group, slots in slots_of(layout, header)
    )
    return f"{layout.num_rows:,} rows of {len(layout.groups)} widths ({each})"


def _steps_in_flight(header: Header) -> int:
    return min(header.num_steps, 2 * header.fetch_ahead_steps + 4 + WRITES_IN_FLIGHT + 2)


def _staged_rows(header: Header, batch: Batch, distinct: int) -> int:
    """Rows between store and cache. Of partitions the plan itself bounds those that come."""
    size = header.options.partition_rows
    if size == 1:
        return _steps_in_flight(header) * distinct
    whole = len(np.unique(batch.rows // size)) * size
    return max(staged_rows_max(header), whole) + (WRITES_IN_FLIGHT + 2) * whole


def planner_memory(layout: Layout, header: Header, batch: Batch, shuffle_samples: int) -> MemoryNeed:
    """What a planner takes that does nothing else; it has no cache, and rows never reach it."""
    whole = memory_needed(layout, header, batch, shuffle_samples)
    return MemoryNeed({**whole, "slots": 0, "staging": 0, "commit": 0})


def launched_memory(
    layout: Layout, header: Header, batch: Batch, shuffle_samples: int, *, num_servers: int, kind: StoreKind
) -> MemoryNeed:
    """What all processes of a launched run take on one machine: workers, the planner, and servers without requests."""
    one = memory_needed(layout, header, batch, shuffle_samples, kind=kind)
    num_workers = header.num_workers
    return MemoryNeed(
        slots=num_workers * one["slots"],
        staging=one["staging"],  # each worker fetches its share of a batch's rows
        window=one["window"],
        log=(num_workers + 1) * one["log"],
        commit=num_workers * one["commit"],
        rows=one["rows"],
        index=one["index"],
        buffers=one["buffers"],
        programs=(num_workers + num_servers + 1) * PROGRAM_BYTES,
        next_uses=one["next_uses"],
    )


def check_memory(memory: MemoryNeed, available: int | None = None) -> None:
    """Raise a ConfigError if the machine, its control group or the process's own limit lacks the memory."""
    available = available_bytes() if available is None else available
    if available is None or not memory.lacks(available):
        return
    largest = memory.largest()
    raise ConfigError(
        f"this run needs up to {megabytes(memory.total)} of memory, most of it for {largest} "
        f"({megabytes(memory[largest])}), and {megabytes(available)} are available; lower {LOWER[largest]}"
    )


def in_words(memory: MemoryNeed) -> str:
    """Return one line for a person."""
    from_start = megabytes(memory.of(*AT_START))
    return f"{memory.summary(ALWAYS_SHOWN)} beside model and torch; {from_start} of it from the start"


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
    of_lookup = LOOKUP_BYTES + (0 if not header.groups else GROUP_BYTES + (ID_BYTES if header.num_workers > 1 else 0))
    num_batches = min(header.num_steps, num_steps + in_flight)
    of_batches = num_batches * (batch.num_samples * sample_bytes(planned) + of_lookup * len(batch.rows))
    rows_known = min(header.num_rows, header.capacity_rows + num_steps * distinct)
    of_rows = num_steps * NEXT_USE_BYTES * distinct + rows_known * ROW_TABLE_BYTES
    return of_batches + of_rows + header.capacity_rows * planner_slot_bytes(header.num_workers)


def planner_slot_bytes(num_workers: int) -> int:
    """Return what a planner keeps for each slot of a cache."""
    return PLANNER_SLOT_BYTES + (SHARED_SLOT_BYTES if num_workers > 1 else 0)
