"""A sample of `tests/chaos/soak.py`: random settings, killed late, and the bytes of the undisturbed run."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from warm_commands import Commands

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import soak
from soak_settings import DrawnLoop, DrawnRun, draw


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sample_of_the_soak(commands: Commands, tmp_path: Path) -> None:
    said: list[str] = []
    found = soak.run_with(commands, tmp_path, cells=5, seed=3, progress=said.append)
    assert found["cells"] >= 5, said
    assert found["soak_kills"] >= found["cells"], said
    assert found["different_bytes"] == 0, said


def test_the_settings_of_the_soak_are_of_every_kind() -> None:
    drawn = [draw(random.Random(f"0 {number}")) for number in range(100)]
    runs = [it for it in drawn if isinstance(it, DrawnRun)]
    loops = [it for it in drawn if isinstance(it, DrawnLoop)]
    assert {it.workers for it in runs} == {it.workers for it in loops} == {1, 2, 3}
    for field in ("placement", "optimizer", "dtype", "clip_norm", "dense_optimizer"):
        assert len({getattr(it, field) for it in runs}) >= 3, field
    assert {it.loop.parts for it in loops} == {1, 2, 3}
    for flag in ("widths", "schedule", "servers"):
        assert {bool(getattr(it, flag)) for it in runs} == {False, True}, flag
    assert {it.loop.sequences for it in loops} == {False, True}
