"""A bounded hand-over between two threads, either of which may end first.

`queue.Queue` knows no end: a reader whose writer died waits for ever. Here the sender closes with or without an error,
which the receiver gets after the items sent before it; the receiver refuses with an error, which the sender gets at
once. Every wait ends, at the latest after `timeout_seconds`, with a sentence that says who waited for what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Condition
from typing import Generic, TypeVar

from foresee.errors import ConsistencyError

Item = TypeVar("Item")

TIMEOUT_SECONDS = 600.0


class Abandoned(Exception):  # noqa: N818 - not an error, an ending
    """The other side is not interested any more; the thread that gets this should end quietly."""


class Channel(Generic[Item]):
    """At most `capacity` items in flight, in order."""

    def __init__(self, name: str, *, capacity: int, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.name = name
        self._capacity = capacity
        self._timeout_seconds = timeout_seconds
        self._items: deque[Item] = deque()
        self._changed = Condition()
        self._closed = False
        self._sender_error: BaseException | None = None
        self._receiver_error: BaseException | None = None

    def put(self, item: Item) -> None:
        """Waits for room. Raises what the receiver refused with."""
        with self._changed:
            self._wait(lambda: len(self._items) < self._capacity or self._receiver_error is not None, "room in")
            if self._receiver_error is not None:
                raise self._receiver_error
            self._items.append(item)
            self._changed.notify_all()

    def __len__(self) -> int:
        """Items that wait to be taken."""
        return len(self._items)

    def wait_until_few(self, most: int) -> None:
        """Until at most so many items wait to be taken. Raises what the receiver refused with."""
        with self._changed:
            self._wait(lambda: len(self._items) <= most or self._receiver_error is not None, "room in")
            if self._receiver_error is not None:
                raise self._receiver_error

    def take_if(self, wanted: Callable[[Item], bool]) -> Item | None:
        """The next item, if it is there already and wanted. Never waits."""
        with self._changed:
            if not self._items or not wanted(self._items[0]):
                return None
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def __iter__(self) -> Iterator[Item]:
        """Items until the sender closes; then raises what it closed with, if anything."""
        while True:
            with self._changed:
                self._wait(lambda: bool(self._items) or self._closed, "the next item of")
                if not self._items:
                    if self._sender_error is not None:
                        raise self._sender_error
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def close(self, error: BaseException | None = None) -> None:
        """The sender has ended. What it sent may still be taken."""
        with self._changed:
            self._closed = True
            self._sender_error = self._sender_error or error
            self._changed.notify_all()

    def refuse(self, error: BaseException) -> None:
        """The receiver has ended. What was sent is dropped."""
        with self._changed:
            self._receiver_error = self._receiver_error or error
            self._items.clear()
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        if not self._changed.wait_for(ready, self._timeout_seconds):
            raise ConsistencyError(
                f"waited {self._timeout_seconds:.0f} s for {what} the {self.name} queue; "
                "look for a stalled disk or a process that was stopped, then resume from the last commit"
            )


class Watermark:
    """A number that only rises, and threads that wait for it."""

    def __init__(self, name: str, *, reached: int, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.name = name
        self._reached = reached
        self._timeout_seconds = timeout_seconds
        self._changed = Condition()
        self._error: BaseException | None = None

    @property
    def reached(self) -> int:
        return self._reached

    def raise_to(self, number: int) -> None:
        with self._changed:
            self._reached = max(self._reached, number)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """It will rise no further: whoever waits gets this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wait_for(self, number: int) -> None:
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._reached >= number or self._error is not None, self._timeout_seconds
            )
            if self._reached >= number:
                return
            if self._error is not None:
                raise self._error
            assert not done
            raise ConsistencyError(
                f"waited {self._timeout_seconds:.0f} s for {self.name} {number}, which is at {self._reached}; "
                "look for a stalled disk or a process that was stopped, then resume from the last commit"
            )
