"""What is not urgent waits for what is, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread

import pytest

from foresee.engine import gate as gate_module
from foresee.engine.exchange import Alone
from foresee.engine.gate import Gate, NoGate


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
    gate = Gate()
    gate.wait()  # open at first
    gate.close()
    goes_on(gate.wait, gate.open)


def test_who_has_a_steps_time_begins_early_or_the_next_time() -> None:
    now = [0.0]
    gate = Gate(clock=lambda: now[0])
    now[0] = 100.0
    gate.wait(for_early=True)  # it was never closed, so nobody knows what is late
    gate.close()
    gate.open()
    now[0] += 40.0
    gate.wait(for_early=True)
    gate.close()  # after 40 seconds
    gate.open()
    now[0] += 10.0
    gate.wait(for_early=True)
    now[0] += 10.0
    gate.wait()

    def next_time() -> None:
        gate.close()
        gate.open()

    goes_on(lambda: gate.wait(for_early=True), next_time)


def test_who_only_computes_waits_until_it_closes() -> None:
    gate = Gate()
    gate.wait_for_closed()  # at once, as it never was
    gate.close()
    gate.wait_for_closed()
    gate.open()
    goes_on(gate.wait_for_closed, gate.close)


def test_a_worker_alone_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "PATIENCE_SECONDS", 1000.0)
    now = [0.0]
    assert isinstance(Alone().gate, NoGate)
    gate = NoGate(clock=lambda: now[0])
    for _ in range(2):
        gate.close()
        now[0] += 50.0
        gate.wait()
        gate.wait(for_early=True)
        gate.wait_for_closed()
        gate.open()


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "PATIENCE_SECONDS", 0.01)
    gate = Gate()
    gate.close()
    gate.wait()
    gate.open()
    gate.wait_for_closed()
