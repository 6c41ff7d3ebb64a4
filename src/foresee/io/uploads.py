"""What is copied to a storage in the background: one thread, one job after the other, each until it is done.

In: jobs, each with a name; one of a key takes the place of a waiting one of the same key. Out: whether anything is
left, and a sentence about it. A job that fails, for whatever reason, is tried again with growing pauses for as long as
its process lives: whoever commits is never in its way, and whoever ends decides how long to wait for it (`wait`). A job
that has become needless raises `Needless`. Only a job that returned, or was needless, counts as done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from foresee.errors import StoreError

_logger = logging.getLogger(__name__)

PAUSE_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """Something to be copied."""

    key: str
    what: str
    """For people, such as "the commit of step 100"."""
    act: Callable[[], None]


class Needless(Exception):  # noqa: N818 - no error
    """What a job was to copy has been replaced by something newer."""


class Uploads:
    """The jobs of one process to one storage."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._changed = threading.Condition()  # reentrant: `idle` is asked with it held
        self._waiting: list[Job] = []
        self._current: Job | None = None
        self._since = time.monotonic()
        self._problem: str | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Everything is copied."""
        with self._changed:
            return not self._waiting and self._current is None

    @property
    def closed(self) -> bool:
        """Somebody does not want to wait any longer."""
        return self._closed

    def submit(self, key: str, what: str, act: Callable[[], None]) -> None:
        """Queues a job, in the place of a waiting one of the same key: a newer commit makes an older one needless."""
        with self._changed:
            self._waiting = [job for job in self._waiting if job.key != key] + [Job(key, what, act)]
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def behind(self) -> str | None:
        """Describe what is not copied yet, also after `close`; None if everything is."""
        with self._changed:
            job = self._current or (self._waiting[0] if self._waiting else None)
            if job is None:
                return None
            trouble = "" if self._problem is None else f" ({self._problem})"
            return f"{job.what} is on its way to {self._url} for {time.monotonic() - self._since:.0f} s{trouble}"

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until everything is copied, until `close`, or for so long; return True if everything is copied."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self.idle, seconds)
            return self.idle

    def close(self) -> None:
        """Give up what is left; it still counts as not copied."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(PAUSE_SECONDS_MAX)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                self._current, self._since = self._waiting.pop(0), time.monotonic()
            if not self._carry_out(self._current):
                return
            with self._changed:
                self._current = self._problem = None
                self._changed.notify_all()

    def _carry_out(self, job: Job) -> bool:
        """Try until the job is done or nobody waits any more; return whether it is done."""
        pause = 0.5
        while not self._closed:
            try:
                job.act()
                return True
            except Needless:
                return True
            except (StoreError, OSError) as error:
                self._problem = str(error)
                _logger.warning("%s is not yet in %s: %s", job.what, self._url, error)
            except Exception as error:  # a defect of ours, or of the library behind the storage
                self._problem = f"{type(error).__name__}: {error}"
                _logger.exception("%s is not yet in %s", job.what, self._url)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
        return False
