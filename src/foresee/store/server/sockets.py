"""The connections of a listening port as the kernel sees them: who, how many bytes, and how to end one.

In: a port of this process. Out: one `Socket` for each connection that was accepted there, read from /proc and from the
kernel's own counters; nothing is ever read from or written to a connection. gRPC owns the descriptors and may close one
at any moment, so each is looked at through a copy whose identity is checked first. Where the system has no /proc there
are no connections to see.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

DESCRIPTORS = "/proc/self/fd"
KEEPALIVE_SECONDS = 60
KEEPALIVE_PROBES, KEEPALIVE_PROBE_SECONDS = 6, 10
"""A machine that vanished is noticed within two minutes, however quiet the connection is."""
UNACKNOWLEDGED_MILLISECONDS = 60_000
_LISTENING = 10
_COUNTERS = struct.Struct("<QQ")
_COUNTERS_AT = 120  # tcpi_bytes_acked and tcpi_bytes_received in the kernel's struct tcp_info


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """One accepted connection."""

    inode: int
    peer: str
    received_bytes: int
    acknowledged_bytes: int


def peer_name(host: str, port: int) -> str:
    """One name for a client, whichever way its address is written."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return f"{mapped or address}:{port}"


def peer_of(grpc_peer: str) -> str:
    """The same name out of what gRPC says of a call: ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    host, _, port = unquote(grpc_peer).partition(":")[2].rpartition(":")
    try:
        return peer_name(host.strip("[]"), int(port))
    except ValueError:
        return grpc_peer


class PortSockets:
    """The connections of one port. Used by one thread."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._foreign: set[int] = set()

    def look(self) -> list[Socket]:
        """All connections that are open now."""
        found, foreign = [], set()
        for descriptor, inode in _sockets():
            if inode in self._foreign:
                foreign.add(inode)
                continue
            with _copy(descriptor, inode) as connection:
                seen = None if connection is None else self._describe(connection, inode)
            if seen is None:
                foreign.add(inode)
            else:
                found.append(seen)
        self._foreign = foreign
        return found

    def cut(self, inodes: set[int]) -> None:
        """Ends connections; gRPC finds them closed and frees what it holds for them."""
        for descriptor, inode in _sockets():
            if inode in inodes:
                with _copy(descriptor, inode) as connection, suppress(OSError):
                    if connection is not None:
                        connection.shutdown(socket.SHUT_RDWR)

    def watch_for_death(self, inodes: set[int]) -> None:
        """Lets the kernel find out that the other machine is gone."""
        for descriptor, inode in _sockets():
            if inode in inodes:
                with _copy(descriptor, inode) as connection, suppress(OSError):
                    if connection is not None:
                        _set_keepalive(connection)

    def _describe(self, connection: socket.socket, inode: int) -> Socket | None:
        """None for whatever is not an accepted connection of this port."""
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != self._port:
                return None
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if info[0] == _LISTENING or len(info) < _COUNTERS_AT + _COUNTERS.size:
                return None
            peer = connection.getpeername()
        except OSError:
            return None
        acknowledged, received = _COUNTERS.unpack_from(info, _COUNTERS_AT)
        return Socket(
            inode=inode, peer=peer_name(peer[0], peer[1]), received_bytes=received, acknowledged_bytes=acknowledged
        )


def _sockets() -> Iterator[tuple[int, int]]:
    """(descriptor, inode) of every socket of this process."""
    try:
        names = os.listdir(DESCRIPTORS)
    except OSError:
        return
    for name in names:
        try:
            target = os.readlink(f"{DESCRIPTORS}/{name}")
        except OSError:  # closed since
            continue
        if target.startswith("socket:["):
            yield int(name), int(target[8:-1])


class _copy:  # noqa: N801 - reads as a word
    """A descriptor of our own for a socket, if it is still the one we mean."""

    def __init__(self, descriptor: int, inode: int) -> None:
        self._descriptor, self._inode = descriptor, inode
        self._connection: socket.socket | None = None

    def __enter__(self) -> socket.socket | None:
        try:
            own = os.dup(self._descriptor)
        except OSError:
            return None
        if os.fstat(own).st_ino != self._inode:
            os.close(own)
            return None
        try:
            self._connection = socket.socket(fileno=own)
        except OSError:
            os.close(own)
        return self._connection

    def __exit__(self, *exception: object) -> None:
        if self._connection is not None:
            with closing(self._connection):
                pass


def _set_keepalive(connection: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
