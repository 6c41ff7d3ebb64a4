"""What is not urgent waits for what is, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest

from foresee.engine.exchange import mesh
from foresee.engine.exchange.mesh import LinkScheduler, UnscheduledLink
from foresee.engine.exchange.peers import LocalExchange


def goes_on(wait: Callable[[], None], when: Callable[[], None]) -> None:
    """Somebody who waits does so until then."""
    passed = Event()

    def go() -> None:
        wait()
        passed.set()

    thread = Thread(target=go)
    thread.start()
    assert not passed.wait(0.05)
    when()
    assert passed.wait(10)
    thread.join(10)


def test_who_waits_goes_on_when_it_opens() -> None:
    link = LinkScheduler()
    link.wait()  # open at first
    link.close()
    goes_on(link.wait, link.open)


def test_who_has_a_steps_time_begins_early_or_the_next_time() -> None:
    now = [0.0]
    link = LinkScheduler(clock=lambda: now[0])
    now[0] = 100.0
    link.wait(for_early=True)  # it was never closed, so nobody knows what is late
    link.close()
    link.open()
    now[0] += 40.0
    link.wait(for_early=True)
    link.close()  # after 40 seconds
    link.open()
    now[0] += 10.0
    link.wait(for_early=True)
    now[0] += 10.0
    link.wait()

    def next_time() -> None:
        link.close()
        link.open()

    goes_on(lambda: link.wait(for_early=True), next_time)


def test_who_only_computes_waits_until_it_closes() -> None:
    link = LinkScheduler()
    link.wait_for_closed()  # at once, as it never was
    link.close()
    link.wait_for_closed()
    link.open()
    goes_on(link.wait_for_closed, link.close)


def test_a_worker_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "PATIENCE_SECONDS", 1000.0)
    now = [0.0]
    assert isinstance(LocalExchange().link, UnscheduledLink)
    link = UnscheduledLink(clock=lambda: now[0])
    for _ in range(2):
        link.close()
        now[0] += 50.0
        link.wait()
        link.wait(for_early=True)
        link.wait_for_closed()
        link.open()


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh, "PATIENCE_SECONDS", 0.01)
    link = LinkScheduler()
    link.close()
    link.wait()
    link.open()
    link.wait_for_closed()
