"""A lock that many readers hold together and a writer alone.

In: threads. Out: never a reader beside a writer. A waiting writer goes before readers that come later, so a steady
stream of reads cannot keep write-backs out. It is held for one chunk of rows, never while a request waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class SharedLock:
    """Not reentrant."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_readers = 0
        self._num_writers_waiting = 0
        self._writing = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._writing and not self._num_writers_waiting)
            self._num_readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._num_readers -= 1
                if not self._num_readers:
                    self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            self._num_writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._num_readers)
            finally:
                self._num_writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
