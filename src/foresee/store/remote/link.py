"""Everything between this process and one server: its connections, the deadline of each request, and retries.

In: requests for this server's rows, from any thread. Out: rows, or a sentence that names the server. A read takes an
idle connection or opens another, up to a bound; writes have one of their own and go in order. A connection has one
request at a time, and is used again only if its last reply was read to the end (`clean`). A dropped one is opened again
a few times within the deadline: reads change nothing and writes assign, so sending twice is harmless. A server that was
started again is not the same server, and says so.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from threading import BoundedSemaphore, Lock
from typing import Any

from pyarrow import flight

from foresee.arrays import Int32, Int64
from foresee.errors import StoreError
from foresee.store.commits import Prepare, Settle
from foresee.store.contract import Rows
from foresee.store.layout import Layout
from foresee.store.remote import protocol
from foresee.store.remote.protocol import Opening
from foresee.store.rpc.endpoint import TRANSPORT_ERRORS, Endpoint, Watchdog, ask_patiently, is_refused_token
from foresee.store.rpc.failures import BusyError, raise_failure, to_json

Deliver = Callable[[int, Rows], None]
"""Takes the position of a chunk in the request, and the chunk."""


class Exchange:
    """Made by `open_exchange`."""

    def __init__(
        self, endpoint: Endpoint, client: Any, opening: Opening, layout: Layout, *, next_use: bool = False
    ) -> None:
        self._address, self._layout, self._client = endpoint.address, layout, client
        self.schema = protocol.request_schema(opening.kind, layout, next_use=next_use)
        descriptor = flight.FlightDescriptor.for_command(opening.to_bytes())
        self._writer, self._reader = client.do_exchange(descriptor, endpoint.options())
        self.clean = False

    def begin(self) -> None:
        """Waits for the server's consent, then sends the schema.

        In this order: to write to a server that has refused and hung up is an error that hides what it said.
        """
        self._next_header()
        self._writer.begin(self.schema)

    def read(self, rows: Int64, versions: Int32 | None, header: dict[str, Any], receive_rows: Deliver) -> None:
        self.clean = False
        self._writer.write_with_metadata(protocol.ids_batch(self.schema, rows, versions), to_json(header))
        begin = 0
        while begin < len(rows):
            message = self._reader.read_chunk()
            if message.data is None:
                self._fail(message.app_metadata)
            receive_rows(begin, protocol.batch_rows(message.data, self._layout))
            begin += message.data.num_rows
        self.clean = True

    def write(self, batches: Iterator[tuple[Any, bool]], step: int | None) -> None:
        """Batches, each with whether it is the last; returns when the server has applied all of them."""
        self.clean = False
        for batch, last in batches:
            self._writer.write_with_metadata(batch, to_json({"last": last, "step": step}))
        self._next_header()

    def cancel(self) -> None:
        """Ends whatever is under way, from any thread."""
        self._reader.cancel()

    def close(self) -> None:
        """Says goodbye if the connection is idle; a broken one just ends. Never waits for long."""
        with suppress(*TRANSPORT_ERRORS):
            if not self.clean:
                self._reader.cancel()
            else:
                self._writer.done_writing()
        with suppress(*TRANSPORT_ERRORS):
            self._writer.close()
        self._client.close()

    def _next_header(self) -> None:
        message = self._reader.read_chunk()
        if message.data is not None:
            raise StoreError(f"server {self._address} sent rows nobody asked for; use servers of this version")
        header = json.loads(message.app_metadata.to_pybytes())
        self.clean = True
        raise_failure(header, self._address)

    def _fail(self, metadata: Any) -> None:
        self.clean = True
        raise_failure(json.loads(metadata.to_pybytes()), self._address)
        raise StoreError(f"server {self._address} ended a reply too early; use servers of this version")


def open_exchange(
    endpoint: Endpoint, opening: Opening, layout: Layout, *, deadline: float, watchdog: Watchdog
) -> Exchange:
    """A new connection. The small question first is the only way to connect under a timeout."""
    client = endpoint.client()
    exchange = None
    try:
        described = endpoint.ask(client, protocol.DESCRIBE, {}, deadline)
        hinted = described.get("takes_next_use") is True
        exchange = Exchange(endpoint, client, opening, layout, next_use=hinted)
        with watchdog.watch(deadline, exchange.cancel):
            exchange.begin()
    except BaseException:
        if exchange is None:
            client.close()
        else:
            exchange.clean = False
            exchange.close()
        raise
    return exchange


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

    def read(self, rows: Int64, receive_rows: Deliver) -> None:
        self._in_parts(protocol.READ, rows, None, lambda deadline: {}, receive_rows)

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, receive_rows: Deliver) -> None:
        def header(deadline: float) -> dict[str, Any]:
            return {"not_before": not_before, "park_seconds": PARK_SHARE * (deadline - time.monotonic())}

        self._in_parts(protocol.GUARDED, rows, versions, header, receive_rows)

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
        receive_rows: Deliver,
    ) -> None:
        """Reads in requests that the server accepts."""
        for start in range(0, len(rows), self.rows_per_request_max):
            part = slice(start, start + self.rows_per_request_max)

            def work(exchange: Exchange, deadline: float, part: slice = part) -> None:
                expected = None if versions is None else versions[part]
                offset = part.start
                exchange.read(
                    rows[part], expected, header(deadline), lambda begin, chunk: receive_rows(offset + begin, chunk)
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
        opening = Opening(
            kind=kind,
            incarnation=self._incarnation,
            run=self._run,
            worker=self._worker,
            width=dict(self.endpoint.about).get(protocol.WIDTH),
        )
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
