"""How often a run commits: as often as its cost allows, or as a person says.

In: a clock, how long each commit held up training, and perhaps a number of seconds. Out: whether it is time. Without a
number the next commit waits until the last one's cost is `COST_SHARE` of the time since, so that commits cost that
share of training, however large the tables are; and at least `SECONDS_MIN`, so that small runs are not all commits.
"""

from __future__ import annotations

from collections.abc import Callable

COST_SHARE = 0.015
"""Of the time between two commits. What a commit still does in the background afterwards costs about as much again."""
SECONDS_MIN = 20.0


class CheckpointInterval:
    """Asked after every step; told of every commit."""

    def __init__(self, every_seconds: float | None, clock: Callable[[], float]) -> None:
        self._every_seconds, self._clock = every_seconds, clock
        self._last, self._cost_seconds = clock(), 0.0

    @property
    def interval_seconds(self) -> float:
        """From the end of the last commit to the next one."""
        if self._every_seconds is not None:
            return self._every_seconds
        return max(SECONDS_MIN, self._cost_seconds / COST_SHARE)

    def due(self) -> bool:
        return self._clock() - self._last >= self.interval_seconds

    def committed(self, begun: float) -> float:
        """A commit that began at this time is done; returns what it took."""
        self._last = self._clock()
        self._cost_seconds = self._last - begun
        return self._cost_seconds
