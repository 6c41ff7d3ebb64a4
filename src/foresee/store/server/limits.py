"""A bound on everything a client can ask of a server.

In: requests as they begin and end. Out: nothing, or a refusal in a sentence; whoever is inside already goes on being
served. Two refusals may pass by themselves (too many connections, too many bytes in flight) and are `BusyError`; a
request with too many rows never will.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Condition

from foresee.errors import StoreError
from foresee.store.remote.protocol import BusyError


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one server accepts."""

    connections_max: int = 512
    """Open exchanges; a trainer has two or more: one for writes, and one for each read it has in flight."""
    bytes_in_flight_max: int = 1 << 30
    """Request and reply bytes held for all requests that are being served, parked ones included."""
    rows_per_request_max: int = 1 << 20

    def check_rows(self, num_rows: int) -> None:
        if num_rows > self.rows_per_request_max:
            raise StoreError(
                f"a request of {num_rows:,} rows is over the limit of {self.rows_per_request_max:,} rows; ask in parts"
            )


class Admission:
    """Counts what is being served. Every method may be called from any thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._changed = Condition()
        self._closed = False
        self.connections = 0
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
    def request(self, num_bytes: int) -> Iterator[None]:
        """Holds bytes for as long as a request, or a part of one, is being served."""
        with self._changed:
            if self._closed:
                raise StoreError("it is stopping; start it again and resume from the last commit")
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
