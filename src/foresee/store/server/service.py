"""The Flight face of a shard: connections in, requests to `RowService`, replies out.

In: exchanges (see remote.protocol) and actions. Out: rows and headers. Every failure of a request is answered on its
connection with a sentence, and the connection goes on; only what breaks the protocol ends it. Each connection has a
thread of its own, so a parked read holds up nobody else. What a client may send is in `requests`, how much in `limits`
and `connection_limiter` of `rpc`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from foresee.errors import ForeseeError, StoreError, StoreUnavailableError
from foresee.io import logs
from foresee.store.commits import Message
from foresee.store.layout import layout_to_dict
from foresee.store.remote import protocol
from foresee.store.remote.protocol import Opening
from foresee.store.rpc.connection_limiter import Connection, ConnectionLimiter
from foresee.store.rpc.failures import BusyError, failure_header, to_json
from foresee.store.rpc.limits import Admission, Limits
from foresee.store.rpc.security import Security, TokenCheck, check_address, location
from foresee.store.server import requests
from foresee.store.server.applied import Applied
from foresee.store.server.rows import Guard, RowService
from foresee.store.server.shard import Shard
from foresee.store.server.status import Counters, memory_bytes

_logger = logging.getLogger(__name__)

Messages = Iterator[tuple[Any, dict[str, Any]]]
"""Batches of requests, each with its header."""


class _Served:
    """The shard of the rows of one width, and what was applied there."""

    def __init__(self, shard: Shard, counters: Counters, incarnation: str) -> None:
        self.shard, self.layout = shard, shard.layout
        self.applied = Applied(shard.committed_step)
        self.rows = RowService(shard, self.applied, counters, incarnation=incarnation)
        self.reply_schema = protocol.rows_schema(shard.layout)


class EmbeddingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from the moment it is made. Shards of several widths are a store each, which a question names."""

    def __init__(
        self,
        *shards: Shard,
        host: str = "127.0.0.1",
        port: int = 0,
        security: Security | None = None,
        limits: Limits | None = None,
    ) -> None:
        security = security or Security()
        check_address(host, security)
        self._counters = Counters()
        self._incarnation, self._started = uuid.uuid4().hex, time.monotonic()
        self._served = {it.layout.width: _Served(it, self._counters, self._incarnation) for it in shards}
        self._first = next(iter(self._served.values()))
        self._admission = Admission(limits or Limits())
        super().__init__(
            location(host, port, security),
            tls_certificates=[(security.certificate, security.key)] if security.has_tls else None,
            middleware=None if security.token is None else {"token": TokenCheck(security.token)},
        )
        self.address = location(host, self.port, security)
        rules = requests.connection_rules(self._admission.limits, *(shard.layout for shard in shards))
        self._limiter = ConnectionLimiter(self.port, rules)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One connection, until its client closes it."""
        with self._limiter.call(context.peer(), len(descriptor.command or b"")) as connection:
            served, begun = self._first, False
            try:
                opening = requests.parse_opening(descriptor.command)
                served = self._about(opening.width)
                writer.begin(served.reply_schema)
                begun = True
                with self._admission.connection():
                    self._check_opening(served, opening)
                    _send(writer, {"open": True})
                    serve = self._serve_write if opening.kind == protocol.WRITE else self._serve_read
                    serve(served, opening, context, self._messages(reader, connection), writer, connection)
            except flight.FlightError:
                raise  # the client is gone
            except Exception as error:
                if not begun:
                    writer.begin(served.reply_schema)
                self._refuse(writer, error)

    def _about(self, width: int | None) -> _Served:
        """The rows that a question is about."""
        if width is None:
            return self._first
        if width not in self._served:
            held = ", ".join(map(str, self._served))
            raise StoreError(f"there are no rows of width {width} here, only of {held}; start it with the same layout")
        return self._served[width]

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """JSON in, JSON out; an error of ours is an answer, too."""
        actions: dict[str, Callable[[_Served, dict[str, Any]], dict[str, Any]]] = {
            protocol.DESCRIBE: self._describe,
            protocol.JOIN: self._join,
            protocol.COMMIT: self._commit,
            protocol.STATUS: self._status,
            protocol.OPEN_AT: self._open_at,
            protocol.PREPARE: self._prepare,
            protocol.SETTLE: self._settle,
        }
        with self._limiter.call(context.peer(), action.body.size):
            try:
                if action.type not in actions:
                    raise StoreError(f"there is no action {action.type[:64]!r}; there are {', '.join(actions)}")
                with self._admission.action():
                    content = requests.parse_content(action.body.to_pybytes())
                    answer = actions[action.type](self._about(requests.parse_width(content)), content)
            except Exception as error:
                answer = self._failure(error)
        return [to_json(answer)]

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [
            (protocol.DESCRIBE, "layout, shard and committed step"),
            (protocol.JOIN, "a worker joins a run"),
            (protocol.COMMIT, "make everything written so far durable as the state after a number of steps"),
            (protocol.OPEN_AT, "a run begins at a commit; everything after it is given up"),
            (protocol.PREPARE, "the first phase of a commit of several servers: seal, and keep the commit before"),
            (protocol.SETTLE, "the second phase: the prepared commit stands"),
            (protocol.STATUS, "health and counters"),
        ]

    def stop(self, timeout_seconds: float) -> bool:
        """Refuses new requests, ends parked reads, waits for the others and closes the store; False if some hang."""
        for served in self._served.values():
            served.applied.stop()
        finished = self._admission.close(timeout_seconds)
        for served in self._served.values():
            served.shard.close()
        self._limiter.close()
        return finished

    def shutdown(self) -> None:
        self._limiter.close()
        super().shutdown()

    def _check_opening(self, served: _Served, opening: Opening) -> None:
        if opening.incarnation != self._incarnation:
            raise StoreUnavailableError(
                f"it was started again and holds the state after step {served.shard.committed_step}; "
                "resume the run from there"
            )
        if opening.run is not None:
            served.applied.check_run(opening.run)
            served.applied.check_worker(opening.worker or 0)

    def _serve_read(
        self, served: _Served, opening: Opening, context: Any, messages: Messages, writer: Any, connection: Connection
    ) -> None:
        for batch, header in messages:
            self._counters.add(requests=1)
            try:
                self._admission.limits.check_rows(batch.num_rows)
                with self._admission.request(requests.read_bytes(batch.num_rows, served.layout)):
                    rows, expected = requests.ids_of(batch, opening.kind, served.layout)
                    guard = None
                    if expected is not None:
                        served.applied.check_run(opening.run)
                        not_before, park_seconds = requests.parse_guard(header)
                        guard = Guard(
                            expected=expected,
                            not_before=not_before,
                            deadline=time.monotonic() + park_seconds,
                            is_gone=context.is_cancelled,
                            run=opening.run,
                        )
                    self._reply(served, rows, guard, writer, connection)
            except flight.FlightError:
                raise  # the client is gone
            except Exception as error:
                self._refuse(writer, error)

    def _reply(self, served: _Served, rows: Any, guard: Guard | None, writer: Any, connection: Connection) -> None:
        chunk = protocol.chunk_rows(len(rows), served.layout)
        for begin in range(0, len(rows), chunk):
            piece = rows[begin : begin + chunk]
            batch, out = protocol.empty_chunk(served.reply_schema, len(piece), served.layout)
            if guard is None:
                served.rows.read(piece, out)
            else:
                expected = guard.expected[begin : begin + chunk]
                served.rows.read_guarded(piece, replace(guard, expected=expected), out)
            with self._limiter.sending(connection):
                writer.write_batch(batch)

    def _serve_write(
        self, served: _Served, opening: Opening, context: Any, messages: Messages, writer: Any, connection: Connection
    ) -> None:
        """Rows are assigned chunk by chunk; the last chunk is answered, with the first thing that went wrong if any."""
        failure: Exception | None = None
        for batch, header in messages:
            last, step = requests.parse_write_header(header)
            try:
                if failure is None:
                    self._admission.limits.check_rows(batch.num_rows)
                    with self._admission.request(requests.write_bytes(batch.nbytes)):
                        self._write(served, opening, batch, last, step)
            except Exception as error:
                failure = error
            if last:
                self._counters.add(requests=1)
                if failure is None:
                    _send(writer, {"applied": True})
                else:
                    self._refuse(writer, failure)
                failure = None

    def _write(self, served: _Served, opening: Opening, batch: Any, last: bool, step: int | None) -> None:
        if step is not None:
            served.applied.check_run(opening.run)
        rows, source, next_use = requests.rows_of(batch, served.layout)
        if len(rows):
            served.rows.write(rows, source, run=None if step is None else opening.run, next_use=next_use)
        if last and step is not None:
            # Only now, when every row of the step is in the store.
            served.applied.raise_to(opening.run, opening.worker or 0, step)

    def _messages(self, reader: Any, connection: Connection) -> Messages:
        """Batches and headers until the client closes the connection or goes away."""
        while True:
            try:
                message = reader.read_chunk()
            except (StopIteration, flight.FlightError):
                return
            except (pa.ArrowException, MemoryError):
                raise StoreError("a message came that is no Arrow data; use a client of this version") from None
            if message.data is None or message.app_metadata is None:
                raise StoreError("a request without rows or header came; use a client of this version")
            num_bytes = message.data.nbytes + message.app_metadata.size
            yield message.data, requests.parse_content(message.app_metadata.to_pybytes())
            # Only now: a message takes memory until the request is over, also one that is refused.
            del message
            self._limiter.read(connection, num_bytes)

    def _describe(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocol": protocol.PROTOCOL_VERSION,
            "incarnation": self._incarnation,
            "layout": layout_to_dict(served.layout),
            "shard": served.shard.share.shard,
            "num_shards": served.shard.share.num_shards,
            **protocol.part_to_dict(served.rows.part),
            "rows_per_request_max": self._admission.limits.rows_per_request_max,
            "takes_next_use": served.shard.takes_next_use,
        }

    def _join(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        joining = requests.parse_joining(content)
        served.applied.join(joining.run, joining.worker, joining.num_workers, joining.first_step, opened=joining.opened)
        _logger.info("worker %d of %d joined run %.64r", joining.worker, joining.num_workers, joining.run)
        return {"joined": True}

    def _open_at(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        message, num_workers = requests.parse_open_at(content)
        return self._obey(served, message, num_workers)

    def _prepare(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        return self._obey(served, requests.parse_prepare(content))

    def _settle(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        return self._obey(served, requests.parse_settle(content))

    def _obey(self, served: _Served, message: Message, num_workers: int = 1) -> dict[str, Any]:
        with self._admission.request(0):
            part = served.rows.obey(message, num_workers=num_workers)
        logs.at_step(served.shard.committed_step)
        _logger.info("%s of step %d carried out", type(message).__name__, message.step)
        return protocol.part_to_dict(part)

    def _commit(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        step, run = requests.parse_commit(content)
        if run is not None:
            served.applied.check_run(run)
        with self._admission.request(0):
            committed = served.rows.commit(step)
        logs.at_step(committed)
        _logger.info("committed")
        return {"committed_step": committed}

    def _status(self, served: _Served, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "address": self.address,
            "shard": served.shard.share.shard,
            "num_shards": served.shard.share.num_shards,
            "num_rows": sum(it.shard.num_rows for it in self._served.values()),
            "row_bytes": self._row_bytes,
            "committed_step": served.shard.committed_step,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "memory_bytes": memory_bytes(),
            "connections": self._admission.connections,
            "requests_now": self._admission.requests_now,
            "bytes_in_flight": self._admission.bytes_in_flight,
            "sockets": self._limiter.num_connections,
            "connections_cut": self._limiter.num_cut,
            "limits": asdict(self._admission.limits),
            "run": served.applied.run,
            "watermarks": list(served.applied.watermarks),
            "disk": next(iter(served.shard.disks()), None),
            **asdict(self._counters.snapshot()),
        }

    @property
    def _row_bytes(self) -> int:
        """Of several widths the mean over the rows."""
        shards = [it.shard for it in self._served.values()]
        num_rows = sum(it.num_rows for it in shards)
        return round(sum(it.num_rows * it.layout.row_bytes for it in shards) / num_rows)

    def _refuse(self, writer: Any, error: BaseException) -> None:
        _send(writer, self._failure(error))

    def _failure(self, error: BaseException) -> dict[str, Any]:
        self._counters.add(refused=1)
        if not isinstance(error, (BusyError, ForeseeError)):
            _logger.error("a request failed", exc_info=error)
        else:
            _logger.info("refused: %s", error)
        return failure_header(error)


def _send(writer: Any, header: dict[str, Any]) -> None:
    writer.write_metadata(to_json(header))
