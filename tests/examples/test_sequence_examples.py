"""The models over sequences learn something of MovieLens, or of made-up films where it is not, in a few steps each."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "sequences"
GOOD = {"din": 0.6, "sasrec": 0.005, "two_tower": 0.04}
"""AUC, NDCG@10 and recall@50; by chance 0.5, about 0.001 and 0.013 of the films of MovieLens."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", GOOD)
def test_it_learns_what_people_watch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", [name, "--folder", str(tmp_path), "--people", "500", "--epochs", "4"])
    monkeypatch.syspath_prepend(str(FOLDER))
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        torch.set_num_threads(threads)
        sys.modules.pop("films", None)
    told = capsys.readouterr().out
    first, last = (float(it) for it in re.findall(r"(?:first|last) loss (\d\.\d+)", told))
    assert last < first
    assert float(re.findall(r"(?:held out|NDCG@10|[\d,]+:) (\d\.\d+)", told)[0]) > GOOD[name], told
