"""The planner behind Arrow Flight: plans one run ahead of its workers and gives each its own records.

In: a stream, how to make the header of a plan that begins at some step, and workers that ask for records (`client`).
Out: batches of records. A thread plans `AHEAD_STEPS` ahead of the farthest worker and no more, and keeps the steps that
a slower or reconnected worker may still ask for. Workers train in lockstep, so the slowest is never further behind than
a worker's queues are long; an older step is planned again from the plan's first step, which gives the same records.
A saved plan is served likewise: `records` says where the records of a header come from.

One plan is served at a time, that of the newest run. Loopback only, unless there are TLS and a token; connections that
take more than this protocol needs are ended by the `ConnectionLimiter`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from threading import Condition, Lock, Thread
from typing import Any

from pyarrow import flight

from foresee.data.batch import BatchStream
from foresee.engine.planned_step import planned_records
from foresee.engine.planner_service import client
from foresee.engine.planner_service.client import Beginning
from foresee.errors import ForeseeError, PlanError, PlanUnavailableError
from foresee.io import failpoints, logs
from foresee.io.failpoints import failpoint
from foresee.plan.format.columns import SCHEMA, batch_of
from foresee.plan.record import Header, Record
from foresee.store.rpc.connection_limiter import ConnectionLimiter, Rules
from foresee.store.rpc.failures import to_json
from foresee.store.rpc.limits import ACTION_BYTES_MAX
from foresee.store.rpc.security import Security, TokenCheck, check_address, location

_logger = logging.getLogger(__name__)

AHEAD_STEPS = 32
"""How far planning runs ahead of the farthest worker."""
CHUNK_STEPS = 8
"""Steps of one answer."""


def kept_steps(header: Header) -> int:
    """How far one worker may be behind another: two queues of `fetch_ahead_steps` and a little, and two answers."""
    return 2 * (header.fetch_ahead_steps + 2) + 2 * CHUNK_STEPS + 4


Records = Callable[[Header], Iterator[Record]]
"""Those of all workers, from a header's first step on, the same every time."""


class PlanSession:
    """Use it as a context manager, or close it. Any thread may ask."""

    def __init__(
        self, stream: BatchStream, header: Header, *, records: Records | None = None, after: PlanSession | None = None
    ) -> None:
        """`after` is a session on the same stream that is given up for this one; without `records` they are planned."""
        self.header = header
        self._records = records or partial(planned_records, stream)
        self._changed = Condition()
        self._kept: dict[int, list[Any]] = {}
        """For each kept step the batch of each worker."""
        self._asked = header.first_step
        """The farthest step that anybody has asked for."""
        self._generation = 0
        self._error: BaseException | None = None
        self._thread: Thread | None = None if after is None else after.give_up()
        with self._changed:
            self._begin(header.first_step)

    def __enter__(self) -> PlanSession:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def records(self, worker: int, step: int, *, deadline: float) -> list[Any]:
        """One worker's next batches from a step on, at least one; none if the deadline (time.monotonic) passes."""
        end = self.header.first_step + self.header.num_steps
        if not (0 <= worker < self.header.num_workers and self.header.first_step <= step < end):
            raise PlanError(
                f"step {step} of worker {worker} is not part of this plan, which has the steps "
                f"{self.header.first_step} to {end - 1} for {self.header.num_workers} workers; ask for one of these"
            )
        with self._changed:
            # All steps planned so far that are not older than this are kept: `_asked` only rises while a plan lasts.
            if step < self._asked - kept_steps(self.header):
                _logger.info("worker %d asks for step %d, which is not kept: planning again", worker, step)
                self._begin(step)
            elif step > self._asked:
                self._asked = step
                logs.at_step(step)
                self._changed.notify_all()
            self._changed.wait_for(
                lambda: step in self._kept or self._error is not None, max(0.0, deadline - time.monotonic())
            )
            if step not in self._kept and self._error is not None:
                raise self._error
            steps = range(step, step + CHUNK_STEPS)
            return [self._kept[it][worker] for it in steps if it in self._kept]

    def close(self) -> None:
        """Ends planning and all waiting."""
        if (thread := self.give_up()) is not None:
            thread.join()

    def give_up(self) -> Thread | None:
        """As `close`, without waiting for the thread, which ends at its next step."""
        with self._changed:
            self._generation += 1
            self._error = self._error or PlanUnavailableError("this plan was given up; start the workers again")
            self._changed.notify_all()
            return self._thread

    def _begin(self, asked: int) -> None:
        """Plans from the first step on, on a new thread; the one before ends at its next step."""
        self._generation += 1
        self._kept.clear()
        self._error = None
        self._asked = asked
        arguments = (self._generation, self._thread)
        self._thread = Thread(target=self._plan, args=arguments, name="foresee-plan", daemon=True)
        self._changed.notify_all()
        self._thread.start()

    def _plan(self, generation: int, before: Thread | None) -> None:
        try:
            if before is not None:
                before.join()  # one thread at a time reads the stream
            step, end = self.header.first_step, self.header.first_step + self.header.num_steps
            for records in _by_step(self._records(self.header), self.header.num_workers):
                if not self._keep(records, generation):
                    return
                step += 1
            if step < end:
                raise PlanError(f"there are batches for {step} steps, and {end} were promised; say how many there are")
        except BaseException as error:
            with self._changed:
                if generation == self._generation:
                    self._error = error
                    self._changed.notify_all()

    def _keep(self, records: list[Record], generation: int) -> bool:
        """Adds a step once there is room; False if this thread's plan is not wanted any more."""
        step, num_kept = records[0].step, kept_steps(self.header)
        batches = [batch_of(record) for record in records] if step >= self._asked - num_kept else None
        with self._changed:
            self._changed.wait_for(lambda: generation != self._generation or step < self._asked + AHEAD_STEPS)
            if generation != self._generation:
                return False
            if batches is not None:
                self._kept[step] = batches
            for old in [it for it in self._kept if it < self._asked - num_kept]:
                del self._kept[old]
            self._changed.notify_all()
        return True


