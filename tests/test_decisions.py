"""Every decision is in the index of docs/decisions, and no page or source names one that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "decisions"
FILES = {int(path.name[:4]): path.name for path in FOLDER.glob("[0-9]*.md")}


def test_the_index_has_every_decision() -> None:
    index = (FOLDER / "README.md").read_text("utf-8")
    assert {int(number): file for number, file in re.findall(r"^(\d+)\. \[.+\]\((.+\.md)\)$", index, re.M)} == FILES
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", index, re.M)]
    assert numbers == list(range(1, len(numbers) + 1)), "a number that was left out says so"


def test_decisions_that_are_named_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        (int(number), path.name)
        for path in pages if path.parent != FOLDER
        for number in re.findall(r"\b[Dd]ecision (\d+)", path.read_text("utf-8"))
    }  # fmt: skip
    assert named
    assert not {(number, page) for number, page in named if number not in FILES}
