"""The contracts of a store: where rows live when no worker holds them.

A row is `width` values, float32 or halves (`store.halves`), `state_width` float32 of optimizer state, and a version
(see plan.record); stores carry the values as words of 4 bytes and do not interpret them. Reading a row that was never
written gives its initial value, which follows from (seed, row) alone, version 0 and a zero state. Writes assign, never
add, and a write with a lower version than the stored one is refused row by row (the stored row stays), so a retry after
a lost reply is harmless. A request is checked before anything is touched.

`Store` is what a loop needs; `TwoPhaseStore` commits rows together with a dense half, by the decisions of `commits`;
`GuardedStore` names the write-backs a read depends on. A store whose class says `takes_next_use = True` is told
when rows are used next: `write(rows, source, next_use=...)`. `foresee.testing` has each as executable tests:
`StoreSuite`, `TwoPhaseStoreSuite`, `GuardedStoreSuite`. `layout` checks a layout that
comes from a file or a wire.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from foresee.arrays import Bool, Float32, Int32, Int64
from foresee.errors import StoreError, UsageError
from foresee.io.disk_stats import DiskFigures
from foresee.store.commits import Instruction, Part
from foresee.store.layout import Layout, outside_sentence

SCAN_ROWS = 1 << 16
"""Rows that `scan` reads at once."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Values, state and versions of some rows, as parallel arrays that the caller owns."""

    values: Float32  # [rows, value_words]: the values, or as many words that hold halves
    state: Float32  # [rows, state_width]
    versions: Int32  # [rows]

    @classmethod
    def empty(cls, num_rows: int, layout: Layout) -> Rows:
        return cls(
            np.empty((num_rows, layout.value_words), np.float32),
            np.empty((num_rows, layout.state_width), np.float32),
            np.empty(num_rows, np.int32),
        )

    def __len__(self) -> int:
        return len(self.versions)

    def first(self, num_rows: int) -> Rows:
        """A view of the first rows: staging buffers are allocated once and used in part."""
        return self.part(slice(num_rows))

    def part(self, which: slice | Int64 | Bool) -> Rows:
        """Return some rows: a view for a slice, a copy for positions or a mask."""
        return Rows(self.values[which], self.state[which], self.versions[which])


class Store(Protocol):
    """Rows by global id. One writer thread and one reader thread may use it at once, on disjoint rows."""

    @property
    def layout(self) -> Layout: ...

    @property
    def committed_step(self) -> int:
        """Number of steps contained in the last commit; 0 for a fresh store."""
        ...

    def read(self, rows: Int64, out: Rows) -> None:
        """Fills `out` with the rows, in the order asked.

        Args:
            rows: Distinct ids.
            out: Where values, state and versions go.
        """
        ...

    def write(self, rows: Int64, source: Rows) -> None:
        """Assigns the rows. On return a read of them sees what was written.

        Args:
            rows: Distinct ids.
            source: Their values, state and versions.
        """
        ...

    def commit(self, step: int) -> None:
        """Makes everything written so far durable.

        Args:
            step: The number of steps that it is the state after.
        """
        ...

    def close(self) -> None:
        """Releases files and memory; what was written since the last commit is given up. May be called twice."""
        ...


@runtime_checkable
class TwoPhaseStore(Store, Protocol):
    """A store whose commits belong together with something else."""

    @property
    def parts(self) -> Sequence[Part]:
        """What each part has, for `step_to_open`."""
        ...

    def prepare(self, step: int) -> None:
        """Makes everything written so far durable as the state after `step` steps; the last commit stays."""
        ...

    def settle(self, step: int) -> None:
        """The prepared step is the last commit; the one before can still be opened."""
        ...

    def open_at(self, step: int) -> None:
        """Goes to a commit that all parts have, and gives up everything after it."""
        ...


@runtime_checkable
class PartStore(TwoPhaseStore, Protocol):
    """A two-phase store that is one part, alone or as a shard of a server (`parts.OnePart`)."""

    def carry_out(self, instruction: Instruction) -> None:
        """Does what a decision of `commits` says."""
        ...


@runtime_checkable
class Scannable(Store, Protocol):
    """A store that knows which rows were ever written."""

    def written(self, begin: int, end: int) -> Int64:
        """Return those of a range, ascending."""
        ...


@runtime_checkable
class HasDisks(Protocol):
    """A store that counts what it reads from disks and writes to them."""

    def disks(self) -> list[DiskFigures]:
        """Return the counts so far, one entry for each disk."""
        ...


