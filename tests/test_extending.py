"""The recipes of docs/extending.md run as they stand.

Each heading is a recipe: blocks that begin with `# name.py` become files, the others are run in their order, all in one
new folder and one new process. `<!-- not run: why -->` below a heading skips it and says why.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs" / "extending.md"
RECIPES = {
    "A model",
    "A callback",
    "A raw format",
    "A policy",
    "A row optimiser",
    "A store",
    "An order of a graph",
    "An engine",
}


def recipes() -> dict[str, str]:
    """The text below each heading."""
    found = re.split(r"^## (.+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def test_every_heading_is_a_recipe() -> None:
    assert set(recipes()) == RECIPES
    assert all("```python\n" in text for text in recipes().values())


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recipe_runs(name: str, tmp_path: Path) -> None:
    text = recipes()[name]
    if (why := re.search(r"<!-- not run: (.+?) -->", text)) is not None:
        pytest.skip(f"docs/extending.md, {name}: {why[1]}")
    for block in re.findall(r"^```python\n(.+?)^```", text, re.DOTALL | re.MULTILINE):
        if (file := re.match(r"# (\w+\.py)\n", block)) is not None:
            (tmp_path / file[1]).write_text(block)
            continue
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
