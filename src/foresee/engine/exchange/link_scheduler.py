"""Who has time waits while something urgent has the link.

From the moment a step's row gradients are there until the rows of the next step have left, the link belongs to what
that step waits for: critical rows and dense gradients. Fetches, write-backs and the background exchange begin before or
after, while the model computes and the link is idle. Only beginnings wait, and never longer than `PATIENCE_SECONDS`: a
gate orders, it guards nothing.

What begins shortly before the gate closes is under way after that. So who can wait for a step begins early while it is
open, or the next time. And who only computes, and has time, does so while it is closed: then the model waits for sums.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Condition

PATIENCE_SECONDS = 1.0
EARLY_SHARE = 0.35
"""Of the time for which the gate was open the last time."""


class LinkScheduler:
    """Open at first. Any thread may wait; the one that trains closes and opens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = Condition()
        self._opened_at: float | None = clock()
        """None while it is closed."""
        self._open_seconds = math.inf
        """The last time."""

    def close(self) -> None:
        with self._changed:
            if self._opened_at is not None:
                self._open_seconds, self._opened_at = self._clock() - self._opened_at, None
                self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._opened_at = self._clock()
            self._changed.notify_all()

    def wait(self, *, for_early: bool = False) -> None:
        """Until it is open, or, for whoever has a step's time, until it has opened not long ago."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_early() if for_early else self._is_open(), PATIENCE_SECONDS)

    def wait_for_closed(self) -> None:
        """Until it is closed; at once where it never is."""
        with self._changed:
            self._changed.wait_for(lambda: self._opened_at is None or self._open_seconds == math.inf, PATIENCE_SECONDS)

    def _is_open(self) -> bool:
        return self._opened_at is not None

    def _is_early(self) -> bool:
        return self._opened_at is not None and self._clock() - self._opened_at <= EARLY_SHARE * self._open_seconds


class UnscheduledLink(LinkScheduler):
    """Of a worker without peers, who has no link to share: always open, so nothing waits and nothing is late."""

    def close(self) -> None:
        pass
