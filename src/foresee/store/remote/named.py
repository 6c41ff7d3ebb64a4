"""Servers that a run file names, as the tables of a run of one process: `tables.store: grpc://host:port,...`

In: addresses in one text, with commas between them. Out: `open_trainer`, a store at the newest commit whose dense half
is there, for the one process that trains, and `CommittedRows`, for whoever only reads. Servers keep the last commit and
what was written since: a reader refuses rows that are newer than the commit, so it never mixes two states.
`local_servers` are servers of this process, in memory, for a comparison that must leave others alone.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from foresee.arrays import Int64
from foresee.errors import ConfigError, StoreError
from foresee.store.parts import ReadOnly, StoreWrapper
from foresee.store.remote.opening import await_servers, held_step, open_run
from foresee.store.remote.store import RemoteStore, remote_tables
from foresee.store.rpc.endpoint import Endpoint
from foresee.store.rpc.security import read_token

if TYPE_CHECKING:
    from foresee.store.commits import Part
    from foresee.store.contract import Rows
    from foresee.store.layout import Layout

START_SECONDS = 30.0
"""How long servers may take until they listen."""
STOP_SECONDS = 10.0


def addresses_of(text: str) -> list[str]:
    """The addresses in a text, each checked."""
    addresses = [part.strip() for part in text.split(",") if part.strip()]
    for address in addresses:
        Endpoint.parse(address, None, None)
    if len(set(addresses)) < len(addresses):
        raise ConfigError(f"tables.store: {text} names a server twice; give each server of these tables once")
    return addresses


def open_trainer(text: str, layout: Layout, manifests: Collection[int] = ()) -> Any:
    """The rows for the one process that trains them, at the newest of these commits that all servers have.

    Whoever trained them before is given up, and so is what was written since that commit.
    """
    endpoints, name = _endpoints(text), uuid.uuid4().hex
    open_run(endpoints, layout, run=name, num_workers=1, manifests=manifests, started=time.time_ns() // 1_000_000)
    return remote_tables(addresses_of(text), layout, worker=0, num_workers=1, run=name, opened=True)


def committed_step(text: str) -> int:
    """The newest commit that any of the servers has; 0: none."""
    return held_step(_endpoints(text))


def _endpoints(text: str) -> list[Endpoint]:
    endpoints = [Endpoint.parse(address, read_token(None), None) for address in addresses_of(text)]
    await_servers(endpoints, lambda words: None, patience_seconds=START_SECONDS)
    return endpoints


class CommittedRows(ReadOnly, StoreWrapper):
    """The rows of servers as of their last commit, for reading; a row that is newer is refused."""

    refusal = "these rows are opened for reading; open the tables of the run to write or commit them"

    def __init__(self, text: str, layout: Layout) -> None:
        super().__init__(RemoteStore(addresses_of(text), layout, width=layout.width))

    @property
    def parts(self) -> Sequence[Part]:
        parts: Sequence[Part] = self.inner.parts
        return parts

    def open_at(self, step: int) -> None:
        """Open only the commit that the servers are at: only the run may move them."""
        if step != self.committed_step:
            raise StoreError(
                f"the servers are at the commit of step {self.committed_step}, the run has kept step {step}: a commit "
                "was interrupted; go on with --resume, which brings both together"
            )

    def read(self, rows: Int64, out: Rows) -> None:
        self.inner.read(rows, out)
        newer = out.versions > self.committed_step
        if newer.any():
            raise StoreError(
                f"the servers have rows of step {int(out.versions.max())}, their last commit is that of step "
                f"{self.committed_step}: the run trains at this moment, or was interrupted; wait for its next commit, "
                "or go on with --resume"
            )


@contextmanager
def local_servers(layout: Layout, num_servers: int) -> Iterator[str]:
    """So many servers of this process with new rows in memory; their addresses, as a run file has them."""
    from foresee.store.server.service import EmbeddingServer
    from foresee.store.server.shard import Share, memory_shard

    with ExitStack() as stack:
        addresses = []
        for shard in range(num_servers):
            server = EmbeddingServer(memory_shard(layout, Share(shard, num_servers)))
            stack.callback(server.shutdown)
            stack.callback(server.stop, STOP_SECONDS)
            addresses.append(server.address)
        yield ",".join(addresses)
