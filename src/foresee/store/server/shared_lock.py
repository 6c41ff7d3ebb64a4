"""A lock that many readers hold together and a writer alone.

In: threads. Out: never a reader beside a writer. A waiting writer goes before readers that come later, so a steady
stream of reads cannot keep write-backs out. It is held for one chunk of rows, never while a request waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Condition


class SharedLock:
    """Not reentrant."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_readers = 0
        self._num_writers_waiting = 0
        self._writing = False
        self._sharing = _Sharing(self)

    def shared(self) -> AbstractContextManager[None]:
        return self._sharing

    def take_shared(self) -> None:
        with self._changed:
            while self._writing or self._num_writers_waiting:
                self._changed.wait()
            self._num_readers += 1

    def give_shared(self) -> None:
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


class _Sharing:
    """A reader's side, with nothing to remember: all chunks of all reads go through the same one."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.take_shared()

    def __exit__(self, *_: object) -> None:
        self._lock.give_shared()
