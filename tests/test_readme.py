"""The file trees of README and docs are the tree, and the README's commands exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import typer.main

from foresee.cli import app

ROOT = Path(__file__).resolve().parent.parent


def test_the_file_tree_is_current() -> None:
    specification = importlib.util.spec_from_file_location("write_tree", ROOT / "docs" / "write_tree.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for name, modules in module.PAGES.items():
        page = (ROOT / name).read_text()
        assert module.with_tree(page, modules=modules) == page, f"{name} is behind: run python docs/write_tree.py"


def test_every_command_named_in_the_readme_exists() -> None:
    known = set(typer.main.get_group(app).commands)
    named = set(re.findall(r"foresee ([a-z-]+)", (ROOT / "README.md").read_text()))
    commands = {name for name in named if name in known or f"`foresee {name}" in (ROOT / "README.md").read_text()}
    assert commands <= known
    assert {"demo", "prepare", "plan", "train", "evaluate", "verify", "export"} <= commands


def test_links_of_the_readme_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert targets
    for target in targets:
        assert target.startswith("http") or (ROOT / target).exists(), target
