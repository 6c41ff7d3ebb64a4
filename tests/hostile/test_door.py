"""The rules of the connection limiter, one by one, without a network; and sockets as the kernel counts them."""

from __future__ import annotations

import socket
import threading
from contextlib import closing

import pytest

from foresee.store.rpc.connection_limiter import Connection, Rules, broken_rule, too_many
from foresee.store.rpc.sockets import PortSockets, peer_name, peer_of

RULES = Rules(connections_max=10, unread_bytes_max=1000, unread_total_bytes_max=3000, unauthenticated_max=3)


def connection(**fields: float) -> Connection:
    made = Connection("10.0.0.1:5", since=100.0)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("fields", "now", "sentence"),
    [
        ({}, 110.5, "no call came through within 10 s"),
        ({}, 109.5, None),
        ({"received_bytes": RULES.unauthenticated_bytes_max + 1}, 100.0, "bytes came before any call"),
        ({"received_bytes": RULES.unauthenticated_bytes_max}, 100.0, None),
        ({"admitted": True, "received_bytes": 5000, "read_bytes": 3999}, 1e6, "a message of more than 1,000"),
        ({"admitted": True, "received_bytes": 5000, "read_bytes": 4000}, 1e6, None),
        ({"admitted": True, "sending_since": 100.0}, 161.0, "a reply was not taken within 60 s"),
        ({"admitted": True, "sending_since": 100.0}, 159.0, None),
    ],
)
def test_each_rule_by_itself(fields: dict[str, float], now: float, sentence: str | None) -> None:
    found = broken_rule(connection(**fields), RULES, now)
    assert found is None if sentence is None else found is not None and sentence in found


def test_the_unauthenticated_that_linger_go_first_and_callers_never() -> None:
    connections = {it: connection(since=100.0 + it) for it in range(5)}
    connections |= {it: connection(admitted=True, used_at=float(it)) for it in range(5, 9)}
    assert too_many(connections, RULES, now=100.5) == set(), "those that just came may still mean well"
    assert too_many(connections, RULES, now=110.0) == {0, 1}, "all but three of those that linger"
    connections |= {it: connection(admitted=True, num_calls=1) for it in range(9, 30)}
    assert too_many(connections, RULES, now=110.0) == set(range(9)), "everyone idle, and no caller"


def test_the_largest_go_when_all_together_are_too_large() -> None:
    connections = {it: connection(admitted=True, received_bytes=900 + it) for it in range(5)}
    assert too_many(connections, RULES, now=100.0) == {4, 3}
    del connections[3], connections[4]
    assert too_many(connections, RULES, now=100.0) == set()


def test_names_of_clients() -> None:
    assert peer_of("ipv4:127.0.0.1:5000") == peer_name("::ffff:127.0.0.1", 5000) == "127.0.0.1:5000"
    assert peer_of("ipv6:%5B::1%5D:5000") == peer_name("::1", 5000)
    assert peer_of("ipv6:%5Bfe80::1%25eth0%5D:7") == peer_name("fe80::1%eth0", 7)
    assert peer_of("unix:/tmp/socket") == "unix:/tmp/socket"


def test_the_kernel_tells_bytes_and_ends_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        sockets = PortSockets(port)
        assert sockets.look() == [], "listening is no connection"
        with closing(socket.create_connection(("127.0.0.1", port))) as near, listener.accept()[0] as far:
            near.sendall(bytes(1234))
            far.sendall(bytes(77))
            near.recv(100)
            (seen,) = sockets.look()
            assert seen.peer == f"127.0.0.1:{near.getsockname()[1]}"
            assert (seen.received_bytes, seen.acknowledged_bytes) == (1234, 77)
            sockets.cut({seen.inode + 1})
            sockets.watch_for_death({seen.inode})
            assert far.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            late = threading.Timer(0.05, sockets.cut, [{seen.inode}])
            late.start()
            near.settimeout(10)
            assert near.recv(100) == b"", "cut from our side"
            late.join(10)
        assert sockets.look() == []
        sockets.close()
