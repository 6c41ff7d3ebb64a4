"""What a plan says of the next use of a row reaches the store, whoever stands between, and changes nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pyarrow as pa
import pytest

from foresee.arrays import Int32, Int64
from foresee.errors import StoreError
from foresee.plan.record import NOT_KNOWN
from foresee.store.contract import Rows, Unshared, guarded
from foresee.store.layout import Layout, Table
from foresee.store.memory import MemoryStore
from foresee.store.remote import RemoteStore, protocol
from foresee.store.server import EmbeddingServer, Share
from foresee.store.server.requests import rows_of
from foresee.store.server.shard import Shard, memory_shard
from foresee.store.shard_folders import LocalShards
from foresee.testing.store_suite import SUITE_LAYOUT, assert_same, ids, random_rows, read_rows


class Told(MemoryStore):
    """A store that takes next uses, and notes them."""

    takes_next_use = True

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, undoable=True)
        self.told: dict[int, int] = {}

    def write(self, rows: Int64, source: Rows, *, next_use: Int32 | None = None) -> None:
        super().write(rows, source)
        if next_use is not None:
            self.told |= dict(zip(rows.tolist(), next_use.tolist(), strict=True))


def uses(*steps: int) -> Int32:
    return np.array(steps, np.int32)


def some_rows(count: int) -> Rows:
    return random_rows(np.random.default_rng(3), count, SUITE_LAYOUT, 1)


def test_a_store_of_one_worker_is_told() -> None:
    store = Told(SUITE_LAYOUT)
    Unshared(store).write_step(0, ids(3, 5), some_rows(2), uses(9, NOT_KNOWN))
    assert store.told == {3: 9, 5: NOT_KNOWN}
    Unshared(store).write_step(1, ids(7), some_rows(1))
    assert store.told == {3: 9, 5: NOT_KNOWN}


def test_a_store_that_does_not_care_is_not() -> None:
    store = MemoryStore(SUITE_LAYOUT)
    guarded(store).write_step(0, ids(3, 5), some_rows(2), uses(9, 11))
    assert_same(read_rows(store, ids(3, 5)), some_rows(2))


@contextmanager
def served(stores: list[Told | None]) -> Iterator[RemoteStore]:
    """A worker of servers, one for each store; None: one in memory that takes no hints."""
    with ExitStack() as stack:
        servers = []
        for shard, store in enumerate(stores):
            share = Share(shard, len(stores))
            made = memory_shard(SUITE_LAYOUT, share) if store is None else Shard(store, SUITE_LAYOUT, share)
            servers.append(EmbeddingServer(made))
            stack.callback(servers[-1].shutdown)
            stack.callback(servers[-1].stop, 10.0)
        remote = RemoteStore([server.address for server in servers], worker=0, num_workers=1)
        stack.callback(remote.close)
        yield remote


def told_shard(shard: int, num_shards: int) -> Told:
    num_rows = (SUITE_LAYOUT.num_rows - shard + num_shards - 1) // num_shards
    return Told(SUITE_LAYOUT if num_shards == 1 else _dense(num_rows))


def _dense(num_rows: int) -> Layout:
    width, state = SUITE_LAYOUT.width, SUITE_LAYOUT.state_width
    return Layout(tables=(Table("shard", num_rows),), width=width, state_width=state, optimizer="x")


@pytest.mark.parametrize("num_shards", [1, 3])
def test_servers_are_told(num_shards: int) -> None:
    stores = [told_shard(shard, num_shards) for shard in range(num_shards)]
    rows = np.arange(0, 600, 7, dtype=np.int64)
    with served(list(stores)) as remote:
        remote.write_step(0, rows, some_rows(len(rows)), (rows % 50).astype(np.int32))
        remote.write_step(1, rows[:2], Rows(*(part[:2] for part in _newer(len(rows)))))
        assert_same(read_rows(remote, rows[2:]), some_rows(len(rows)).part(slice(2, None)))
    expected = dict(zip(rows.tolist(), (rows % 50).tolist(), strict=True)) | dict.fromkeys(rows[:2].tolist(), NOT_KNOWN)
    told = {row * num_shards + shard: use for shard, store in enumerate(stores) for row, use in store.told.items()}
    assert told == expected


def _newer(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = some_rows(count)
    return rows.values, rows.state, rows.versions + np.int32(1)


def test_only_those_servers_are_told_that_say_so() -> None:
    store = told_shard(0, 2)
    with served([store, None]) as remote:
        remote.write_step(0, ids(4, 5, 6), some_rows(3), uses(8, 9, 10))
        assert_same(read_rows(remote, ids(4, 5, 6)), some_rows(3))
    assert store.told == {2: 8, 3: 10}


def test_a_next_use_that_is_no_step_is_refused() -> None:
    schema = protocol.request_schema(protocol.WRITE, SUITE_LAYOUT, next_use=True)
    batch = protocol.write_batch(schema, ids(1, 2), some_rows(2), uses(4, -2))
    with pytest.raises(StoreError, match="a row is used next in step -2"):
        rows_of(batch, SUITE_LAYOUT)
    names = ["next_use", "row", *schema.names[2:]]
    turned = pa.record_batch([batch.column(name) for name in names], names=names)
    with pytest.raises(StoreError, match="not those of these tables"):
        rows_of(turned, SUITE_LAYOUT)


def test_shards_of_one_process_are_told() -> None:
    stores = [told_shard(shard, 2) for shard in range(2)]
    local = LocalShards([Shard(store, SUITE_LAYOUT, Share(shard, 2)) for shard, store in enumerate(stores)])
    guarded(local).write_step(0, ids(4, 5, 6), some_rows(3), uses(8, 9, 10))
    assert [store.told for store in stores] == [{2: 8, 3: 10}, {2: 9}]
    assert_same(read_rows(local, ids(4, 5, 6)), some_rows(3))
