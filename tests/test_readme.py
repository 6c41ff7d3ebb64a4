"""The file tree of docs/files.md is the tree, and the README's commands exist.

That they work in their order is seen in tests/newcomer.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from foresee.tools.cli.commands import COMMANDS

ROOT = Path(__file__).resolve().parent.parent


def test_the_file_tree_is_current() -> None:
    specification = importlib.util.spec_from_file_location("write_tree", ROOT / "docs" / "write_tree.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    page = module.PAGE.read_text()
    assert module.with_tree(page) == page, f"{module.PAGE} is behind: run python docs/write_tree.py"


def test_every_command_named_in_the_readme_exists() -> None:
    known = set(COMMANDS)
    named = set(re.findall(r"foresee ([a-z-]+)", (ROOT / "README.md").read_text()))
    commands = {name for name in named if name in known or f"`foresee {name}" in (ROOT / "README.md").read_text()}
    assert commands <= known
    assert {"demo", "prepare", "plan", "train", "evaluate", "verify", "export"} <= commands


def test_every_command_and_every_page_is_named_in_the_readme() -> None:
    page = (ROOT / "README.md").read_text()
    commands = page[page.index("| command | does |") : page.index("`foresee COMMAND --help`")]
    assert [name for name in COMMANDS if not re.search(rf"`(foresee )?{name}`", commands)] == []
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"(docs/{path.name})" not in page] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert targets
    for target in targets:
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_from_a_csv_to_a_model_is_five_lines_and_comes_first() -> None:
    """What a person types first; benchmarks and details come below."""
    page = (ROOT / "README.md").read_text()
    first = page.index("```sh\n")
    lines = page[first:].split("```")[1].splitlines()[1:]
    words = ("pip install", "foresee prepare csv", "foresee init", "foresee train", "foresee export")
    commands = [line for line in lines if line.startswith(words)]
    assert [line.startswith(word) for line, word in zip(commands, words, strict=True)] == [True] * 5
    assert first < page.index("| figure") < page.index("## Read on")
    assert "Python 3.11" in page[: page.index("## ")] or "Python 3.11" in page[first : first + 1500]


def test_cells_of_the_readme_are_short() -> None:
    for line in (ROOT / "README.md").read_text().splitlines():
        if line.startswith("|"):
            assert all(len(cell.strip()) <= 90 for cell in re.sub(r"\]\([^)]*\)", "]", line).split("|")), line
