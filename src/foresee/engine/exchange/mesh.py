"""How workers reach each other: all-to-alls on two lanes, and who may use the link when.

The plan gives both sides all sizes. The critical and the background lane are separate, so that what a step waits for
never queues behind what it does not. `TorchMesh` is torch.distributed.

`LinkScheduler`: background transfers wait while a critical transfer uses the link. It is closed from the moment a
step's row gradients exist until the rows of the next step have left. Only the start of a fetch, a write-back or a
background exchange waits, and never longer than `PATIENCE_SECONDS`: the scheduler orders, nothing depends on it. What
has a whole step's time starts early while it is open; background computing runs while it is closed.

What breaks inside torch.distributed is a PeerLostError from here on: gloo reports a peer that is gone as a bare
RuntimeError, so the place where it was raised decides, never its words.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from threading import Condition
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from foresee.errors import PeerLostError


class Lane(IntEnum):
    """Two ways to every peer."""

    CRITICAL = 0
    BACKGROUND = 1


Finish = Callable[[], Tensor]
"""Wait, and return the parts of all workers in one flat buffer, in worker order."""


class Mesh(Protocol):
    """The workers of a run, as one of them sees them."""

    @property
    def rank(self) -> int: ...

    @property
    def num_workers(self) -> int: ...

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        """Begin to send each worker its part of a flat buffer. Return a function that waits for all workers' parts.

        Every worker calls it the same number of times on each lane; on one lane, never before the last one is finished.
        """
        ...


@contextmanager
def collective() -> Iterator[None]:
    """Around calls of torch.distributed, and the waits for them."""
    try:
        yield
    except RuntimeError as error:
        raise peer_lost(error) from error


def peer_lost(error: BaseException) -> PeerLostError:
    cause = (str(error).splitlines() or [""])[0].split("] ")[-1].split(". ")[0]
    return PeerLostError(
        f"this worker lost another one ({cause}); see how that one ended, then resume from the last commit"
    )


class TorchMesh:
    """The default process group's workers. Every worker makes it at the same point of its program."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.num_workers = dist.get_world_size()
        with collective():
            self._groups = [dist.new_group() for _ in Lane]

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        received = torch.empty(sum(expected))
        with collective():
            under_way = dist.all_to_all_single(received, sent, expected, sizes, group=self._groups[lane], async_op=True)

        def finish() -> Tensor:
            with collective():
                under_way.wait()
            return received

        return finish


PATIENCE_SECONDS = 1.0
EARLY_SHARE = 0.35
"""Of the time for which the link was open the last time."""


class LinkScheduler:
    """Open at first. Any thread may wait; the training thread closes and opens it."""

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
        """Block until the link is open; `for_early`, if the caller has a whole step's time: has opened recently."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_early() if for_early else self._is_open(), PATIENCE_SECONDS)

    def wait_for_closed(self) -> None:
        """Block until the link is closed; return immediately if it never was."""
        with self._changed:
            self._changed.wait_for(lambda: self._opened_at is None or self._open_seconds == math.inf, PATIENCE_SECONDS)

    def _is_open(self) -> bool:
        return self._opened_at is not None

    def _is_early(self) -> bool:
        return self._opened_at is not None and self._clock() - self._opened_at <= EARLY_SHARE * self._open_seconds


class UnscheduledLink(LinkScheduler):
    """For a worker without peers, which has no link to share: always open, so nothing waits."""

    def close(self) -> None:
        pass
