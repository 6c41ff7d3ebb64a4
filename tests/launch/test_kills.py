"""A short version of `tests/chaos/kills.py`: a few dozen real kills, and the same bytes after all of them."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from warm_commands import Commands

from foresee.data import ClickLog

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

import kills
from full_disks import fill_disks


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SINGLE", "ABANDONED"):
        monkeypatch.setattr(kills, name, replace(getattr(kills, name), epochs=2))
    monkeypatch.setattr(kills, "LAUNCHED_SETTINGS", (replace(kills.PLACED, epochs=3),))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "num_kills"),
    [(kills._single_runs, 9), (kills._graph_runs, 4), (kills._launched_runs, 9), (kills._abandoned_runs, 2)],
)
def test_killed_runs_end_with_the_same_bytes(
    commands: Commands, small_log: ClickLog, tmp_path: Path, kind: Callable[..., None], num_kills: int
) -> None:
    counts, said = Counter[str](), list[str]()
    kind(commands, tmp_path, small_log, random.Random(11), counts, num_kills, said.append)
    assert counts["kills"] >= num_kills, said
    assert counts["runs"] >= 1, said
    assert counts["different_bytes"] == 0, said


@pytest.mark.slow
def test_a_full_disk_is_a_sentence_and_then_the_same_bytes(
    commands: Commands, small_log: ClickLog, tmp_path: Path
) -> None:
    said: list[str] = []
    found = fill_disks(commands, tmp_path, small_log, random.Random(3), trials=1, progress=said.append)
    if not found["full_disks"]:
        pytest.skip(said[-1])
    assert found["different_bytes"] == 0
