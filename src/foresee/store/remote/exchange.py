"""One open connection to a server: a request, then its reply, then the next.

In: rows to ask for or to assign. Out: chunks of rows, or the news that all are applied. Used by one thread at a time.
`clean` says whether the last reply was read to its end: a connection that is not clean cannot be used again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from pyarrow import flight

from foresee.errors import StoreError
from foresee.store.contract import Int32, Int64, Layout, Rows
from foresee.store.remote import protocol
from foresee.store.remote.endpoint import TRANSPORT_ERRORS, Endpoint
from foresee.store.remote.protocol import Opening
from foresee.store.remote.watchdog import Watchdog

Deliver = Callable[[int, Rows], None]
"""Takes the position of a chunk in the request, and the chunk."""


class Exchange:
    """Made by `open_exchange`."""

    def __init__(self, endpoint: Endpoint, client: Any, opening: Opening, layout: Layout) -> None:
        self._address, self._layout, self._client = endpoint.address, layout, client
        self.schema = protocol.request_schema(opening.kind, layout)
        descriptor = flight.FlightDescriptor.for_command(opening.to_bytes())
        self._writer, self._reader = client.do_exchange(descriptor, endpoint.options())
        self.clean = False

    def begin(self) -> None:
        """Waits for the server's consent, then sends the schema.

        In this order: to write to a server that has refused and hung up is an error that hides what it said.
        """
        self._next_header()
        self._writer.begin(self.schema)

    def read(self, rows: Int64, versions: Int32 | None, header: dict[str, Any], deliver: Deliver) -> None:
        self.clean = False
        self._writer.write_with_metadata(protocol.ids_batch(self.schema, rows, versions), protocol.to_json(header))
        begin = 0
        while begin < len(rows):
            message = self._reader.read_chunk()
            if message.data is None:
                self._fail(message.app_metadata)
            deliver(begin, protocol.batch_rows(message.data, self._layout))
            begin += message.data.num_rows
        self.clean = True

    def write(self, batches: Iterator[tuple[Any, bool]], step: int | None) -> None:
        """Batches, each with whether it is the last; returns when the server has applied all of them."""
        self.clean = False
        for batch, last in batches:
            self._writer.write_with_metadata(batch, protocol.to_json({"last": last, "step": step}))
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
        protocol.raise_failure(header, self._address)

    def _fail(self, metadata: Any) -> None:
        self.clean = True
        protocol.raise_failure(json.loads(metadata.to_pybytes()), self._address)
        raise StoreError(f"server {self._address} ended a reply too early; use servers of this version")


def open_exchange(
    endpoint: Endpoint, opening: Opening, layout: Layout, *, deadline: float, watchdog: Watchdog
) -> Exchange:
    """A new connection. The small question first is the only way to connect under a timeout."""
    client = endpoint.client()
    exchange = None
    try:
        endpoint.ask(client, protocol.DESCRIBE, {}, deadline)
        exchange = Exchange(endpoint, client, opening, layout)
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
