"""Reading ahead: things made in the background in the order in which they will be wanted, within a bound on bytes.

In: keys in an order, or a file of a storage that somebody reads. Out: what each key stands for; or the file as a stream
that can seek, of which the ranges that come next are fetched by a few threads while the ones before are used. Never
holds more than its bound, and never copies a file to this machine.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Condition, Event, Thread
from typing import Any, Generic, TypeVar

from foresee.io.storage import RANGE_BYTES, StoredFile

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")

THREADS_MAX = 4
IDLE_SECONDS = 1.0
"""A thread that had nothing to make for so long ends."""
FIRST_BYTES = 1 << 18
"""Fetched where somebody begins to read: often only the first line is wanted."""
RANGES_AHEAD_MAX = 64


class ReadAhead(Generic[Key, Made]):
    """Things that will be wanted in a known order, made ahead by a few threads within a bound on bytes.

    Each is handed out once. What was expected and never taken makes room for what is expected later. Threads end when
    there was nothing to do for a while; what one raised is raised by `take`.
    """

    def __init__(self, make: Callable[[Key], Made], size_of: Callable[[Key], int], bytes_max: int) -> None:
        self._make, self._size_of, self._bytes_max = make, size_of, bytes_max
        self._lock = Condition()
        self._things: OrderedDict[Key, Future[Made]] = OrderedDict()
        self._queue: deque[Key] = deque()
        self._num_threads = self._num_idle = 0

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

    def close(self) -> None:
        """Nothing is wanted any more; what is being made is not kept."""
        with self._lock:
            self._queue.clear()
            for key in list(self._things):
                self._forget(key)

    def _forget(self, key: Key) -> None:
        self._things.pop(key).cancel()

    def _add(self, key: Key, *, first: bool = False) -> None:
        self._things[key] = Future()
        (self._queue.appendleft if first else self._queue.append)(key)
        if self._num_idle >= len(self._queue):
            self._lock.notify()
        elif self._num_threads < THREADS_MAX:
            self._num_threads += 1
            Thread(target=self._work, name="read ahead", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._num_idle += 1
                self._lock.wait_for(lambda: self._queue, IDLE_SECONDS)
                self._num_idle -= 1
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


class StoredStream(io.RawIOBase):
    """A file of a storage, for one reader.

    Where it is read from front to back, the next ranges are on their way meanwhile; `expect` names others. What is held
    or on its way is at most `bytes_max`, and the range that is being read is part of it.

    Args:
        file: What is read.
        range_bytes: Fetched by one request, at most.
        bytes_max: Of all ranges; one is always held.
    """

    def __init__(self, file: StoredFile, *, range_bytes: int = RANGE_BYTES, bytes_max: int = 4 * RANGE_BYTES) -> None:
        self.num_bytes, self._given_up = file.num_bytes, Event()
        patient = file.storage.patient(file.storage.patience_seconds, self._given_up.is_set)
        self._ahead = ReadAhead(partial(_read, replace(file, storage=patient)), lambda key: key[1], bytes_max)
        self._range_bytes, self._num_ahead = range_bytes, min(RANGES_AHEAD_MAX, -(-bytes_max // range_bytes))
        self._at, self._begin, self._piece = 0, 0, b""
        self._expected: list[tuple[int, int]] = []
        self._taken = set[int]()
        self._by_begin: list[tuple[int, int]] = []  # where each begins, and its number in `_expected`

    @property
    def held_bytes(self) -> int:
        """In memory or on the way here."""
        return len(self._piece) + self._ahead.held_bytes

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Only these (begin, end) will be read, in about this order, and nothing between them."""
        self._expected = [
            (begin, min(self._range_bytes, end - begin))
            for first, end in _joined(ranges, self._range_bytes)
            for begin in range(first, end, self._range_bytes)
        ]
        self._by_begin = sorted((begin, number) for number, (begin, _) in enumerate(self._expected))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.num_bytes}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def read(self, size: int | None = -1) -> bytes:
        """From here on; fewer bytes than asked for only at the end of the file."""
        end = self.num_bytes if size is None or size < 0 else min(self._at + size, self.num_bytes)
        found = []
        while self._at < end:
            found.append(self._some(end - self._at))
            self._at += len(found[-1])
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        if not self.closed:
            self._piece = b""
            self._given_up.set()
            self._ahead.close()
        super().close()

    def _some(self, num_bytes: int) -> bytes:
        """Not more than these, out of one range."""
        if not self._begin <= self._at < self._begin + len(self._piece):
            goes_on = self._at == self._begin + len(self._piece) > 0
            self._piece = b""
            wanted = self._next_ranges(num_bytes, goes_on=goes_on)
            self._ahead.expect(wanted)
            self._begin, self._piece = wanted[0][0], self._ahead.take(wanted[0])
        first = self._at - self._begin
        return self._piece[first : first + num_bytes]

    def _next_ranges(self, num_bytes: int, *, goes_on: bool) -> list[tuple[int, int]]:
        """The range that has the next byte, and those that will be wanted after it."""
        place = bisect_right(self._by_begin, (self._at, len(self._expected))) - 1
        if place >= 0:
            begin, number = self._by_begin[place]
            if self._at < begin + self._expected[number][1]:
                self._taken.add(number)  # what is read out of order has been taken already
                later = (it for it in range(number + 1, len(self._expected)) if it not in self._taken)
                return [self._expected[it] for it in (number, *islice(later, RANGES_AHEAD_MAX))]
        if self._expected or not goes_on:
            num_bytes = min(max(num_bytes, 0 if self._expected else FIRST_BYTES), self._range_bytes)
            return [(self._at, min(num_bytes, self.num_bytes - self._at))]
        begins = range(self._at, self.num_bytes, self._range_bytes)[: self._num_ahead]
        return [(begin, min(self._range_bytes, self.num_bytes - begin)) for begin in begins]


def _read(file: StoredFile, wanted: tuple[int, int]) -> bytes:
    return file.read(*wanted)


def _joined(ranges: Sequence[tuple[int, int]], num_bytes_max: int) -> list[tuple[int, int]]:
    """Small ranges that touch are one."""
    found: list[tuple[int, int]] = []
    for begin, end in ranges:
        if found and found[-1][1] == begin and end - found[-1][0] <= num_bytes_max:
            begin = found.pop()[0]
        found.append((begin, end))
    return found
