"""What a server has done since it started, for a person and for a monitor.

In: events. Out: numbers that only rise, except `parked_now`. Reading them takes no lock that serving needs for long.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A snapshot."""

    requests: int = 0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    parked_now: int = 0
    """Reads that wait for write-backs at this moment."""
    parked_total: int = 0
    refused: int = 0
    """Requests answered with an error."""


class Counters:
    """Adds up `Counts`. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = asdict(Counts())

    def add(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] += amount

    @contextmanager
    def parked(self) -> Iterator[None]:
        self.add(parked_now=1, parked_total=1)
        try:
            yield
        finally:
            self.add(parked_now=-1)

    def snapshot(self) -> Counts:
        with self._lock:
            return Counts(**self._counts)
