"""Who has time waits while something urgent has the link.

From the moment a step's row gradients are there until its update is over, the link belongs to what the next step waits
for: critical rows and dense gradients. Fetches, write-backs and the background exchange begin before or after, while
the model computes and the link is idle. Only beginnings wait, and never longer than `PATIENCE_SECONDS`: a gate orders,
it guards nothing.
"""

from __future__ import annotations

from threading import Event

PATIENCE_SECONDS = 1.0


class Gate:
    """Open at first. Any thread may wait; the one that trains closes and opens."""

    def __init__(self) -> None:
        self._is_open = Event()
        self._is_open.set()

    def close(self) -> None:
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def wait(self) -> None:
        self._is_open.wait(PATIENCE_SECONDS)
