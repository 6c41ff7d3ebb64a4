"""How long a recorded step took, and what it waited for.

In: the spans that a worker recorded (`engine/trace/tracer.py`). Out: a `MeasuredStep`, or None if that step was not
recorded in full. While the training thread waited for rows, the reading thread did something: what it did
longest is what the step waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

TRAIN, READER = "train", "reader"
MOVING = ("fill", "gather", "evict")
COMPUTING = ("begin", "forward", "backward", "dense", "compute")
BETWEEN_STEPS = ("evaluate", "commit")
Culprit = Literal["fetch", "wait_writes", "wait_plan"]


class Span(Protocol):
    """One thing that a thread did, in seconds since the run began."""

    @property
    def track(self) -> str: ...

    @property
    def what(self) -> str: ...

    @property
    def step(self) -> int: ...

    @property
    def begin(self) -> float: ...

    @property
    def end(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Seconds of one worker's step."""

    worker: int
    seconds: float
    waited_seconds: float
    """For rows."""
    waited_for: Culprit | None
    """What the reader did meanwhile: it read, it waited for write-backs, or for the plan."""
    moving_seconds: float
    """Rows into and out of slots."""
    computing_seconds: float
    update_seconds: float
    exchange_seconds: float
    """Rows and gradients that the next step needs."""
    fetch_seconds: float | None
    there_before_seconds: float | None
    """How long before the step began its rows had been read; below 0: after it began."""


def measured_step(spans: Sequence[Span], *, step: int, worker: int) -> MeasuredStep | None:
    """One worker's step, if the run recorded all of it."""
    own = [span for span in spans if span.step == step and span.track == TRAIN and span.what not in BETWEEN_STEPS]
    waits = [span for span in own if span.what == "wait_rows"]
    if not waits or not _ends(own):
        return None
    reading = [span for span in spans if span.step == step and span.track == READER]
    fetch = next((span for span in reading if span.what == "fetch"), None)
    begun = min(span.begin for span in own)

    def total(*activities: str) -> float:
        return sum(span.end - span.begin for span in own if span.what in activities)

    return MeasuredStep(
        worker=worker,
        seconds=max(span.end for span in own) - begun,
        waited_seconds=total("wait_rows"),
        waited_for=_culprit(waits, reading),
        moving_seconds=total(*MOVING),
        computing_seconds=total(*COMPUTING),
        update_seconds=total("update"),
        exchange_seconds=total("exchange", "background_wait"),
        fetch_seconds=None if fetch is None else fetch.end - fetch.begin,
        there_before_seconds=None if fetch is None else begun - fetch.end,
    )


def _ends(own: Sequence[Span]) -> bool:
    """Whether the update was recorded, or, if it went on beside backward, the wait for it."""
    computed = [span.end for span in own if span.what == "compute"]
    return any(
        span.what == "update" or (span.what == "exchange" and computed and span.begin >= min(computed)) for span in own
    )


def _culprit(waits: Sequence[Span], reading: Sequence[Span]) -> Culprit | None:
    overlaps: dict[Culprit, float] = {}
    culprits: tuple[Culprit, ...] = ("fetch", "wait_writes", "wait_plan")
    for culprit in culprits:
        overlaps[culprit] = sum(
            max(0.0, min(wait.end, span.end) - max(wait.begin, span.begin))
            for wait in waits
            for span in reading
            if span.what == culprit
        )
    worst = max(overlaps, key=lambda culprit: overlaps[culprit])
    return worst if overlaps[worst] > 0 else None
