"""What a worker and the planner say to each other, and the worker's side of it: its records in step order.

    action `open`    {run, first_step, planned_from}
                                         →  the header of the plan; a new run name begins a new plan at its first step,
                                            or resumes there one that began at `planned_from` (see plan.resumed)
    action `status`  {}                  →  what is served, for a person or a monitor
    get              {run, first_step, planned_from, worker, step}
                                         →  records of this worker from the step on, as in a plan file; none if none
                                            are ready yet: then the worker asks again

A run is one start of all workers. Requests for an older one are refused. Our errors travel as JSON beside the Flight
error, so that the worker raises the same sentence. Every record is checked against the expected header. A broken
connection is opened again, also to a restarted planner, which plans the same. Every wait has a deadline.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pyarrow import flight

from foresee.errors import PlanError, PlanUnavailableError
from foresee.io import bounded_json
from foresee.plan.format.columns import record_of
from foresee.plan.record import Header, Record
from foresee.store.rpc import failures
from foresee.store.rpc.endpoint import TRANSPORT_ERRORS, Endpoint, is_refused_token

_logger = logging.getLogger(__name__)

OPEN, STATUS = "open", "status"
QUESTION_BYTES_MAX = 1 << 16
RUN_CHARACTERS_MAX = 256


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where workers begin, and where the plan did that they follow."""

    first_step: int
    planned_from: int | None = None

    @classmethod
    def of(cls, header: Header) -> Beginning:
        return cls(header.first_step, header.options.planned_from)


def parse_open(body: bytes) -> tuple[str, Beginning]:
    """Run and beginning of an `open`; a PlanError for anything else."""
    with _refused():
        content = bounded_json.parse_object(_short(body))
        return bounded_json.text_of(content, "run", RUN_CHARACTERS_MAX), _beginning(content)


def parse_get(ticket: bytes) -> tuple[str, Beginning, int, int]:
    """Run, beginning, worker and step of a `get`; a PlanError for anything else."""
    with _refused():
        content = bounded_json.parse_object(_short(ticket))
        run, beginning = bounded_json.text_of(content, "run", RUN_CHARACTERS_MAX), _beginning(content)
        return run, beginning, bounded_json.whole(content, "worker"), bounded_json.whole(content, "step")


def _beginning(content: dict[str, Any]) -> Beginning:
    first_step = bounded_json.whole(content, "first_step")
    if content.get("planned_from") is None:
        return Beginning(first_step)
    return Beginning(first_step, bounded_json.whole(content, "planned_from", high=first_step))


def _short(body: bytes) -> bytes:
    if len(body) > QUESTION_BYTES_MAX:
        raise ValueError(f"it has {len(body):,} bytes, more than {QUESTION_BYTES_MAX:,}")
    return body


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise PlanError(f"this question cannot be understood: {error}; use workers of this version") from None


def header_to_dict(header: Header) -> dict[str, Any]:
    return header.to_dict()


def header_from_dict(content: dict[str, Any]) -> Header:
    return Header.from_dict(content)


def flight_error(error: BaseException) -> flight.FlightServerError:
    """How an error of the planner travels."""
    header = failures.failure_header(error, "planner", PlanError)
    return flight.FlightServerError(header["sentence"], failures.to_json(header))


def raise_failure(error: BaseException) -> None:
    """Raises the error that travelled, if one of ours did."""
    try:
        header = bounded_json.parse_object(getattr(error, "extra_info", None) or b"")
    except ValueError:
        return
    failures.raise_failure(header, otherwise=PlanError)


DEADLINE_SECONDS = 600.0
"""For one record: planning the first window of a large log takes its time."""
CALL_SECONDS = 30.0
"""For one answer; the planner gives one after a few seconds in any case."""
RECONNECT_SECONDS = 30.0
"""How long a planner may be away before the worker gives up."""
START_SECONDS = 120.0
"""How long a planner that is started beside its workers may take until it listens: it looks at the log first."""
PAUSE_SECONDS = 0.2


class PlannerClient:
    """One worker's connection. `records` is read by one thread."""

    def __init__(self, endpoint: Endpoint, *, run: str, worker: int, header: Header) -> None:
        self._endpoint, self._run, self._worker, self._header = endpoint, run, worker, header
        self._client: Any = None

    def open(self, say: Callable[[str], None] = lambda text: None) -> None:
        """Begins the plan of this run, or joins it; refuses a planner with other settings.

        A planner that is not up yet is waited for, longer than one that was here before; `say` is told so.
        """

        def tell() -> None:
            say(f"waiting for planner {self._endpoint.address}, up to {START_SECONDS:.0f} s")

        self._patiently(self._open_once, START_SECONDS, tell)

    def records(self) -> Iterator[Record]:
        """All records of this worker."""
        step, end = self._header.first_step, self._header.first_step + self._header.num_steps
        since = time.monotonic()
        while step < end:
            batches = self._patiently(partial(self._get_once, step))
            for batch in batches:
                yield record_of(batch, self._header, step, self._worker)
                step += 1
            if batches:
                since = time.monotonic()
            elif time.monotonic() - since > DEADLINE_SECONDS:
                raise PlanUnavailableError(
                    f"planner {self._endpoint.address} gave no record for step {step} within {DEADLINE_SECONDS:.0f} s; "
                    "see whether it hangs, then resume from the last commit"
                )
        self.close()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _patiently(
        self, ask: Callable[[], Any], seconds: float = RECONNECT_SECONDS, tell: Callable[[], None] = lambda: None
    ) -> Any:
        """Asks again while the planner is away, which is told once; what it refuses is raised at once."""
        begun, told = time.monotonic(), False
        while True:
            try:
                if self._client is None:
                    self._client = self._endpoint.client()
                    self._open_once()
                return ask()
            except TRANSPORT_ERRORS as error:
                raise_failure(error)
                self.close()
                waited = time.monotonic() - begun
                if waited > seconds or is_refused_token(error):
                    raise self._endpoint.sentence(error, "the plan", waited) from error
                if not told:
                    _logger.info("planner %s is away, waiting up to %.0f s", self._endpoint.address, seconds)
                    tell()
                    told = True
                time.sleep(PAUSE_SECONDS)

    def _open_once(self) -> None:
        content = failures.to_json({"run": self._run, **asdict(Beginning.of(self._header))})
        results = self._client.do_action(flight.Action(OPEN, content), self._endpoint.options(CALL_SECONDS))
        found = header_from_dict(json.loads(next(iter(results)).body.to_pybytes()))
        if found != self._header:
            raise PlanError(
                f"planner {self._endpoint.address} plans {_difference(found, self._header)}; "
                "start planner and workers with the same run file and the same log"
            )

    def _get_once(self, step: int) -> list[Any]:
        asked = {"run": self._run, **asdict(Beginning.of(self._header)), "worker": self._worker, "step": step}
        reader = self._client.do_get(flight.Ticket(failures.to_json(asked)), self._endpoint.options(CALL_SECONDS))
        return list(reader.read_all().to_batches())


def _difference(found: Header, wanted: Header) -> str:
    theirs, ours = header_to_dict(found), header_to_dict(wanted)
    name = next(name for name in ours if theirs[name] != ours[name])
    return f"with {name} {theirs[name]!r} where this worker has {ours[name]!r}"
