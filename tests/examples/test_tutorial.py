"""The tutorial's scripts do the same, before and after, and what the pages show is what the files and programs say."""

from __future__ import annotations

import difflib
import re
import runpy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foresee.errors import DataError
from foresee.tools.forecast import fetches_by_cache

ROOT = Path(__file__).parents[2]
PAGES = {"from_pytorch": ROOT / "docs" / "tutorial.md", "from_torchrec": ROOT / "docs" / "torchrec.md"}

Script = dict[str, Any]


@pytest.fixture(scope="module")
def scripts() -> Iterator[tuple[Script, Script]]:
    """The names that before.py and after.py end with."""
    folder = ROOT / "examples" / "from_pytorch"
    sys.path.insert(0, str(folder))
    try:
        with warnings.catch_warnings():
            # Torch's own, of its Adagrad, and only once in a process.
            warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
            before = runpy.run_path(str(folder / "before.py"))
        yield before, runpy.run_path(str(folder / "after.py"))
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("clicks", None)


def test_losses_agree_to_the_stated_precision(scripts: tuple[Script, Script]) -> None:
    before, after = scripts
    assert len(before["losses"]) == 158
    assert after["losses"] == pytest.approx(before["losses"], abs=1e-5)
    assert torch.allclose(torch.cat(after["scores"]), torch.cat(before["scores"]), atol=1e-4)
    assert before["losses"][-1] < before["losses"][0] - 0.05, "something was learned"


def test_what_was_learned_goes_back_to_pytorch(scripts: tuple[Script, Script]) -> None:
    _, after = scripts
    weights = after["bags"].state_dict(after["tables"], prefix="")
    tables, dim = after["TABLES"], after["DIM"]
    plain = nn.ModuleDict({name: nn.EmbeddingBag(rows, dim, mode="mean") for name, rows in tables.items()})
    plain.load_state_dict(weights)
    scored = []
    with torch.no_grad():
        for dense, ids, _ in after["batches"]("valid"):
            pooled = torch.cat([plain[name](*ids[name]) for name in tables], dim=1)
            scored.append(after["head"](torch.cat([dense, pooled], dim=1)).squeeze(1))
    assert torch.allclose(torch.cat(scored), torch.cat(after["scores"]), atol=1e-5)


def test_the_curve_on_the_page_is_the_curve(scripts: tuple[Script, Script]) -> None:
    text = PAGES["from_pytorch"].read_text("utf-8")
    shown = re.findall(r"^ +([\d,]+) rows in the cache: ([\d,]+) fetched a step$", text, re.MULTILINE)
    found = fetches_by_cache(scripts[1]["source"])
    assert [(f"{size:,}", f"{fetched:,.0f}") for size, fetched in found.items()] == shown
    with pytest.raises(DataError, match="there is no batch to plan"):
        fetches_by_cache(scripts[1]["source"], num_steps=0)


def test_the_figures_on_the_page_are_those_of_the_scripts(scripts: tuple[Script, Script]) -> None:
    """To three decimals: another processor rounds sums otherwise."""
    before, _ = scripts
    text = PAGES["from_pytorch"].read_text()
    firsts, lasts = re.findall(r"first loss (\d\.\d+)", text), re.findall(r"last loss (\d\.\d+)", text)
    aucs = re.findall(r"AUC on the valid split (\d\.\d+)", text)
    auc = before["auc"](torch.cat(before["scores"]), torch.cat(before["clicked"]))
    for shown, found in ((firsts, before["losses"][0]), (lasts, before["losses"][-1]), (aucs, auc)):
        assert len(shown) == 2
        assert [float(it) for it in shown] == pytest.approx([found] * 2, abs=2e-3)


@pytest.mark.parametrize("folder", PAGES)
def test_the_difference_on_the_page_is_the_difference(folder: str) -> None:
    before, after = (
        (ROOT / "examples" / folder / name).read_text("utf-8").splitlines() for name in ("before.py", "after.py")
    )
    difference = "\n".join(difflib.unified_diff(before, after, "before.py", "after.py", n=2, lineterm=""))
    assert f"```diff\n{difference}\n```\n" in PAGES[folder].read_text("utf-8")


def test_the_script_on_the_page_is_the_script() -> None:
    script = (ROOT / "examples" / "from_pytorch" / "before.py").read_text("utf-8")
    assert f"```python\n{script}```\n" in PAGES["from_pytorch"].read_text("utf-8")
