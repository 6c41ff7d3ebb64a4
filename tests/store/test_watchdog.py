"""The watchdog: it ends calls at their deadlines, whatever it was sleeping for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from foresee.rpc.endpoint import Watchdog

WAIT_SECONDS = 20.0


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    it = Watchdog()
    yield it
    it.close()


def test_an_earlier_deadline_wakes_it(watchdog: Watchdog) -> None:
    cancelled = threading.Event()
    with watchdog.watch(time.monotonic() + 600.0, lambda: None) as late:
        time.sleep(0.05)  # it sleeps for the late one by now
        with watchdog.watch(time.monotonic() + 0.05, cancelled.set) as early:
            assert cancelled.wait(WAIT_SECONDS)
    assert early.expired
    assert not late.expired


def test_a_call_that_ended_does_not_hide_the_next(watchdog: Watchdog) -> None:
    """The thread still sleeps for a deadline that nobody has any more."""
    with watchdog.watch(time.monotonic() + 0.3, lambda: None) as ended:
        time.sleep(0.05)
    cancelled = threading.Event()
    with watchdog.watch(time.monotonic() + 0.6, cancelled.set) as late:
        assert cancelled.wait(WAIT_SECONDS)
    assert late.expired
    assert not ended.expired


def test_calls_that_end_in_time_do_not_wake_it(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    with watchdog.watch(time.monotonic() + 600.0, lambda: None):
        time.sleep(0.05)
    wakes: list[None] = []
    monkeypatch.setattr(watchdog._changed, "notify_all", lambda: wakes.append(None))
    for _ in range(10):
        with watchdog.watch(time.monotonic() + 700.0, lambda: None):
            pass
    monkeypatch.undo()
    assert not wakes
