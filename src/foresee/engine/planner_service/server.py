"""The planner behind Arrow Flight: workers ask, each for its own records.

In: a stream, and how to make the header of a plan that begins at some step. Out: records (see `protocol`). One plan is
served at a time, that of the newest run. Loopback only, unless there are TLS and a token; connections that take more
than a question of this protocol needs are ended at the `door`.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from threading import Lock
from typing import Any

from pyarrow import flight

from foresee.data.batch import BatchStream
from foresee.engine.plan_columns import SCHEMA
from foresee.engine.planner_service import protocol
from foresee.engine.planner_service.protocol import Beginning
from foresee.engine.planner_service.session import PlanSession
from foresee.errors import ForeseeError, PlanError
from foresee.plan.record import Header
from foresee.store import points
from foresee.store.points import reach
from foresee.store.server.door import Door, Rules
from foresee.store.server.limits import ACTION_BYTES_MAX
from foresee.store.server.security import Security, TokenCheck, check_address, location

CONNECTIONS_MAX = 1024
RULES = Rules(
    connections_max=CONNECTIONS_MAX,
    unread_bytes_max=4 * ACTION_BYTES_MAX,
    unread_total_bytes_max=CONNECTIONS_MAX * ACTION_BYTES_MAX,
)
"""All that workers send are short questions."""
PARK_SECONDS = 5.0
"""A worker whose records are not ready is answered after this time, and asks again."""


class PlannerServer(flight.FlightServerBase):  # type: ignore[misc]
    """Listens from the moment it is made."""

    def __init__(
        self,
        stream: BatchStream,
        make_header: Callable[[Beginning], Header],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        security: Security | None = None,
    ) -> None:
        security = security or Security()
        check_address(host, security)
        self._stream, self._make_header = stream, make_header
        self._lock = Lock()
        self._run: str | None = None
        self._session: PlanSession | None = None
        super().__init__(
            location(host, port, security),
            tls_certificates=[(security.certificate, security.key)] if security.has_tls else None,
            middleware=None if security.token is None else {"token": TokenCheck(security.token)},
        )
        self.address = location(host, self.port, security)
        self._door = Door(self.port, RULES)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        try:
            with self._door.call(context.peer(), action.body.size):
                if action.type == protocol.OPEN:
                    return [protocol.to_json(self._open(*protocol.parse_open(action.body.to_pybytes())))]
                if action.type == protocol.STATUS:
                    return [protocol.to_json({"address": self.address, "run": self._run})]
                raise PlanError(
                    f"there is no action {action.type[:64]!r}; there are {protocol.OPEN} and {protocol.STATUS}"
                )
        except Exception as error:
            raise _told(error) from None

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            with self._door.call(context.peer(), len(ticket.ticket)):
                run, beginning, worker, step = protocol.parse_get(ticket.ticket)
                session = self._session_of(run, beginning)
                batches = session.records(worker, step, deadline=time.monotonic() + PARK_SECONDS)
                reach(points.RECORDS_SENT)
        except Exception as error:
            raise _told(error) from None
        return flight.GeneratorStream(SCHEMA, iter(batches))

    def stop(self) -> None:
        """Ends planning and all waiting."""
        self._door.close()
        with self._lock:
            if self._session is not None:
                self._session.close()

    def shutdown(self) -> None:
        self._door.close()
        super().shutdown()

    def _open(self, run: str, beginning: Beginning) -> dict[str, Any]:
        with self._lock:
            return protocol.header_to_dict(self._begin_or_join(run, beginning).header)

    def _begin_or_join(self, run: str, beginning: Beginning) -> PlanSession:
        if run != self._run or self._session is None:
            session = PlanSession(self._stream, self._make_header(beginning), after=self._session)
            self._run, self._session = run, session
        elif (here := Beginning.of(self._session.header)) != beginning:
            raise PlanError(
                f"run {run!r} begins at step {here.first_step} here, this worker says {beginning.first_step}; "
                "start all workers with the same servers"
            )
        return self._session

    def _session_of(self, run: str, beginning: Beginning) -> PlanSession:
        with self._lock:
            # A planner that was started again knows of no run yet: the worker's question is enough to go on.
            if self._session is None or run == self._run:
                return self._begin_or_join(run, beginning)
            raise PlanError(
                f"run {run!r} is not the one that is planned here, which is {self._run!r}; "
                "its workers were replaced by newer ones: end this one"
            )


def _told(error: Exception) -> flight.FlightServerError:
    if not isinstance(error, ForeseeError):
        traceback.print_exception(error, file=sys.stderr)
    return protocol.flight_error(error)
