"""A short version of `tests/chaos/kills.py`: a few dozen real kills, and the same bytes after each of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from warm_commands import Commands

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import kills

NUM_KILLS = 24


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bytes(commands: Commands, tmp_path: Path) -> None:
    said: list[str] = []
    found = kills.run_with(commands, tmp_path, kills=NUM_KILLS, seed=11, progress=said.append)
    assert found["kills"] >= NUM_KILLS, said
    assert found["different_bytes"] == 0, said
    assert {"train", "launcher"} <= found.keys()
