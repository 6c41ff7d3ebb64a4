"""Rows of several widths on servers: one commit of all widths, and no byte on the wire that is no row's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresee.errors import StoreError
from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table
from foresee.store.registry import DISK, MEMORY
from foresee.store.remote import RemoteStore
from foresee.store.remote.opening import open_run
from foresee.store.remote.store import remote_tables
from foresee.store.row_groups import groups_of
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.rpc.sockets import PortSockets
from foresee.store.server import EmbeddingServer, Share
from foresee.store.server.shard import open_shards
from foresee.testing.store_suite import random_rows

LAYOUT = Layout(
    tables=(Table("country", 1000), Table("user", 8000), Table("item", 1000)), width=0, state_width=0,
    optimizer="rowwise_adagrad", widths=((4, 1), (128, 1), (64, 1)),
)  # fmt: skip


@contextmanager
def servers(num_shards: int, folder: Path | None = None) -> Iterator[list[EmbeddingServer]]:
    with ExitStack() as stack:
        made = []
        for shard in range(num_shards):
            below = None if folder is None else folder / f"shard-{shard}"
            kind = MEMORY if folder is None else DISK
            made.append(EmbeddingServer(*open_shards(kind, below, LAYOUT, Share(shard, num_shards))))
            stack.callback(made[-1].shutdown)
            stack.callback(made[-1].stop, 10.0)
        yield made


def addresses(made: list[EmbeddingServer]) -> list[str]:
    return [server.address for server in made]


def some_rows(seed: int, version: int) -> list[Rows]:
    rng = np.random.default_rng(seed)
    return [random_rows(rng, group.num_rows, group, version) for group in LAYOUT.groups]


def same(store: Any, rows: list[Rows]) -> bool:
    for group, expected in zip(groups_of(store), rows, strict=True):
        found = Rows.empty(len(expected), group.layout)
        group.read(np.arange(len(expected)), found)
        if any(
            getattr(found, it).tobytes() != getattr(expected, it).tobytes() for it in ("values", "state", "versions")
        ):
            return False
    return True


def write(store: Any, rows: list[Rows]) -> None:
    for group, values in zip(groups_of(store), rows, strict=True):
        group.write(np.arange(len(values)), values)


def test_a_commit_is_of_all_widths_or_of_none(tmp_path: Path) -> None:
    first, second = some_rows(1, 3), some_rows(2, 5)
    with servers(2, tmp_path) as made:
        store = remote_tables(addresses(made), LAYOUT)
        write(store, first)
        store.commit(3)
        write(store, second)
        store.prepare(5)
        groups_of(store)[0].settle(5)
        store.close()
    with servers(2, tmp_path) as made:  # one width has settled it, the others have it prepared
        endpoints = [Endpoint.parse(address, None, None) for address in addresses(made)]
        assert open_run(endpoints, LAYOUT, run="on", num_workers=1, manifests=[3, 5]) == 5
        store = remote_tables(addresses(made), LAYOUT)
        assert store.committed_step == 5
        assert same(store, second)
        store.close()
    with servers(2, tmp_path) as made:  # a dense half that stopped before its manifest takes all widths back
        endpoints = [Endpoint.parse(address, None, None) for address in addresses(made)]
        assert open_run(endpoints, LAYOUT, run="back", num_workers=1, manifests=[3]) == 3
        store = remote_tables(addresses(made), LAYOUT)
        assert same(store, first)
        store.close()
    assert sorted(it.name for it in (tmp_path / "shard-1").iterdir()) == ["width-128", "width-4", "width-64"]


def test_bytes_on_the_wire_are_those_of_the_rows_at_their_own_width() -> None:
    rows = some_rows(1, 3)
    with servers(1) as made:
        sockets = PortSockets(made[0].port)
        store = remote_tables(addresses(made), LAYOUT)
        write(store, rows)
        received = _settled(sockets, "received_bytes")
        assert same(store, rows)
        sent = _settled(sockets, "acknowledged_bytes")
        sockets.close()
        store.close()
    assert sent / LAYOUT.num_bytes <= 1.02
    assert received / (LAYOUT.num_bytes + 8 * LAYOUT.num_rows) <= 1.02  # each with its id
    padded = LAYOUT.num_rows * 4 * (128 + 2)
    assert sent < 0.9 * padded


def _settled(sockets: PortSockets, name: str) -> int:
    """The bytes of all connections, once the kernel has counted the last of them."""
    before = -1
    for _ in range(100):
        now = sum(int(getattr(it, name)) for it in sockets.look())
        if now == before:
            return now
        before = now
        time.sleep(0.05)
    return before


def test_a_server_of_other_widths_is_refused_with_a_sentence() -> None:
    with servers(1) as made:
        with pytest.raises(StoreError, match="there are no rows of width 32 here, only of 4, 128, 64"):
            RemoteStore(addresses(made), width=32)
        with pytest.raises(StoreError, match="wants"):
            RemoteStore(addresses(made), LAYOUT.groups[1])  # without a width it speaks of the first
