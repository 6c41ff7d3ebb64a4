"""There is one loop that trains and one checkpoint, for one process and for several."""

from __future__ import annotations

import ast
from pathlib import Path

import foresee

SOURCE = Path(foresee.__file__).parent


def _calls(path: Path, method: str) -> list[str]:
    """Where a file calls a method of this name without arguments."""
    return [
        f"{path.relative_to(SOURCE).as_posix()}:{node.lineno}"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == method
    ]


def test_one_loop_trains() -> None:
    found = [place for path in sorted(SOURCE.rglob("*.py")) for place in _calls(path, "backward")]
    buckets = "engine/exchange/dense.py"  # fixes DDP's buckets before training; its gradients are dropped
    assert [place.split(":")[0] for place in found] == [buckets, "run/loop.py"], found


def test_one_callback_commits() -> None:
    """The moments of a run's commit stand in one place, whatever the store and however many train."""
    texts = {path.name: path.read_text("utf-8") for path in (SOURCE / "run").rglob("*.py")}
    for moment in ("FLUSHED", "PREPARED", "SETTLED"):
        assert [name for name, text in texts.items() if f"failpoints.{moment}" in text] == ["callbacks.py"]
