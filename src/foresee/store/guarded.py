"""A store as the pipeline uses it: step by step, with reads that name the write-backs they depend on.

A worker waits by itself until its own write-backs are applied. Those of other workers only the store can know: a store
that several workers share parks a read until they are applied (`remote`). `Unshared` gives a store of one process the
same face. "Applied" means that a read sees the rows: not that they were sent.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from foresee.store.contract import Int32, Int64, Layout, Rows, Store


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

    def write_step(self, step: int, rows: Int64, source: Rows) -> None:
        """Assigns what leaves the cache after a step; also without rows, for then the step counts as applied."""
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

    def write_step(self, step: int, rows: Int64, source: Rows) -> None:
        if len(rows):
            self._store.write(rows, source)


def guarded(store: Store) -> GuardedStore:
    """The store itself if it knows guards, else `Unshared`."""
    return store if isinstance(store, GuardedStore) else Unshared(store)
