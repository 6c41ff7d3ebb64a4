"""What a pipeline asks of a store: reads that name the write-backs they depend on, and writes step by step.

In: any store. Out: itself if it knows guards, as the remote one does, else `Unshared`, which gives a store of one
process that face. Next uses are handed on to stores that take them.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from foresee.arrays import Int32, Int64
from foresee.store.contract import Rows, Store
from foresee.store.layout import Layout


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
