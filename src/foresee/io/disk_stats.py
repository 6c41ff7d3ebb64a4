"""What a process has read from a disk and written to it, adding up: bytes, requests, time, and how many at once.

In: one call for each batch of requests, which takes two clocks and a few additions; a single request is never looked
at. Out: a `DiskCounts`, plain numbers that only rise, which go into a run's recording and a server's status. Through a
mapping the system reads on its own, so there each row that is copied counts as a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

DiskFigures = dict[str, Any]
"""The counts of one disk by name, and the way in which it is used."""


@dataclass(slots=True)
class Moved:
    """In one direction."""

    bytes: int = 0
    requests: int = 0
    seconds: float = 0.0
    """In which there was at least one request."""
    processor_seconds: float = 0.0
    in_flight_seconds: float = 0.0
    """Times how many there were at once: over `seconds`, the mean depth of the queue."""

    def add(self, num_bytes: int, requests: int, at_once: int, begun: float, processor_seconds: float) -> None:
        seconds = time.perf_counter() - begun
        self.bytes += num_bytes
        self.requests += requests
        self.seconds += seconds
        self.processor_seconds += processor_seconds
        self.in_flight_seconds += seconds * min(requests, at_once)

    def copied(
        self,
        run: Callable[[Callable[[int, int], None], int], None],
        copy: Callable[[int, int], None],
        num_rows: int,
        row_bytes: int,
    ) -> None:
        """Calls run(copy, num_rows), which copies rows out of a mapping, by threads of its own or none."""
        spent: list[float] = []

        def timed(begin: int, end: int) -> None:
            before = time.thread_time()
            copy(begin, end)
            spent.append(time.thread_time() - before)

        begun = time.perf_counter()
        run(timed, num_rows)
        self.add(num_rows * row_bytes, num_rows, 1, begun, sum(spent))


@dataclass(slots=True)
class DiskCounts:
    """One table folder."""

    way: str
    read: Moved = field(default_factory=Moved)
    written: Moved = field(default_factory=Moved)
    syncs: int = 0
    sync_seconds: float = 0.0

    def figures(self) -> DiskFigures:
        """As they are now, flat: read_bytes, written_requests, and so on."""
        found: DiskFigures = {"way": self.way, "syncs": self.syncs, "sync_seconds": round(self.sync_seconds, 6)}
        for name, moved in (("read", self.read), ("written", self.written)):
            for key, value in asdict(moved).items():
                found[f"{name}_{key}"] = round(value, 6) if isinstance(value, float) else value
        return found


def since(now: list[DiskFigures], before: list[DiskFigures]) -> list[DiskFigures]:
    """What came between; nothing if nobody said what was before. A disk that counts from 0 again, because its server
    was started anew, counts from there."""
    if len(before) != len(now):
        return []
    found = []
    for one, old in zip(now, before, strict=True):
        again = one["read_requests"] < old["read_requests"] or one["written_requests"] < old["written_requests"]
        found.append(
            {name: value if again or name == "way" else _less(value, old[name]) for name, value in one.items()}
        )
    return found


def _less(value: float, old: float) -> float:
    return round(value - old, 6) if isinstance(value, float) else value - old
