"""The connections of a listening port as the kernel sees them: who, how many bytes, and how to end one.

In: a port of this process. Out: one `Socket` for each connection that was accepted there, read from /proc and from the
kernel's own counters; nothing is ever read from or written to a connection. gRPC owns the descriptors and may close one
at any moment, so each is looked at through a copy, which is given up as soon as nobody else has the connection. Where
the system has no /proc there are no connections to see.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from urllib.parse import unquote

DESCRIPTORS = "/proc/self/fd"
EXAMINE_SECONDS = 0.5
KEEPALIVE_SECONDS = 60
KEEPALIVE_PROBES, KEEPALIVE_PROBE_SECONDS = 6, 10
"""A machine that vanished is noticed within two minutes, however quiet the connection is."""
UNACKNOWLEDGED_MILLISECONDS = 60_000
_ESTABLISHED = 1
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
    """The connections of one port. Used by one thread; `close` gives its descriptors back.

    Looking is done many times a second beside threads that want the interpreter, so a look is one question to the
    kernel for the number of descriptors and one for each connection; all descriptors are examined only when there are
    more or fewer, a connection has ended, or some time has passed. One that comes as another ends is found by that end.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._ours: dict[int, socket.socket] = {}
        """Copies of the descriptors of our connections, by inode."""
        self._peers: dict[int, str] = {}
        self._num_descriptors = -1
        self._examined_at = 0.0

    def look(self) -> list[Socket]:
        """All connections that are open now."""
        if _num_descriptors() != self._num_descriptors or time.monotonic() - self._examined_at > EXAMINE_SECONDS:
            self._examine()
        found = [self._describe(inode) for inode in self._ours]
        if None in found:
            self._examine()
            found = [self._describe(inode) for inode in self._ours]
        return [it for it in found if it is not None]

    def cut(self, inodes: set[int]) -> None:
        """Ends connections; gRPC finds them closed and frees what it holds for them."""
        for inode in inodes & self._ours.keys():
            with suppress(OSError):
                self._ours[inode].shutdown(socket.SHUT_RDWR)

    def watch_for_death(self, inodes: set[int]) -> None:
        """Lets the kernel find out that the other machine is gone."""
        for inode in inodes & self._ours.keys():
            with suppress(OSError):
                _set_keepalive(self._ours[inode])

    def close(self) -> None:
        for connection in self._ours.values():
            connection.close()
        self._ours.clear()
        self._peers.clear()

    def _examine(self) -> None:
        """Copies the descriptors of new connections, and gives up those that nobody else has any more."""
        own = {connection.fileno() for connection in self._ours.values()}
        theirs = {inode: descriptor for descriptor, inode in _sockets() if descriptor not in own}
        for inode in self._ours.keys() - theirs.keys():
            self._ours.pop(inode).close()
            del self._peers[inode]
        for inode in theirs.keys() - self._ours.keys():
            connection = _copy(theirs[inode], inode)
            if connection is None:
                continue
            peer = self._accepted_from(connection)
            if peer is None:
                connection.close()
            else:
                self._ours[inode], self._peers[inode] = connection, peer
        self._num_descriptors, self._examined_at = _num_descriptors(), time.monotonic()

    def _accepted_from(self, connection: socket.socket) -> str | None:
        """Who is at the other end, if this is a connection of our port."""
        try:
            if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != self._port:
                return None
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            return peer_name(*connection.getpeername()[:2])
        except OSError:
            return None

    def _describe(self, inode: int) -> Socket | None:
        """None once the connection has ended."""
        try:
            info = self._ours[inode].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS_AT + _COUNTERS.size)
        except OSError:
            return None
        if info[0] != _ESTABLISHED or len(info) < _COUNTERS_AT + _COUNTERS.size:
            return None
        acknowledged, received = _COUNTERS.unpack_from(info, _COUNTERS_AT)
        return Socket(inode=inode, peer=self._peers[inode], received_bytes=received, acknowledged_bytes=acknowledged)


def _num_descriptors() -> int:
    """Of this process. Older kernels do not say it in one word, so there they are counted."""
    try:
        return os.stat(DESCRIPTORS).st_size or len(os.listdir(DESCRIPTORS))
    except OSError:
        return 0


def _listing() -> list[str]:
    try:
        return os.listdir(DESCRIPTORS)
    except OSError:
        return []


def _sockets() -> Iterator[tuple[int, int]]:
    """(descriptor, inode) of every socket of this process."""
    for name in _listing():
        try:
            target = os.readlink(f"{DESCRIPTORS}/{name}")
        except OSError:  # closed since
            continue
        if target.startswith("socket:["):
            yield int(name), int(target[8:-1])


def _copy(descriptor: int, inode: int) -> socket.socket | None:
    """A descriptor of our own for a socket, if it is still the one we mean."""
    try:
        own = os.dup(descriptor)
    except OSError:  # closed since, or there are no descriptors left
        return None
    try:
        if os.fstat(own).st_ino == inode:
            return socket.socket(fileno=own)
    except OSError:
        pass
    os.close(own)
    return None


def _set_keepalive(connection: socket.socket) -> None:
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(tcp, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_KEEPINTVL, KEEPALIVE_PROBE_SECONDS)
    connection.setsockopt(tcp, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    connection.setsockopt(tcp, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MILLISECONDS)
