"""Things that will be wanted in a known order, made ahead by a few threads within a bound on bytes.

In: a function that makes the thing of a key, about how many bytes each has, and keys that will be asked for. Out: the
things, each handed out once. What was expected and never taken makes room for what is expected later. Threads end when
nothing is left to do, so nobody has to close anything; what a thread raised is raised by `take`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")

THREADS_MAX = 4


class ReadAhead(Generic[Key, Made]):
    """What is on its way and what is there. Several threads may ask."""

    def __init__(self, make: Callable[[Key], Made], size_of: Callable[[Key], int], bytes_max: int) -> None:
        self._make, self._size_of, self._bytes_max = make, size_of, bytes_max
        self._lock = Lock()
        self._things: OrderedDict[Key, Future[Made]] = OrderedDict()
        self._queue: deque[Key] = deque()
        self._num_threads = 0

    @property
    def held_bytes(self) -> int:
        """Of all that is on its way or there."""
        return sum(map(self._size_of, self._things))

    def expect(self, keys: Sequence[Key]) -> None:
        """As many of these, from the first on, as there is room for."""
        with self._lock:
            old = [key for key in self._things if key not in keys]
            for key in keys:
                if key in self._things:
                    continue
                while old and self.held_bytes + self._size_of(key) > self._bytes_max:
                    self._forget(old.pop(0))
                if self._things and self.held_bytes + self._size_of(key) > self._bytes_max:
                    return
                self._add(key)

    def take(self, key: Key) -> Made:
        """The thing of this key, made now if nobody expected it."""
        with self._lock:
            if key not in self._things:
                self._add(key, first=True)
            future = self._things[key]
        try:
            return future.result()
        finally:
            with self._lock:
                if self._things.get(key) is future:
                    self._forget(key)

    def _forget(self, key: Key) -> None:
        self._things.pop(key).cancel()

    def _add(self, key: Key, *, first: bool = False) -> None:
        self._things[key] = Future()
        (self._queue.appendleft if first else self._queue.append)(key)
        if self._num_threads < THREADS_MAX:
            self._num_threads += 1
            Thread(target=self._work, name="read ahead", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._num_threads -= 1
                    return
                key = self._queue.popleft()
                future = self._things.get(key)
                if future is None or not future.set_running_or_notify_cancel():
                    continue
            try:
                future.set_result(self._make(key))
            except BaseException as error:
                future.set_exception(error)
