"""What a server has done, is doing, and may take at most, for a person and for a monitor.

In: events, and the answer to the `status` action. Out: numbers that only rise, except `parked_now` (reading them takes
no lock that serving needs for long), and the same as a few lines of text. Before a server starts, the memory it can
come to need: bytes by purpose, and a refusal if the machine lacks them. Whatever clients do it stays within this, as
`store.rpc.limits` holds them to the numbers that are added up here; `benchmarks/bounds.py` measures it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from foresee.errors import ConfigError
from foresee.io.disk_stats import DiskFigures
from foresee.io.machine import MemoryNeed, available_bytes, used_bytes
from foresee.io.units import in_megabytes
from foresee.store.contract import Rows
from foresee.store.disk.log import log_memory_bytes
from foresee.store.layout import Layout, Table
from foresee.store.rpc.limits import Limits
from foresee.store.server.requests import connection_rules
from foresee.store.server.shard import Shard, Share, memory_shard
from foresee.store.sharding import scatter


def memory_bytes() -> int:
    """Memory of this process that is in use now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def status_text(status: dict[str, Any]) -> str:
    """A few lines about one server."""
    megabytes = 1 / 1e6
    workers = ", ".join(f"worker {worker}: {step}" for worker, step in enumerate(status["watermarks"]))
    lines = (
        f"{status['address']}  shard {status['shard']} of {status['num_shards']}, {status['num_rows']:,} rows of "
        f"{status['row_bytes']} bytes, committed step {status['committed_step']}",
        f"  up {status['uptime_seconds']:,.0f} s, memory {status['memory_bytes'] * megabytes:,.0f} MB, "
        f"{status['connections']} connections, {status['bytes_in_flight'] * megabytes:,.1f} MB in flight",
        f"  {status['requests']:,} requests ({status['refused']:,} refused), "
        f"{status['rows_read']:,} rows read ({status['bytes_read'] * megabytes:,.0f} MB), "
        f"{status['rows_written']:,} written ({status['bytes_written'] * megabytes:,.0f} MB)",
        f"  {status['parked_now']} reads parked now, {status['parked_total']:,} in all; "
        + (f"run {status['run']}, applied up to step: {workers}" if status["run"] else "no run"),
        *([f"  {disk_text(status['disk'])}"] if status.get("disk") else []),
    )
    return "\n".join(lines)


def disk_text(disk: DiskFigures) -> str:
    """One line about a disk."""
    said = [f"disk ({disk['way']})"]
    for name in ("read", "written"):
        requests, seconds = disk[f"{name}_requests"], disk[f"{name}_seconds"]
        size, depth = disk[f"{name}_bytes"] / max(1, requests), disk[f"{name}_in_flight_seconds"] / max(1e-9, seconds)
        said.append(
            f"{disk[f'{name}_bytes'] / 1e6:,.0f} MB {name} in {requests:,} requests of {size / 1e3:,.1f} kB, "
            f"{depth:.0f} at once, {seconds:,.1f} s ({disk[f'{name}_processor_seconds']:,.1f} s of a processor)"
        )
    return "; ".join([*said, f"{disk['syncs']:,} syncs in {disk['sync_seconds']:,.1f} s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A snapshot."""

    requests: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    parked_now: int = 0
    """Reads that wait for write-backs at this moment."""
    parked_total: int = 0
    refused: int = 0
    """Requests answered with an error."""


class Counters:
    """Adds up `Counts`. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = asdict(Counts())

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    @contextmanager
    def parked(self) -> Iterator[None]:
        self.add(parked_now=1, parked_total=1)
        try:
            yield
        finally:
            self.add(parked_now=-1)

    def snapshot(self) -> Counts:
        with self._lock:
            return Counts(**self._counts)


CONNECTION_BYTES = 512 << 10
"""Of a connection with a call on it: its thread, and what gRPC keeps for it."""
UNAUTHENTICATED_BYTES = 1 << 20
"""Of a connection that may begin calls with a few kilobytes, and nothing else."""
SERVING_BYTES = 48 << 20
"""What the libraries take with the first requests: threads, pools, buffers of their own."""
ALLOCATOR_SHARE = 1.75
"""Memory beside that of the requests, over it: a message is there twice while it is taken apart, as pieces and as
Arrow's buffer, and two allocators keep what was given back for the next one."""


def warm_up() -> None:
    """Loads what the first request would load: the compiled kernels, which are a good part of the program."""
    layout = Layout(tables=(Table("warm", 9),), width=2, state_width=1, optimizer="none")
    for share in (Share(1, 2), Share(0, 1)):
        shard = memory_shard(layout, share)
        rows = Rows.empty(1, layout)
        shard.read(np.array([share.shard]), rows)
        shard.write(np.array([share.shard]), rows)
        scatter(rows, np.array([0]), rows)
        shard.close()


def footprint(*shards: Shard, limits: Limits, in_memory: bool) -> MemoryNeed:
    """What a server of this shard, or of one for each width, takes at most, under these limits."""
    rules = connection_rules(limits, *(shard.layout for shard in shards))
    share = 1 + ALLOCATOR_SHARE
    return MemoryNeed(
        process=used_bytes() + SERVING_BYTES,  # the program itself, as it is now
        # Of a shard in memory, once every row was written; of one on disk, to know where each row is.
        rows=sum(_row_bytes(shard, in_memory=in_memory) for shard in shards),
        requests=int(share * limits.bytes_in_flight_max),
        arriving=int(share * rules.unread_total_bytes_max),  # received and not yet a request
        connections=rules.connections_max * CONNECTION_BYTES + rules.unauthenticated_max * UNAUTHENTICATED_BYTES,
    )


def _row_bytes(shard: Shard, *, in_memory: bool) -> int:
    if in_memory:
        return shard.num_rows * shard.layout.row_bytes + shard.num_rows // 8
    return log_memory_bytes(replace(shard.layout, tables=(Table("shard", shard.num_rows),)))


def in_words(needed: MemoryNeed) -> str:
    """Return one line for a person."""
    return needed.summary(tuple(needed))


def check_footprint(needed: MemoryNeed, available: int | None = None) -> None:
    """Raise a ConfigError if the machine cannot give the memory."""
    available = available_bytes() if available is None else available
    more, requests = needed.total - needed["process"], needed.of("requests", "arriving")
    if available is not None and more > available:
        remedy = "lower --bytes-in-flight-max"
        if needed["rows"] > requests:
            remedy = "keep the rows on disk (--folder), or use more servers"
        raise ConfigError(
            f"this server needs up to {in_megabytes(more)} more memory ({in_megabytes(needed['rows'])} for rows, "
            f"{in_megabytes(requests)} for requests), and {in_megabytes(available)} are available; {remedy}"
        )
