"""Items of a user's source, pulled in the thread of the training loop and handed to the threads that plan.

    training loop ──fill(step)──► iter(loader), next() ──items──► planner thread (batches)

A `DataLoader` draws from torch's global generator, as dropout does. So the source is opened and advanced only by
`fill`, which the training loop calls when it is asked for its next step. How many items are pulled by then follows from
the step and from what the planner needs, never from which thread is faster: the same seed gives the same draws in the
same order. An exception of the source is raised at its own batch, after the batches before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Condition
from typing import Any, Protocol

from foresee.data.batch import Batch, BatchStream
from foresee.engine.channel import TIMEOUT_SECONDS, Abandoned
from foresee.errors import ConsistencyError, UsageError

PLANNED_LAST = 2
"""A record is complete when the batch after its window was read; one more tells whether an epoch ends there."""


class Feed(Protocol):
    """What a training loop calls before each step, so that the batches it needs are read."""

    def fill(self, step: int) -> None:
        """Called by the training loop in its own thread when it is asked for a step."""
        ...

    def planned(self, step: int | None) -> None:
        """Called by the planner when the record of a step is complete; None: there are no more."""
        ...

    def close(self) -> None:
        """Called by the training loop when it ends."""
        ...


class NoFeed:
    """The feed of streams that planner threads read by themselves, such as a prepared log."""

    def fill(self, step: int) -> None:
        pass

    def planned(self, step: int | None) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How many items are pulled ahead of training.

    Attributes:
        window_steps: Batches that the planner looks at beyond the one it plans.
        fetch_ahead_steps: Steps whose rows may be fetched before training asks for them.
    """

    window_steps: int
    fetch_ahead_steps: int

    def end(self, step: int, begin: int) -> int:
        """Return how many items are pulled when `step` is asked for and reading began at `begin`.

        Two items per step at first, as the planner's window grows (`Reach` in `plan.upcoming`): the first step does
        not wait for a whole window.
        """
        fetched = step + self.fetch_ahead_steps
        return min(fetched + self.window_steps, 2 * fetched - begin) + PLANNED_LAST + 1