def _by_step(records: Iterator[Record], num_workers: int) -> Iterator[list[Record]]:
    """Records of all workers of a step come one after another."""
    while together := list(islice(records, num_workers)):
        yield together


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
        records: Records | None = None,
    ) -> None:
        security = security or Security()
        check_address(host, security)
        self._stream, self._make_header, self._records = stream, make_header, records
        self._lock = Lock()
        self._run: str | None = None
        self._session: PlanSession | None = None
        super().__init__(
            location(host, port, security),
            tls_certificates=[(security.certificate, security.key)] if security.has_tls else None,
            middleware=None if security.token is None else {"token": TokenCheck(security.token)},
        )
        self.address = location(host, self.port, security)
        self._limiter = ConnectionLimiter(self.port, RULES)

    def do_action(self, context: Any, action: Any) -> list[bytes]:
        try:
            with self._limiter.call(context.peer(), action.body.size):
                if action.type == client.OPEN:
                    return [to_json(self._open(*client.parse_open(action.body.to_pybytes())))]
                if action.type == client.STATUS:
                    return [to_json({"address": self.address, "run": self._run})]
                raise PlanError(f"there is no action {action.type[:64]!r}; there are {client.OPEN} and {client.STATUS}")
        except Exception as error:
            raise _told(error) from None

    def do_get(self, context: Any, ticket: Any) -> Any:
        try:
            with self._limiter.call(context.peer(), len(ticket.ticket)):
                run, beginning, worker, step = client.parse_get(ticket.ticket)
                session = self._session_of(run, beginning)
                batches = session.records(worker, step, deadline=time.monotonic() + PARK_SECONDS)
                failpoint(failpoints.RECORDS_SENT)
        except Exception as error:
            raise _told(error) from None
        return flight.GeneratorStream(SCHEMA, iter(batches))

    def stop(self) -> None:
        """Ends planning and all waiting."""
        self._limiter.close()
        with self._lock:
            if self._session is not None:
                self._session.close()

    def shutdown(self) -> None:
        self._limiter.close()
        super().shutdown()

    def _open(self, run: str, beginning: Beginning) -> dict[str, Any]:
        with self._lock:
            return client.header_to_dict(self._begin_or_join(run, beginning).header)

    def _begin_or_join(self, run: str, beginning: Beginning) -> PlanSession:
        if run != self._run or self._session is None:
            header = self._make_header(beginning)
            session = PlanSession(self._stream, header, records=self._records, after=self._session)
            self._run, self._session = run, session
            logs.at_step(beginning.first_step)
            _logger.info("planning for run %.64r from step %d on", run, beginning.first_step)
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
            raise PlanUnavailableError(
                f"run {run!r} is not the one that is planned here, which is {self._run!r}; "
                "its workers were replaced by newer ones: end this one"
            )


def _told(error: Exception) -> flight.FlightServerError:
    if not isinstance(error, ForeseeError):
        _logger.error("a question of a worker failed", exc_info=error)
    else:
        _logger.info("refused: %s", error)
    return client.flight_error(error)
