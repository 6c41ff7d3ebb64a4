"""The memory store keeps the contract of stores."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from foresee.errors import StoreError
from foresee.store.contract import GuardedStore, Store, guarded
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.testing import GuardedStoreSuite, TwoPhaseStoreSuite
from foresee.testing.delays import SharedStore
from foresee.testing.store_suite import StoreSuite, assert_same, ids, initial_rows, read_rows, store_machine


class TestMemoryStore(StoreSuite):
    def make_store(self, folder: Path, layout: Layout) -> Store:
        return MemoryStore(layout)


class TestMemoryTwoPhases(TwoPhaseStoreSuite):
    def make_store(self, folder: Path, layout: Layout) -> Store:
        return MemoryStore(layout, undoable=True)


class TestUnshared(GuardedStoreSuite):
    num_workers = 1

    def make_workers(self, folder: Path, layout: Layout, num_workers: int) -> Sequence[GuardedStore]:
        return [guarded(MemoryStore(layout))]


class TestSharedByThreads(GuardedStoreSuite):
    def make_workers(self, folder: Path, layout: Layout, num_workers: int) -> Sequence[GuardedStore]:
        shared = SharedStore(MemoryStore(layout), num_workers)
        return [shared.for_worker(rank) for rank in range(num_workers)]


TestMemoryMachine = store_machine(lambda folder, layout: MemoryStore(layout)).TestCase
TestMemoryMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_large_table_takes_no_memory_before_it_is_written() -> None:
    layout = Layout(tables=(Table("large", 20_000_000),), width=64, state_width=1, optimizer="rowwise_adagrad")
    before = peak_bytes()
    store = MemoryStore(layout)
    last = ids(layout.num_rows - 1)
    assert_same(read_rows(store, last), initial_rows(layout, last))
    store.close()
    assert peak_bytes() - before < 0.1 * layout.num_rows * layout.row_bytes


def test_more_than_the_memory_is_a_sentence() -> None:
    layout = Layout(tables=(Table("huge", 10**13),), width=64, state_width=1, optimizer="rowwise_adagrad")
    with pytest.raises(StoreError, match=r"10,000,000,000,000 rows need .* bytes.*; keep them on disk"):
        MemoryStore(layout)


def peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
