"""The models over sequences learn from MovieLens, and from the made-up films that stand in for it, in a few steps."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from real_data import RealData

FOLDER = Path(__file__).parents[2] / "examples" / "sequences"
MADE_UP = {"din": 0.6, "sasrec": 0.05, "two_tower": 0.2}
MOVIELENS = {"din": 0.6, "sasrec": 0.005, "two_tower": 0.04}
"""AUC, NDCG@10 and recall@50 that training must exceed. By chance: 0.5, about 0.008 and 0.083 with 600 made-up films,
0.5, 0.001 and 0.013 with those of MovieLens."""


def learned(
    name: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[float, str]:
    """Run an example on the films in `data`; return the figure it prints last, and all it prints."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("FORESEE_DATA", str(data))
    monkeypatch.setattr(sys, "argv", [name, "--folder", str(tmp_path / "tables"), "--people", "500", "--epochs", "4"])
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("films", None)
    printed = capsys.readouterr().out
    first, last = (float(it) for it in re.findall(r"(?:first|last) loss (\d\.\d+)", printed))
    assert last < first
    return float(re.findall(r"(?:held out|NDCG@10|[\d,]+:) (\d\.\d+)", printed)[0]), printed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MADE_UP)
def test_it_learns_from_made_up_films_where_movielens_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quality, printed = learned(name, tmp_path / "missing", tmp_path, monkeypatch, capsys)
    assert "people and films are made up" in printed
    assert quality > MADE_UP[name], printed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MOVIELENS)
def test_it_learns_what_people_watch(
    name: str,
    real_data: RealData,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real_data.path("movielens/ml1m_user_sequences_timeordered.parquet")
    quality, printed = learned(name, real_data.folder, tmp_path, monkeypatch, capsys)
    assert quality > MOVIELENS[name], printed
