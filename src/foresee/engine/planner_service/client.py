"""A worker's records from the planner, in step order, whatever happens to the connection.

In: the planner's address, the name of the run, and the header that this worker expects. Out: records, each checked
against the header as one from a file would be. A connection that breaks is opened again, also to a planner that was
started again: it plans the same. Every wait has a deadline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from pyarrow import flight

from foresee.engine.plan_columns import record_of
from foresee.engine.planner_service import protocol
from foresee.engine.planner_service.protocol import Beginning
from foresee.errors import PlanError
from foresee.plan.record import Header, Record
from foresee.store.remote.endpoint import TRANSPORT_ERRORS, Endpoint, is_refused_token

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
                raise PlanError(
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
                protocol.raise_failure(error)
                self.close()
                waited = time.monotonic() - begun
                if waited > seconds or is_refused_token(error):
                    raise self._endpoint.sentence(error, "the plan", waited) from error
                if not told:
                    tell()
                    told = True
                time.sleep(PAUSE_SECONDS)

    def _open_once(self) -> None:
        content = protocol.to_json({"run": self._run, **asdict(Beginning.of(self._header))})
        results = self._client.do_action(
            flight.Action(protocol.OPEN, content), self._endpoint.options(CALL_SECONDS)
        )
        found = protocol.header_from_dict(json.loads(next(iter(results)).body.to_pybytes()))
        if found != self._header:
            raise PlanError(
                f"planner {self._endpoint.address} plans {_difference(found, self._header)}; "
                "start planner and workers with the same run file and the same log"
            )

    def _get_once(self, step: int) -> list[Any]:
        asked = {"run": self._run, **asdict(Beginning.of(self._header)), "worker": self._worker, "step": step}
        reader = self._client.do_get(flight.Ticket(protocol.to_json(asked)), self._endpoint.options(CALL_SECONDS))
        return list(reader.read_all().to_batches())


def _difference(found: Header, wanted: Header) -> str:
    theirs, ours = protocol.header_to_dict(found), protocol.header_to_dict(wanted)
    name = next(name for name in ours if theirs[name] != ours[name])
    return f"with {name} {theirs[name]!r} where this worker has {ours[name]!r}"
