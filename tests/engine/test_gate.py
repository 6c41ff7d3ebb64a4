"""What is not urgent waits for what is, and for nothing else."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from foresee.engine import gate as gate_module
from foresee.engine.gate import Gate


def test_who_waits_goes_on_when_it_opens() -> None:
    gate, passed = Gate(), Event()
    gate.wait()  # open at first
    gate.close()

    def go() -> None:
        gate.wait()
        passed.set()

    thread = Thread(target=go)
    thread.start()
    assert not passed.wait(0.05)
    gate.open()
    assert passed.wait(10)
    thread.join(10)


def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "PATIENCE_SECONDS", 0.01)
    gate = Gate()
    gate.close()
    gate.wait()
