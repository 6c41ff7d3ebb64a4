"""Ends calls that take too long: one thread for all of them.

In: a deadline and what to call when it passes. Out: nothing; whoever is blocked in the call gets that call's error and
finds `expired` set. A call that ends in time costs two short locks: the thread sleeps on until the deadline it last
knew of, and is woken only for an earlier one. Flight's own timeouts are for whole calls, and ours stay open for a run.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Watch:
    """One call under a deadline."""

    cancel: Callable[[], None]
    done: bool = False
    expired: bool = False


class Watchdog:
    """Starts its thread with the first watch; `close` ends it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: list[tuple[float, int, Watch]] = []
        self._order = itertools.count()
        self._wakes_at = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextmanager
    def watch(self, deadline: float, cancel: Callable[[], None]) -> Iterator[Watch]:
        """Calls `cancel` if the block has not been left by `deadline` (time.monotonic)."""
        watch = Watch(cancel)
        with self._changed:
            heapq.heappush(self._watches, (deadline, next(self._order), watch))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="foresee-watchdog", daemon=True)
                self._thread.start()
            elif deadline < self._wakes_at:
                self._changed.notify_all()
        try:
            yield watch
        finally:
            with self._changed:
                watch.done = True
                while self._watches and self._watches[0][2].done:
                    heapq.heappop(self._watches)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._closed:
                self._wakes_at = self._watches[0][0] if self._watches else math.inf
                remaining = self._wakes_at - time.monotonic()
                if remaining <= 0:
                    watch = heapq.heappop(self._watches)[2]
                    if not watch.done:
                        # Set before the call: the blocked thread may run at once.
                        watch.expired = True
                        watch.cancel()
                else:
                    self._changed.wait(None if math.isinf(remaining) else remaining)
