"""What a worker and the planner say to each other.

    action `open`    {run, first_step, planned_from}
                                         →  the header of the plan; a new run name begins a new plan at its first step,
                                            or enters there one that began at `planned_from` (see plan.entry)
    action `status`  {}                  →  what is served, for a person or a monitor
    get              {run, first_step, planned_from, worker, step}
                                         →  records of this worker from the step on, as in a plan file; none if none
                                            are ready yet: then the worker asks again

A run is one start of all workers. Whoever still asks for an older one is refused. Errors of ours travel as JSON beside
the Flight error, so that the worker raises the same sentence. Nothing is ever executed or unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

from pyarrow import flight

from foresee import documents
from foresee.errors import ConfigError, DataError, ForeseeError, PlanError, StoreError
from foresee.plan.record import Header

OPEN, STATUS = "open", "status"
QUESTION_BYTES_MAX = 1 << 16
RUN_CHARACTERS_MAX = 256
_ERRORS: dict[str, type[ForeseeError]] = {
    kind.__name__: kind for kind in (PlanError, DataError, ConfigError, StoreError)
}


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where workers begin, and where the plan did that they follow."""

    first_step: int
    planned_from: int | None = None

    @classmethod
    def of(cls, header: Header) -> Beginning:
        begun = header.parameters.get("planned_from")
        return cls(header.first_step, None if begun is None else int(begun))


def to_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def parse_open(body: bytes) -> tuple[str, Beginning]:
    """Run and beginning of an `open`; a PlanError for anything else."""
    with _refused():
        content = documents.parse_object(_short(body))
        return documents.text_of(content, "run", RUN_CHARACTERS_MAX), _beginning(content)


def parse_get(ticket: bytes) -> tuple[str, Beginning, int, int]:
    """Run, beginning, worker and step of a `get`; a PlanError for anything else."""
    with _refused():
        content = documents.parse_object(_short(ticket))
        run, beginning = documents.text_of(content, "run", RUN_CHARACTERS_MAX), _beginning(content)
        return run, beginning, documents.whole(content, "worker"), documents.whole(content, "step")


def _beginning(content: dict[str, Any]) -> Beginning:
    first_step = documents.whole(content, "first_step")
    if content.get("planned_from") is None:
        return Beginning(first_step)
    return Beginning(first_step, documents.whole(content, "planned_from", high=first_step))


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
    return asdict(header)


def header_from_dict(content: dict[str, Any]) -> Header:
    return Header(**{field.name: content[field.name] for field in fields(Header)})


def flight_error(error: BaseException) -> flight.FlightServerError:
    """How an error travels. What is not ours is named, but its inside stays at home."""
    kind = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), None)
    sentence = str(error) if kind else f"the planner failed with {type(error).__name__}; see its output for the cause"
    return flight.FlightServerError(sentence, to_json({"error": kind or PlanError.__name__, "sentence": sentence}))


def raise_failure(error: BaseException) -> None:
    """Raises the error that travelled, if one of ours did."""
    extra = getattr(error, "extra_info", b"")
    try:
        content = json.loads(extra)
        kind = _ERRORS[content["error"]]
    except (ValueError, KeyError, TypeError):
        return
    raise kind(content["sentence"]) from None