class PulledFeed:
    """A `Feed` over iterators of a user, one for each epoch.

    Items are numbered from 0 over all epochs. Those before `first` are pulled and dropped, except the ones that
    `kept` and `planned_from` name.

    Args:
        epochs: One iterable for each epoch; the next one is asked for only when its items are wanted.
        make: Makes the batch of an item and its number; called by the thread that reads.
        begin: The number of the source's first item.
        first: The item to train first.
        kept: Of items before `first`, this many are kept: they tell one source from another.
        planned_from: Where the plan began, if its planner has to see items before `first`.
        shift: A step's number minus that of its item.
        reach: How many items are pulled ahead.
        reads_on: Pull items of the next epoch while the last one's are trained. Otherwise an epoch is opened when the
            last step of the one before is trained, as a plain loop opens it.
        plans: Whether a planner of this process reads the items.
    """

    def __init__(
        self, epochs: Iterable[Iterable[Any]], make: Callable[[Any, int, bool], Batch], *, begin: int = 0, first: int,
        kept: int, planned_from: int | None = None, shift: int, reach: Reach, reads_on: bool, plans: bool = True,
    ) -> None:  # fmt: skip
        self._epochs: Iterator[Iterable[Any]] = iter(epochs)
        self._items: Iterator[Any] | None = None
        self._make, self._reach, self._reads_on, self._plans = make, reach, reads_on, plans
        self._kept, self._first, self._shift = kept, first, shift
        self._seen_from = first if planned_from is None else min(first, planned_from)
        self._changed = Condition()
        self._waiting: dict[int, Any] = {}
        """Items by number."""
        self._pulled = begin
        """Items pulled so far; also the number of the next one."""
        self._began = first
        """Where the items of what is being read begin: at an epoch, unless reading goes on over its end."""
        self._boundary = -1
        """No item from here on is pulled before all before it are trained."""
        self._ended = False
        self._error: BaseException | None = None
        self._closed = False
        self._starved = False
        """The planner waits for an item, or to be told that none comes."""
        self._read_to = self._seen_from
        """The planner has read the items before this."""
        self._planned_to = first
        """The records of steps before this one are complete."""

    def fill(self, step: int) -> None:
        number = step - self._shift
        with self._changed:
            for old in [it for it in self._waiting if self._first <= it < number]:
                del self._waiting[old]
        end = self._reach.end(number, max(self._began, self._boundary))
        while self._pulled < end and self._pull(number):
            pass
        while self._plans and self._planner_needs_more(number) and self._pull(number):
            pass

    def planned(self, step: int | None) -> None:
        with self._changed:
            if step is None:
                self._plans = False
            else:
                self._planned_to = max(self._planned_to, step - self._shift + 1)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._items, self._epochs = None, iter(())  # ends the worker processes of a loader

    def batches(self, first: int, *, plans: bool) -> Iterator[Batch]:
        """Yield the kept batches and those from `first` on, each as soon as it is pulled. Called by other threads.

        Args:
            first: The number of an item.
            plans: Whether a planner reads: `fill` pulls what it needs for the step that is asked for.

        Raises:
            Exception: What the source raised, at its place.
        """
        number = 0
        while True:
            with self._changed:
                if number >= self._kept:
                    number = max(number, first)
                if plans:
                    self._read_to = max(self._read_to, number)
                    self._starved = not self._is_known(number)
                    self._changed.notify_all()
                self._changed.wait_for(partial(self._is_known, number))  # as long as a step takes
                if self._closed:
                    raise Abandoned
                if plans:
                    self._starved = False
                if number >= self._pulled:
                    if self._error is not None:
                        raise self._error
                    return
                item, is_there = self._waiting.get(number), number in self._waiting
                is_last_known = number + 1 == self._boundary
                if plans and self._seen_from <= number < self._first and number >= self._kept:
                    self._waiting.pop(number, None)
            if is_there:
                yield self._make(item, number, is_last_known)
            elif number >= first:
                raise UsageError(f"batch {number} was trained and dropped; these batches are read once")
            number += 1

    def _is_known(self, number: int) -> bool:
        """Whether an item is there and it is known whether another follows, or that there is none."""
        if self._closed or number + 1 < self._pulled or number + 1 == self._boundary:
            return True
        return self._ended or self._error is not None

    def _planner_needs_more(self, number: int) -> bool:
        """Wait until the planner has the record of the step, or cannot go on without another item."""
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._planned_to > number or self._starved or not self._plans, TIMEOUT_SECONDS
            )
            if not done:
                raise ConsistencyError(
                    f"waited {TIMEOUT_SECONDS:.0f} s for the plan of step {number + self._shift}; "
                    "look for a process that was stopped, then resume from the last commit"
                )
            return self._plans and self._planned_to <= number

    def _pull(self, number: int) -> bool:
        """Pull one item, or find out that an epoch ends; False if nothing more comes before step `number` is trained.

        An exception of the source is kept for the reader of its place; KeyboardInterrupt and its like are raised here.
        """
        if self._ended or self._error is not None or self._closed:
            return False
        if self._items is None and self._pulled == self._boundary and number < self._boundary:
            return False
        try:
            if self._items is None:
                epoch = next(self._epochs, None)
                if epoch is None:
                    return self._mark(ended=True)
                self._began = max(self._began, self._boundary)
                self._items = iter(epoch)
            item = next(self._items, _END)
        except Exception as error:
            return self._mark(error=error)
        if item is _END:
            self._items = None
            return self._mark(boundary=self._pulled if not self._reads_on and self._pulled > self._first else None)
        return self._keep(item)

    def _keep(self, item: Any) -> bool:
        number = self._pulled
        with self._changed:
            if self._kept <= number < self._first and number >= self._seen_from:
                # A planner that reads them all to resume a plan sets the pace: they must not gather in memory.
                self._changed.wait_for(
                    lambda: self._read_to + self._reach.window_steps >= number or not self._plans, TIMEOUT_SECONDS
                )
            if number < self._kept or number >= self._seen_from:
                self._waiting[number] = item
            self._pulled += 1
            # The planner has what it waited for only when the item after it is there, too.
            self._starved = self._starved and not self._is_known(self._read_to)
            self._changed.notify_all()
        return True

    def _mark(self, *, ended: bool = False, error: BaseException | None = None, boundary: int | None = None) -> bool:
        with self._changed:
            self._ended, self._error = self._ended or ended, self._error or error
            if boundary is not None:
                self._boundary = boundary
            self._starved = self._starved and not self._is_known(self._read_to)
            self._changed.notify_all()
        return not ended and error is None


_END = object()
NO_FEED = NoFeed()


def feed_of(stream: BatchStream) -> Feed:
    """Return the feed of a stream that has one."""
    feed: Feed = getattr(stream, "feed", NO_FEED)
    return feed
