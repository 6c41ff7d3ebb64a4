"""A few thousand of the hostile messages and files that `make chaos` tries by the hundred thousand."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hostile_mutations import mutate, mutate_json

import hostile
from foresee.errors import StoreError


def test_a_sample_of_hostile_messages_and_files() -> None:
    said: list[str] = []
    found = hostile.run(trials=2000, seed=11, progress=said.append)
    assert found == {"hostile_tried": 2000, "hostile_crashes": 0}, "\n".join(said)


def test_a_crash_a_hang_and_a_foreign_error_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: what it must count is counted."""

    def refuse() -> None:
        raise StoreError("it is cut off; restore it")

    def fail() -> None:
        raise KeyError("width")

    def swell() -> None:
        np.ones(1 << 27, np.float32)

    def ramble() -> None:
        raise StoreError("x" * 5000)

    assert hostile.attempt(refuse, "name") is None
    assert "KeyError" in str(hostile.attempt(fail, "name"))
    assert "characters" in str(hostile.attempt(ramble, "name"))
    assert re.search(r"it took [\d,]+ bytes", str(hostile.attempt(swell, "name")))


def test_a_case_is_its_seed_and_number() -> None:
    content = b'{"format_version": 2, "tables": [{"name": "a", "num_rows": 5}]}'

    def make(way: Any, number: int) -> bytes:
        return bytes(way(np.random.default_rng([1, number]), content))

    for way in (mutate, mutate_json):
        cases = [make(way, number) for number in range(300)]
        assert cases == [make(way, number) for number in range(300)]
        assert len(set(cases)) > 100
        assert sum(case == content for case in cases) < 30
