"""The watchdog: it ends calls at their deadlines, whatever it was sleeping for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator

import pytest

from foresee.store.rpc.endpoint import Watchdog
from waiting import wait_until

WAIT_SECONDS = 20.0


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    it = Watchdog()
    yield it
    it.close()


def test_an_earlier_deadline_wakes_it(watchdog: Watchdog) -> None:
    cancelled = threading.Event()
    with watchdog.watch(time.monotonic() + 600.0, lambda: None) as late:
        wait_until(lambda: watchdog._wakes_at < math.inf, "its sleep for the late one")
        with watchdog.watch(time.monotonic() + 0.05, cancelled.set) as early:
            assert cancelled.wait(WAIT_SECONDS)
    assert early.expired
    assert not late.expired


def test_a_call_that_ended_does_not_hide_the_next(watchdog: Watchdog) -> None:
    """The thread still sleeps for a deadline that nobody has any more."""
    for seconds in (0.1, 1.0, 10.0):  # on a machine that stalls, the call may not end in time: again, with more
        deadline = time.monotonic() + seconds
        with watchdog.watch(deadline, lambda: None) as ended:
            wait_until(lambda deadline=deadline: ended.expired or watchdog._wakes_at == deadline, "its sleep")  # type: ignore[misc]
        if not ended.expired:
            break
    cancelled = threading.Event()
    with watchdog.watch(deadline + 0.1, cancelled.set) as late:
        assert cancelled.wait(WAIT_SECONDS)
    assert late.expired
    assert not ended.expired


def test_calls_that_end_in_time_do_not_wake_it(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    with watchdog.watch(time.monotonic() + 600.0, lambda: None):
        wait_until(lambda: watchdog._wakes_at < math.inf, "its sleep")
    wakes: list[None] = []
    monkeypatch.setattr(watchdog._changed, "notify_all", lambda: wakes.append(None))
    for _ in range(10):
        with watchdog.watch(time.monotonic() + 700.0, lambda: None):
            pass
    monkeypatch.undo()
    assert not wakes
