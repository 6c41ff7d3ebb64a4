"""The remote store keeps the contract of stores over real server processes, whatever the number of shards."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from remote_servers import OwnedStore, Servers, open_owned

from foresee.store.contract import Store
from foresee.store.layout import Layout, Table
from foresee.testing.store_suite import StoreSuite, random_rows, store_machine
from waiting import wait_until


class RemoteSuite(StoreSuite):
    num_shards = 1

    @pytest.fixture(autouse=True)
    def _servers(self, servers: Servers) -> Iterator[None]:
        self.servers = servers
        yield
        servers.end_all()

    def make_store(self, folder: Path, layout: Layout) -> Store:
        return open_owned(self.servers, layout, self.num_shards)


class TestOneServer(RemoteSuite):
    pass


class TestTwoServers(RemoteSuite):
    num_shards = 2


class TestThreeServers(RemoteSuite):
    num_shards = 3


class TestTwoDiskServers(RemoteSuite):
    """Kill -9 and a new start leave the last commit of each shard."""

    num_shards = 2
    durable = True

    def make_store(self, folder: Path, layout: Layout) -> Store:
        return open_owned(self.servers, layout, self.num_shards, folder)

    def reopen(self, store: Store, folder: Path, layout: Layout) -> Store:
        assert isinstance(store, OwnedStore)
        for process in store.processes:
            process.signal(signal.SIGKILL)
        store.close()
        return open_owned(self.servers, layout, self.num_shards, folder)


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_any_order_of_operations(servers: Servers, num_shards: int) -> None:
    machine: Any = store_machine(lambda folder, layout: open_owned(servers, layout, num_shards))
    machine.TestCase.settings = settings(max_examples=8, stateful_step_count=25, deadline=None)
    machine.TestCase().runTest()
    servers.end_all()


def test_any_order_of_operations_and_crashes_on_disk(servers: Servers) -> None:
    def reopen(store: Store, folder: Path, layout: Layout) -> Store:
        store.close()
        return open_owned(servers, layout, 2, folder)

    machine: Any = store_machine(lambda folder, layout: open_owned(servers, layout, 2, folder), reopen)
    machine.TestCase.settings = settings(max_examples=4, stateful_step_count=20, deadline=None)
    machine.TestCase().runTest()
    servers.end_all()


def test_servers_say_what_their_disks_do(servers: Servers, tmp_path: Path) -> None:
    """Asked in the background: whoever asks gets the latest answer, and never waits."""
    layout = Layout(tables=(Table("t", 200),), width=4, state_width=1, optimizer="x")
    with closing(open_owned(servers, layout, 2, tmp_path)) as store:
        assert store.disks() == []
        store.write(np.arange(200), random_rows(np.random.default_rng(0), 200, layout, 1))
        store.commit(1)
        wait_until(lambda: [disk["syncs"] for disk in store.disks()] == [1, 1], "what the disks did")
        assert all(disk["written_bytes"] > 0 for disk in store.disks())
    servers.end_all()
