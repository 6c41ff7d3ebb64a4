"""Commands that are printed can be pasted: `foresee` if a shell finds this one, else as it was started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from foresee.tools.cli.options import invocation


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))


def program(folder: str, name: str = "foresee") -> Path:
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_from_an_environment_that_is_not_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(program(".venv/bin")), "demo"])
    assert invocation() == ".venv/bin/foresee"


def test_from_an_environment_elsewhere_with_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(program("my tools/bin").absolute()), "demo"])
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert invocation() == f"'{tmp_path}/my tools/bin/foresee'"


def test_from_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(program("bin").absolute()), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert invocation() == "foresee"


def test_another_foresee_on_the_path_is_not_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program("other")
    monkeypatch.setattr(sys, "argv", [str(program("bin")), "demo"])
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    assert invocation() == "bin/foresee"


def test_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    python = program("venv/bin", "python")
    monkeypatch.setattr(sys, "argv", ["/somewhere/foresee/__main__.py", "demo"])
    monkeypatch.setattr(sys, "executable", str(python.absolute()))
    assert invocation() == "venv/bin/python -m foresee"
