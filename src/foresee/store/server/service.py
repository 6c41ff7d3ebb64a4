"""The Flight face of a shard: connections in, requests to `RowService`, replies out.

In: exchanges (see remote.protocol) and actions. Out: rows and headers. Every failure of a request is answered on its
connection with a sentence, and the connection goes on; only what breaks the protocol ends it. Each connection has a
thread of its own, so a parked read holds up nobody else.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from pyarrow import flight

from foresee.errors import ForeseeError, StoreError
from foresee.store.contract import Rows
from foresee.store.remote import protocol
from foresee.store.remote.protocol import BusyError, Opening
from foresee.store.server.applied import Applied
from foresee.store.server.counters import Counters
from foresee.store.server.limits import Admission, Limits
from foresee.store.server.rows import Guard, RowService
from foresee.store.server.security import Security, TokenCheck, check_address
from foresee.store.server.shard import Shard
from foresee.store.server.status import memory_bytes


class EmbeddingServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from the moment it is made."""

    def __init__(
        self,
        shard: Shard,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        security: Security | None = None,
        limits: Limits | None = None,
    ) -> None:
        security = security or Security()
        check_address(host, security)
        self._shard = shard
        self._applied, self._counters = Applied(shard.committed_step), Counters()
        self._rows = RowService(shard, self._applied, self._counters)
        self._admission = Admission(limits or Limits())
        self._incarnation, self._started = uuid.uuid4().hex, time.monotonic()
        self._reply_schema = protocol.rows_schema(shard.layout)
        self.address = f"{'grpc+tls' if security.has_tls else 'grpc'}://{host}"
        super().__init__(
            f"{self.address}:{port}",
            tls_certificates=[(security.certificate, security.key)] if security.has_tls else None,
            middleware=None if security.token is None else {"token": TokenCheck(security.token)},
        )
        self.address += f":{self.port}"

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """One connection, until its client closes it."""
        writer.begin(self._reply_schema)
        try:
            opening = Opening.from_bytes(descriptor.command)
            with self._admission.connection():
                self._check_opening(opening)
                _send(writer, {"open": True})
                serve = {protocol.READ: self._serve_read, protocol.GUARDED: self._serve_read,
                         protocol.WRITE: self._serve_write}[opening.kind]  # fmt: skip
                serve(opening, context, reader, writer)
        except (BusyError, ForeseeError, ValueError, TypeError, KeyError) as error:
            self._refuse(writer, error)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        """JSON in, JSON out; an error of ours is an answer, too."""
        actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            protocol.DESCRIBE: self._describe, protocol.JOIN: self._join,
            protocol.COMMIT: self._commit, protocol.STATUS: self._status,
        }  # fmt: skip
        try:
            if action.type not in actions:
                raise StoreError(f"there is no action {action.type!r}; there are {', '.join(actions)}")
            content = json.loads(action.body.to_pybytes() or b"{}")
            answer = actions[action.type](content)
        except Exception as error:
            answer = self._failure(error)
        return [protocol.to_json(answer)]

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        return [
            (protocol.DESCRIBE, "layout, shard and committed step"),
            (protocol.JOIN, "a worker joins a run"),
            (protocol.COMMIT, "make everything written so far durable as the state after a number of steps"),
            (protocol.STATUS, "health and counters"),
        ]

    def stop(self, timeout_seconds: float) -> bool:
        """Refuses new requests, ends parked reads, waits for the others and closes the store; False if some hang."""
        self._applied.stop()
        finished = self._admission.close(timeout_seconds)
        self._shard.close()
        return finished

    def _check_opening(self, opening: Opening) -> None:
        if opening.incarnation != self._incarnation:
            raise StoreError(
                f"it was started again and holds the state after step {self._shard.committed_step}; "
                "resume the run from there"
            )
        if opening.run is not None:
            self._applied.check_run(opening.run)

    def _serve_read(self, opening: Opening, context: Any, reader: Any, writer: Any) -> None:
        for batch, header in _messages(reader):
            rows, expected = protocol.batch_ids(batch)
            self._counters.add(requests=1)
            try:
                self._admission.limits.check_rows(len(rows))
                chunk = protocol.chunk_rows(len(rows), self._shard.layout)
                held = batch.nbytes + min(len(rows), chunk) * self._shard.layout.row_bytes
                with self._admission.request(held):
                    guard = None
                    if expected is not None:
                        self._applied.check_run(opening.run)
                        guard = Guard(
                            expected=expected,
                            not_before=int(header["not_before"]),
                            deadline=time.monotonic() + float(header["park_seconds"]),
                            is_gone=context.is_cancelled,
                        )
                    # A copy: kernels are compiled for arrays of one's own, and ids are few bytes.
                    self._reply(np.array(rows), chunk, guard, writer)
            except flight.FlightError:
                raise  # the client is gone
            except Exception as error:
                self._refuse(writer, error)

    def _reply(self, rows: Any, chunk: int, guard: Guard | None, writer: Any) -> None:
        for begin in range(0, len(rows), chunk):
            piece = rows[begin : begin + chunk]
            batch = protocol.empty_batch(self._reply_schema, len(piece))
            out = protocol.batch_rows(batch, self._shard.layout)
            if guard is None:
                self._rows.read(piece, out)
            else:
                expected = guard.expected[begin : begin + chunk]
                part = Guard(
                    expected=expected, not_before=guard.not_before, deadline=guard.deadline, is_gone=guard.is_gone
                )
                self._rows.read_guarded(piece, part, out)
            writer.write_batch(batch)

    def _serve_write(self, opening: Opening, context: Any, reader: Any, writer: Any) -> None:
        """Rows are assigned chunk by chunk; the last chunk is answered, with the first thing that went wrong if any."""
        failure: Exception | None = None
        for batch, header in _messages(reader):
            try:
                if failure is None:
                    self._admission.limits.check_rows(batch.num_rows)
                    with self._admission.request(batch.nbytes):
                        self._write(opening, batch, header)
            except Exception as error:
                failure = error
            if header["last"]:
                self._counters.add(requests=1)
                if failure is None:
                    _send(writer, {"applied": True})
                else:
                    self._refuse(writer, failure)
                failure = None

    def _write(self, opening: Opening, batch: Any, header: dict[str, Any]) -> None:
        if header["step"] is not None:
            self._applied.check_run(opening.run)
        if batch.num_rows:
            source = protocol.batch_rows(batch, self._shard.layout, first_column=1)
            rows, _ = protocol.batch_ids(batch.select([0]))
            own = Rows(np.array(source.values), np.array(source.state), np.array(source.versions))
            self._rows.write(np.array(rows), own)
        if header["last"] and header["step"] is not None:
            # Only now, when every row of the step is in the store.
            self._applied.raise_to(opening.run, opening.worker or 0, int(header["step"]))

    def _describe(self, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocol": protocol.PROTOCOL_VERSION,
            "incarnation": self._incarnation,
            "layout": protocol.layout_to_dict(self._shard.layout),
            "shard": self._shard.share.shard,
            "num_shards": self._shard.share.num_shards,
            "committed_step": self._shard.committed_step,
            "rows_per_request_max": self._admission.limits.rows_per_request_max,
        }

    def _join(self, content: dict[str, Any]) -> dict[str, Any]:
        self._applied.join(
            str(content["run"]), int(content["worker"]), int(content["num_workers"]), content.get("first_step")
        )
        return {"joined": True}

    def _commit(self, content: dict[str, Any]) -> dict[str, Any]:
        if content.get("run") is not None:
            self._applied.check_run(content["run"])
        with self._admission.request(0):
            return {"committed_step": self._rows.commit(int(content["step"]))}

    def _status(self, content: dict[str, Any]) -> dict[str, Any]:
        return {
            "address": self.address,
            "shard": self._shard.share.shard,
            "num_shards": self._shard.share.num_shards,
            "num_rows": self._shard.num_rows,
            "row_bytes": self._shard.layout.row_bytes,
            "committed_step": self._shard.committed_step,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "memory_bytes": memory_bytes(),
            "connections": self._admission.connections,
            "requests_now": self._admission.requests_now,
            "bytes_in_flight": self._admission.bytes_in_flight,
            "limits": asdict(self._admission.limits),
            "run": self._applied.run,
            "watermarks": list(self._applied.watermarks),
            **asdict(self._counters.snapshot()),
        }

    def _refuse(self, writer: Any, error: BaseException) -> None:
        _send(writer, self._failure(error))

    def _failure(self, error: BaseException) -> dict[str, Any]:
        self._counters.add(refused=1)
        if not isinstance(error, (BusyError, ForeseeError)):
            traceback.print_exception(error, file=sys.stderr)
        return protocol.failure_header(error)


def _messages(reader: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Batches and headers until the client closes the connection or goes away."""
    while True:
        try:
            message = reader.read_chunk()
        except (StopIteration, flight.FlightError):
            return
        if message.data is None or message.app_metadata is None:
            raise StoreError("a request without rows or header came; use a client of this version")
        yield message.data, json.loads(message.app_metadata.to_pybytes())


def _send(writer: Any, header: dict[str, Any]) -> None:
    writer.write_metadata(protocol.to_json(header))