def scan(
    store: Store, begin: int = 0, end: int | None = None, *, written_only: bool = False, block: int = SCAN_ROWS
) -> Iterator[tuple[Int64, Rows]]:
    """Yield the ids and contents of a range of rows, `block` ids at a time.

    Args:
        store: Where the rows are.
        begin: The first row.
        end: The row after the last one; None: all rows.
        written_only: Leave out rows that were never written, and blocks that have no other.
        block: Rows in memory at once.
    """
    end = store.layout.num_rows if end is None else end
    for first in range(begin, end, block):
        ids = np.arange(first, min(first + block, end), dtype=np.int64)
        if written_only and isinstance(store, Scannable):
            ids = store.written(first, min(first + block, end))
        rows = Rows.empty(len(ids), store.layout)
        if len(ids):
            store.read(ids, rows)
        if written_only and not isinstance(store, Scannable):
            ids, rows = ids[rows.versions > 0], rows.part(rows.versions > 0)
        if len(ids):
            yield ids, rows


def written_rows(store: Store, begin: int, end: int) -> Int64:
    """Return the rows of a range that were written, ascending: those of a version above 0."""
    if isinstance(store, Scannable):
        return store.written(begin, end)
    found = [ids for ids, _ in scan(store, begin, end, written_only=True)]
    return np.concatenate([np.empty(0, np.int64), *found])


def disks_of(store: object) -> list[DiskFigures]:
    """Return what a store has read from disks and written to them so far; empty if it does not count."""
    return list(store.disks()) if isinstance(store, HasDisks) else []


def check_request(layout: Layout, rows: Int64, buffers: Rows) -> None:
    """Raises StoreError for a row id outside the tables, UsageError for buffers that do not fit."""
    _check_buffers(layout, rows, buffers)
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= layout.num_rows):
        outside = rows[(rows < 0) | (rows >= layout.num_rows)]
        raise StoreError(outside_sentence(layout, int(outside[0])))


def _check_buffers(layout: Layout, rows: Int64, buffers: Rows) -> None:
    if rows.dtype != np.int64 or rows.ndim != 1:
        raise UsageError(f"row ids must be one int64 array, got {rows.dtype} with {rows.ndim} dimensions")
    expected = (
        ("values", buffers.values, (len(rows), layout.value_words), np.float32),
        ("state", buffers.state, (len(rows), layout.state_width), np.float32),
        ("versions", buffers.versions, (len(rows),), np.int32),
    )
    for name, array, shape, dtype in expected:
        if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
            raise UsageError(
                f"{name} must be a contiguous {np.dtype(dtype)} array of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}; use Rows.empty(len(rows), store.layout)"
            )


@runtime_checkable
class GuardedStore(Protocol):
    """What a pipeline asks of a store. One thread reads while another writes."""

    @property
    def layout(self) -> Layout: ...

    @property
    def requests_cost(self) -> bool:
        """A request costs more than its rows, so that steps should share one."""
        ...

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, out: Rows) -> None:
        """Fills `out` once every worker's write-backs of all steps up to `not_before` are applied."""
        ...

    def write_step(self, step: int, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        """Assigns what leaves the cache after a step; also without rows, for then the step counts as applied.

        next_use: the step that uses each row next, or plan.record.NOT_KNOWN. A hint: nothing read depends on it.
        """
        ...


class Unshared:
    """A store with one worker: its own order of reads and writes is all the guard there is."""

    requests_cost = False

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def layout(self) -> Layout:
        return self._store.layout

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, out: Rows) -> None:
        if len(rows):
            self._store.read(rows, out)

    def write_step(self, step: int, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        if len(rows):
            write_with_hint(self._store, rows, source, next_use)


def takes_next_use(store: object) -> bool:
    """Whether `write` of a store takes `next_use`: its class says so by `takes_next_use = True`."""
    return getattr(type(store), "takes_next_use", False) is True


def write_with_hint(store: Any, rows: Int64, source: Rows, next_use: Int32 | None) -> None:
    """Writes rows, with their next uses where the store takes them."""
    if next_use is None or not takes_next_use(store):
        store.write(rows, source)
    else:
        store.write(rows, source, next_use=next_use)


def guarded(store: Store) -> GuardedStore:
    """The store itself if it knows guards, else `Unshared`."""
    return store if isinstance(store, GuardedStore) else Unshared(store)
