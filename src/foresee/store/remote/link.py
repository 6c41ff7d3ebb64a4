"""Everything between this process and one server: its connections, the deadline of each request, and retries.

In: requests for this server's rows, from any thread. Out: rows, or a sentence that names the server. A read takes an
idle connection or opens another, up to a bound; writes have one of their own and go in order. A dropped connection is
opened again a few times within the deadline: reads change nothing and writes assign, so sending twice is harmless. A
server that was started again is not the same server, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from threading import BoundedSemaphore, Lock
from typing import Any

from foresee.errors import StoreError
from foresee.store.commits import Prepare, Settle
from foresee.store.contract import Int32, Int64, Layout
from foresee.store.remote import protocol
from foresee.store.remote.endpoint import TRANSPORT_ERRORS, Endpoint, ask_patiently, is_refused_token
from foresee.store.remote.exchange import Deliver, Exchange, open_exchange
from foresee.store.remote.protocol import BusyError, Opening
from foresee.store.remote.watchdog import Watchdog

RETRIES_MAX = 3
FIRST_PAUSE_SECONDS = 0.05
PAUSE_SECONDS_MAX = 1.0
PARK_SHARE = 0.9
"""The server gives up a parked read a little before we do: it can say which row is missing."""


class Link:
    """Connections to one server."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        layout: Layout,
        description: dict[str, Any],
        run: str | None,
        worker: int | None,
        deadline_seconds: float,
        reads_in_flight: int,
        watchdog: Watchdog,
    ) -> None:
        self.endpoint, self._layout = endpoint, layout
        self._incarnation = str(description["incarnation"])
        self.rows_per_request_max = int(description["rows_per_request_max"])
        self._run, self._worker = run, worker
        self._deadline_seconds, self._watchdog = deadline_seconds, watchdog
        self._lock = Lock()
        self._idle: dict[str, list[Exchange]] = {protocol.READ: [], protocol.GUARDED: [], protocol.WRITE: []}
        self._slots = {protocol.READ: BoundedSemaphore(reads_in_flight), protocol.WRITE: BoundedSemaphore(1)}
        self._slots[protocol.GUARDED] = self._slots[protocol.READ]
        self._busy: set[Exchange] = set()
        self._closed = False

    def read(self, rows: Int64, deliver: Deliver) -> None:
        self._in_parts(protocol.READ, rows, None, lambda deadline: {}, deliver)

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, deliver: Deliver) -> None:
        def header(deadline: float) -> dict[str, Any]:
            return {"not_before": not_before, "park_seconds": PARK_SHARE * (deadline - time.monotonic())}

        self._in_parts(protocol.GUARDED, rows, versions, header, deliver)

    def write(self, batches: Callable[[Any], Iterator[tuple[Any, bool]]], step: int | None) -> None:
        """`batches` makes the batches for a schema, as often as they have to be sent."""
        what = "a write" if step is None else f"the write-backs of step {step}"
        self._attempt(protocol.WRITE, what, lambda exchange, deadline: exchange.write(batches(exchange.schema), step))

    def commit(self, step: int, timeout_seconds: float) -> None:
        """A commit of this server alone; harmless where it is at this step already."""
        content = {"step": step, "run": self._run}
        ask_patiently(self.endpoint, protocol.COMMIT, content, timeout_seconds, f"the commit of step {step}")

    def tell(self, message: Prepare | Settle, timeout_seconds: float) -> None:
        """A phase of a commit. Sent again if the answer is lost: a server that has done it already says so."""
        action = protocol.PREPARE if isinstance(message, Prepare) else protocol.SETTLE
        ask_patiently(self.endpoint, action, asdict(message), timeout_seconds, f"the commit of step {message.step}")

    def close(self) -> None:
        """Ends what is under way and closes all connections."""
        with self._lock:
            self._closed = True
            idle = [exchange for exchanges in self._idle.values() for exchange in exchanges]
            for exchanges in self._idle.values():
                exchanges.clear()
            for exchange in self._busy:
                with suppress(*TRANSPORT_ERRORS):
                    exchange.cancel()
        for exchange in idle:
            exchange.close()

    def _in_parts(
        self,
        kind: str,
        rows: Int64,
        versions: Int32 | None,
        header: Callable[[float], dict[str, Any]],
        deliver: Deliver,
    ) -> None:
        """Reads in requests that the server accepts."""
        for start in range(0, len(rows), self.rows_per_request_max):
            part = slice(start, start + self.rows_per_request_max)

            def work(exchange: Exchange, deadline: float, part: slice = part) -> None:
                expected = None if versions is None else versions[part]
                offset = part.start
                exchange.read(
                    rows[part], expected, header(deadline), lambda begin, chunk: deliver(offset + begin, chunk)
                )

            self._attempt(kind, "a read", work)

    def _attempt(self, kind: str, what: str, work: Callable[[Exchange, float], None]) -> None:
        """Does the work on a connection; again, after a pause, if the connection broke or the server is busy."""
        begun = time.monotonic()
        deadline, pause, failures = begun + self._deadline_seconds, FIRST_PAUSE_SECONDS, 0
        if not self._slots[kind].acquire(timeout=self._deadline_seconds):
            raise StoreError(
                f"server {self.endpoint.address}: no connection was free for {what} within "
                f"{self._deadline_seconds:.1f} s; allow more reads in flight"
            )
        try:
            while True:
                try:
                    self._work_once(kind, work, deadline)
                    return
                except BusyError as error:
                    if time.monotonic() + pause > deadline:
                        raise StoreError(str(error)) from error
                except TRANSPORT_ERRORS as error:
                    failures += 1
                    too_late = time.monotonic() + pause > deadline
                    if too_late or failures > RETRIES_MAX or is_refused_token(error) or self._closed:
                        raise self.endpoint.sentence(error, what, time.monotonic() - begun) from error
                time.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            self._slots[kind].release()

    def _work_once(self, kind: str, work: Callable[[Exchange, float], None], deadline: float) -> None:
        exchange = self._take(kind, deadline)
        try:
            with self._watchdog.watch(deadline, exchange.cancel):
                work(exchange, deadline)
        finally:
            self._give_back(kind, exchange)

    def _take(self, kind: str, deadline: float) -> Exchange:
        with self._lock:
            if self._idle[kind]:
                exchange = self._idle[kind].pop()
                self._busy.add(exchange)
                return exchange
        opening = Opening(kind=kind, incarnation=self._incarnation, run=self._run, worker=self._worker)
        exchange = open_exchange(self.endpoint, opening, self._layout, deadline=deadline, watchdog=self._watchdog)
        with self._lock:
            self._busy.add(exchange)
        return exchange

    def _give_back(self, kind: str, exchange: Exchange) -> None:
        with self._lock:
            self._busy.discard(exchange)
            if exchange.clean and not self._closed:
                self._idle[kind].append(exchange)
                return
        exchange.close()
