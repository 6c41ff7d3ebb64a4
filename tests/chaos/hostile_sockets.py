"""Hostile bytes for the socket of a real server, by the thousand, beside a client that means well.

In: numbers of cases. Out: how many failures: the server ended, printed a traceback, grew, or stopped serving. Failures
are found after each group of cases, and named by the group.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import hostile_wire as wire
import numpy as np
from hostile_mutations import Rng, mutate, mutate_json
from remote_servers import Server, Servers

from foresee.store.contract import Rows
from foresee.store.layout import Layout, Table
from foresee.store.remote import RemoteStore, protocol
from foresee.store.remote.opening import ask_status

LAYOUT = Layout(tables=(Table("t", 500),), width=8, state_width=1, optimizer="x")
GROUP = 100
GROWTH_BYTES_MAX = 256 << 20
Progress = Callable[[str], None]


def try_sockets(scratch: Path, seed: int, numbers: Sequence[int], progress: Progress) -> int:
    folder = scratch / "servers"
    folder.mkdir()
    failures = 0
    with Servers(folder) as servers:
        server = servers.start(LAYOUT)
        allowed = memory_of(server) + GROWTH_BYTES_MAX
        for first in range(0, len(numbers), GROUP):
            group = numbers[first : first + GROUP]
            _attack(server, [case(np.random.default_rng([seed, number]), server) for number in group])
            problem = _problem(server, allowed)
            if problem is not None:
                failures += 1
                progress(f"hostile: seed {seed} numbers {group[0]} to {group[-1]} on a socket: {problem}")
                servers.end_all()
                server = servers.start(LAYOUT)
        progress(f"hostile connections: {len(numbers):,}")
    return failures


def case(rng: Rng, server: Server) -> bytes:
    """A call that is almost right, or a right one with damage."""
    way = int(rng.integers(6))
    if way == 0:
        return rng.bytes(int(rng.integers(0, 2000)))
    if way == 1:
        body = mutate_json(rng, wire.as_json({"run": "r", "worker": 0, "num_workers": 1, "step": 1}))
        kind = str(rng.choice(["describe", "join", "status", "commit", "nothing"]))
        return wire.call("DoAction", wire.action(kind, body))
    if way == 2:
        command = mutate_json(rng, wire.as_json({"kind": "read", "incarnation": "x"}))
        return wire.call("DoExchange", wire.flight_data(command=command), end=bool(rng.random() < 0.5))
    if way == 3:
        opening = protocol.Opening(kind="write", incarnation="x").to_bytes()
        data = wire.flight_data(
            command=opening, header=rng.bytes(80), metadata=b'{"last": true, "step": null}', body=rng.bytes(200)
        )
        return wire.call("DoExchange", data, end=False)
    if way == 4:
        method = str(rng.choice(["DoGet", "DoPut", "Handshake", "ListFlights", "GetFlightInfo", "PollFlightInfo", "X"]))
        return wire.call(method, rng.bytes(int(rng.integers(0, 60))))
    good = wire.call("DoAction", wire.action("describe", b"{}"))
    # Damage after the preface: whatever differs in that is refused at once.
    return good[:24] + mutate(rng, good[24:])


def _attack(server: Server, streams: list[bytes]) -> None:
    """All at once, each with a moment to be answered; then all hang up, some of them rudely."""
    connections = []
    for content in streams:
        connection = wire.connect(server.address)
        wire.send(connection, content)
        connections.append(connection)
    select.select(connections, [], [], 0.05)
    for position, connection in enumerate(connections):
        if position % 3 == 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
        connection.close()


def _problem(server: Server, allowed: int) -> str | None:
    """What is wrong with a server that was attacked."""
    if not Path(f"/proc/{server.process_id}").exists() or _is_zombie(server):
        return f"it is gone: {server.output()[-1000:]}"
    if "Traceback" in server.output():
        return f"it failed: {server.output()[-2000:]}"
    if (found := memory_of(server)) > allowed:
        return f"it has {found:,} bytes, {allowed:,} are allowed"
    try:
        with closing(RemoteStore([server.address], deadline_seconds=20.0)) as store:
            store.read(np.arange(20), Rows.empty(20, LAYOUT))
        ask_status(server.address)
    except Exception as error:
        return f"a good client is not served: {error!r}"
    return None


def _is_zombie(server: Server) -> bool:
    return Path(f"/proc/{server.process_id}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def memory_of(server: Server) -> int:
    return int(Path(f"/proc/{server.process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
