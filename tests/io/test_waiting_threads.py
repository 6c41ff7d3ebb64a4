"""Threads of torch sleep while they wait where cores are few, unless a person has said otherwise."""

from __future__ import annotations

import pytest

from foresee.io import machine


def test_threads_sleep_where_cores_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, str] = {}
    monkeypatch.setattr(machine, "_num_cores", lambda: machine.FEW_CORES)
    machine.let_threads_sleep(found)
    assert found == {"OMP_WAIT_POLICY": "PASSIVE"}
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        said = {name: "7"}
        machine.let_threads_sleep(said)
        assert said == {name: "7"}, "a person has said otherwise"
    monkeypatch.setattr(machine, "_num_cores", lambda: machine.FEW_CORES + 1)
    many: dict[str, str] = {}
    machine.let_threads_sleep(many)
    assert many == {}
