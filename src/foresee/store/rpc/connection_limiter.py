"""Ends connections to a server that take more than anyone was given.

gRPC in pyarrow has no bound on how large a message may be, how long a connection may say nothing, or how many there
are, and it receives the whole of a small call's message before the token is looked at. So one thread looks at the
kernel's counters of every connection, many times a second, and ends those that break a rule (`broken_rule`, `too_many`:
pure functions). One that is unauthenticated, since no call of it has passed the token check, has a few seconds and a
few kilobytes. In: what the handlers of calls report (`call`, `read`, `sending`). Out: cut connections. It never looks
into a connection, and whoever keeps the rules notices nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread

from foresee.store.rpc.sockets import PortSockets, Socket, peer_of

_logger = logging.getLogger(__name__)

LOOK_SECONDS, LOOK_SECONDS_MAX = 0.02, 0.1
LOOK_SHARE_MAX = 0.1
"""The thread sleeps so long that looking takes at most this share of a core, and never longer than the maximum."""
CALL_OVERHEAD_BYTES = 1024
"""Allowed for the headers of a call or message."""
FRAMING_SHARE = 0.05
"""Allowed on top of a message for frames and TLS records."""
HONEST_SECONDS = 1.0
"""Until a client that means well has made its first call, even on a busy machine."""
WINDOW_UPDATE_SHARE = 1 / 64
"""A client that receives sends small frames about it."""
TELL_SECONDS = 10.0
"""Between two lines about ended connections: strangers cannot fill a disk with lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a connection may take."""

    connections_max: int
    unread_bytes_max: int
    """Of one connection: received, and not yet dealt with."""
    unread_total_bytes_max: int
    """Of all connections."""
    unauthenticated_seconds: float = 10.0
    unauthenticated_bytes_max: int = 1 << 14
    """A first call has a few hundred, a TLS handshake a few thousand; each may begin a call, which costs far more."""
    unauthenticated_max: int = 64
    """Of those that have been here for longer than `HONEST_SECONDS`."""
    reply_seconds: float = 60.0
    """For one piece of a reply."""


@dataclass(slots=True)
class Connection:
    """What is known of one connection."""

    peer: str
    since: float
    admitted: bool = False
    received_bytes: int = 0
    read_bytes: float = 0.0
    acknowledged_bytes: int = 0
    sending_since: float | None = None
    used_at: float = 0.0
    num_calls: int = 0

    @property
    def unread_bytes(self) -> float:
        return max(0.0, self.received_bytes - self.read_bytes)


def broken_rule(connection: Connection, rules: Rules, now: float) -> str | None:
    """Which rule a connection breaks by itself, in a few words."""
    if not connection.admitted and now - connection.since > rules.unauthenticated_seconds:
        return f"no call came through within {rules.unauthenticated_seconds:.0f} s"
    if not connection.admitted and connection.received_bytes > rules.unauthenticated_bytes_max:
        return f"more than {rules.unauthenticated_bytes_max:,} bytes came before any call came through"
    if connection.admitted and connection.unread_bytes > rules.unread_bytes_max:
        return f"a message of more than {rules.unread_bytes_max:,} bytes"
    if connection.sending_since is not None and now - connection.sending_since > rules.reply_seconds:
        return f"a reply was not taken within {rules.reply_seconds:.0f} s"
    return None


def too_many(connections: dict[int, Connection], rules: Rules, now: float) -> set[int]:
    """Whom to cut so that all together are in bounds. For numbers: the unauthenticated that came first, which would
    have made a call by now if they meant well, then the idle; never a connection with a call under way. For bytes: the
    largest."""
    idle = [inode for inode, it in connections.items() if not it.num_calls]
    idle.sort(key=lambda inode: (connections[inode].admitted, connections[inode].used_at or connections[inode].since))
    cut = set(idle[: max(0, len(connections) - rules.connections_max)])
    lingering = [i for i in idle if not connections[i].admitted and now - connections[i].since > HONEST_SECONDS]
    cut.update(lingering[: max(0, len(lingering) - rules.unauthenticated_max)])
    total = sum(it.unread_bytes for it in connections.values())
    for inode in sorted(connections, key=lambda inode: -connections[inode].unread_bytes):
        if total <= rules.unread_total_bytes_max:
            break
        total -= connections[inode].unread_bytes
        cut.add(inode)
    return cut


class ConnectionLimiter:
    """Watches one port from the moment it is made, until `close`. Every method may be called from any thread."""

    def __init__(self, port: int, rules: Rules, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.rules, self._clock = rules, clock
        self._sockets = PortSockets(port)
        self._connections: dict[int, Connection] = {}
        self._inode_of: dict[str, int] = {}
        self._early: dict[str, Connection] = {}
        """Clients whose first call came through before their connection was seen."""
        self._lock = Lock()
        self.num_cut, self._told_at = 0, float("-inf")
        self._closed = Event()
        self._thread = Thread(target=self._run, name="foresee-limiter", daemon=True)
        self._thread.start()

    @contextmanager
    def call(self, grpc_peer: str, num_bytes: int = 0) -> Iterator[Connection]:
        """Around a call that passed the token check and brought so many bytes."""
        with self._lock:
            connection = self._connection(peer_of(grpc_peer))
            connection.num_calls += 1
        self.read(connection, num_bytes)
        try:
            yield connection
        finally:
            with self._lock:
                connection.num_calls, connection.used_at = connection.num_calls - 1, self._clock()

    def read(self, connection: Connection, num_bytes: int) -> None:
        """A message of so many bytes was dealt with."""
        with self._lock:
            connection.read_bytes += num_bytes * (1 + FRAMING_SHARE) + CALL_OVERHEAD_BYTES

    @contextmanager
    def sending(self, connection: Connection) -> Iterator[None]:
        """Around a call that waits for the client to take a piece of a reply."""
        with self._lock:
            connection.sending_since = self._clock()
        try:
            yield
        finally:
            with self._lock:
                connection.sending_since = None

    @property
    def num_connections(self) -> int:
        return len(self._connections)

    def close(self) -> None:
        self._closed.set()
        self._thread.join(10.0)
        if not self._thread.is_alive():
            self._sockets.close()

    def look(self) -> None:
        """Once around: who is there, and who has to go."""
        found = self._sockets.look()
        now = self._clock()
        with self._lock:
            new = self._update(found, now)
            broken = {i: rule for i, it in self._connections.items() if (rule := broken_rule(it, self.rules, now))}
            cut = set(broken)
            others = {inode: it for inode, it in self._connections.items() if inode not in cut}
            cut |= too_many(others, self.rules, now)
        self._sockets.watch_for_death(new)
        if cut:
            self.num_cut += len(cut)
            self._sockets.cut(cut)
            self._tell(next(iter(broken.values()), "too many connections or bytes"), now)

    def _tell(self, why: str, now: float) -> None:
        if now - self._told_at >= TELL_SECONDS:
            _logger.warning("ended a connection (%s); %d were ended so far", why, self.num_cut)
            self._told_at = now

    def _update(self, found: list[Socket], now: float) -> set[int]:
        """Takes the kernel's counters over; returns who is new."""
        new = {it.inode for it in found} - self._connections.keys()
        for it in found:
            if it.inode in new:
                connection = self._early.pop(it.peer, None) or Connection(it.peer, now)
                self._connections[it.inode], self._inode_of[it.peer] = connection, it.inode
            connection = self._connections[it.inode]
            connection.read_bytes += (it.acknowledged_bytes - connection.acknowledged_bytes) * WINDOW_UPDATE_SHARE
            connection.received_bytes, connection.acknowledged_bytes = it.received_bytes, it.acknowledged_bytes
            # What is allowed for overhead is not saved up for a larger message later.
            connection.read_bytes = min(connection.read_bytes, float(connection.received_bytes))
        for inode in self._connections.keys() - {it.inode for it in found}:
            gone = self._connections.pop(inode)
            if self._inode_of.get(gone.peer) == inode:
                del self._inode_of[gone.peer]
        # A client that came and went between two looks leaves nothing behind.
        self._early = {peer: it for peer, it in self._early.items() if it.num_calls or now - it.since < 1.0}
        return new

    def _connection(self, peer: str) -> Connection:
        inode = self._inode_of.get(peer)
        if inode is not None:
            connection = self._connections[inode]
        else:
            connection = self._early.setdefault(peer, Connection(peer, self._clock()))
        connection.admitted = True
        connection.used_at = self._clock()
        return connection

    def _run(self) -> None:
        pause = LOOK_SECONDS
        while not self._closed.wait(pause):
            begun = time.thread_time()
            self.look()
            pause = min(LOOK_SECONDS_MAX, max(LOOK_SECONDS, (time.thread_time() - begun) / LOOK_SHARE_MAX))
