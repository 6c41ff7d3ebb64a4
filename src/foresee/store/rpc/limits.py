"""A bound on everything a client can ask of a server.

In: requests as they begin and end. Out: nothing, or a refusal in a sentence; whoever is inside already goes on being
served. Refusals that may pass by themselves (too many connections, questions or bytes in flight) are `BusyError`; a
request with too many rows never will. What a connection may do before its bytes are a request is in
`connection_limiter`; how many bytes the rows of a request are is known to whoever serves rows, and given as a number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from foresee.errors import StoreError, StoreUnavailableError
from foresee.store.rpc.connection_limiter import Rules
from foresee.store.rpc.failures import BusyError

ACTIONS_MAX = 64
"""Questions (describe, join, commit, status) that are answered at once."""
ACTION_BYTES_MAX = 1 << 16
"""Of one question, of the header of a request, and of the descriptor that opens a connection."""
SPARE_CONNECTIONS = 64
"""For questions, which have connections of their own."""
WINDOW_BYTES = 32 << 20
"""What flow control lets in on a connection beyond the message that is being read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server accepts."""

    connections_max: int = 512
    """Open exchanges; a trainer has two or more: one for writes, and one for each read it has in flight."""
    bytes_in_flight_max: int = 1 << 30
    """Request and reply bytes held for all requests that are being served, parked ones included."""
    rows_per_request_max: int = 1 << 20
    unauthenticated_seconds: float = 10.0
    """Until a new connection has to have brought a call with the right token."""

    def check_rows(self, num_rows: int) -> None:
        if num_rows > self.rows_per_request_max:
            raise StoreError(
                f"a request of {num_rows:,} rows is over the limit of {self.rows_per_request_max:,} rows; ask in parts"
            )

    def rules(self, message_bytes_max: int) -> Rules:
        """What the connection limiter lets through, where no message of a client of ours is larger than this."""
        unread = message_bytes_max + WINDOW_BYTES
        return Rules(
            connections_max=self.connections_max + SPARE_CONNECTIONS,
            unread_bytes_max=unread,
            unread_total_bytes_max=max(unread, self.bytes_in_flight_max // 2),
            unauthenticated_seconds=self.unauthenticated_seconds,
        )


class Admission:
    """Counts what is being served. Every method may be called from any thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._changed = Condition()
        self._closed = False
        self.connections = 0
        self.actions_now = 0
        self.requests_now = 0
        self.bytes_in_flight = 0

    @contextmanager
    def connection(self) -> Iterator[None]:
        with self._changed:
            if self.connections >= self.limits.connections_max:
                raise BusyError(
                    f"all {self.limits.connections_max} connections are taken; "
                    "close some clients or start it with a higher limit"
                )
            self.connections += 1
        try:
            yield
        finally:
            with self._changed:
                self.connections -= 1

    @contextmanager
    def action(self) -> Iterator[None]:
        """Around a question."""
        with self._changed:
            if self.actions_now >= ACTIONS_MAX:
                raise BusyError(f"{ACTIONS_MAX} questions are being answered; ask again a little later")
            self.actions_now += 1
        try:
            yield
        finally:
            with self._changed:
                self.actions_now -= 1

    @contextmanager
    def request(self, num_bytes: int) -> Iterator[None]:
        """Holds bytes for as long as a request, or a part of one, is being served."""
        with self._changed:
            if self._closed:
                raise StoreUnavailableError("it is stopping; start it again and resume from the last commit")
            if self.bytes_in_flight + num_bytes > self.limits.bytes_in_flight_max:
                raise BusyError(
                    f"{num_bytes:,} bytes more would be over the limit of {self.limits.bytes_in_flight_max:,} bytes in "
                    f"flight ({self.bytes_in_flight:,} are); ask in smaller parts or start it with a higher limit"
                )
            self.requests_now += 1
            self.bytes_in_flight += num_bytes
        try:
            yield
        finally:
            with self._changed:
                self.requests_now -= 1
                self.bytes_in_flight -= num_bytes
                self._changed.notify_all()

    def close(self, timeout_seconds: float) -> bool:
        """Refuses new requests and waits for those inside; False if some did not end."""
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: not self.requests_now, max(0.0, deadline - time.monotonic()))
