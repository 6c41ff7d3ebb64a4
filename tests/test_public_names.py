"""The public face: few names, each importable and documented, and importing it starts nothing."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import foresee

PUBLIC = {
    "SGD", "Adagrad", "Batches", "ClickLog", "EmbeddingBagConfig", "EmbeddingBags", "ForeseeError", "LazyAdam",
    "RowwiseAdagrad", "Run", "Step", "Tables", "checkpoint", "fetches_by_cache", "load_exported", "lookahead",
    "models",
}  # fmt: skip


def test_the_names_are_these() -> None:
    """A name given to people is hard to take back: adding one is a decision, so it is made here too."""
    assert set(foresee.__all__) == PUBLIC
    assert len(foresee.__all__) == len(PUBLIC)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_name_is_documented(name: str) -> None:
    thing = getattr(foresee, name)
    # A dataclass without words gets its signature as a docstring, which tells a person nothing.
    text = inspect.getdoc(thing) or ""
    assert len(text) > 20, f"foresee.{name} has no documentation"
    assert not text.startswith(f"{name}("), f"foresee.{name} has no documentation of its own"


@pytest.mark.parametrize("name", sorted(PUBLIC - {"models"}))
def test_every_public_method_is_documented(name: str) -> None:
    thing = getattr(foresee, name)
    if not inspect.isclass(thing) or issubclass(thing, Exception):
        return
    own = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
    methods = [key for key, value in own.items() if inspect.isfunction(value) or isinstance(value, classmethod)]
    bare = [key for key in methods if not inspect.getdoc(getattr(thing, key))]
    assert not bare, f"foresee.{name}: not documented: {', '.join(bare)}"


def test_the_docstring_shows_the_loop() -> None:
    text = foresee.__doc__ or ""
    for word in ("ClickLog.open", "Tables.on_disk", "foresee.lookahead(", "step.update()"):
        assert word in text


def test_a_star_import_and_a_version() -> None:
    """In a process of its own: a plain import must not warn, print or need anything else to be imported first."""
    code = "from foresee import *; import foresee; print(foresee.__version__, sorted(foresee.__all__)[0])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [foresee.__version__, sorted(PUBLIC)[0]]


API_PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text("utf-8")
CALLS = {
    "EmbeddingBagConfig": foresee.EmbeddingBagConfig, "Batches": foresee.Batches, "lookahead": foresee.lookahead,
    "Tables.in_memory": foresee.Tables.in_memory, "Tables.on_disk": foresee.Tables.on_disk, "SGD": foresee.SGD,
    "Adagrad": foresee.Adagrad, "RowwiseAdagrad": foresee.RowwiseAdagrad, "LazyAdam": foresee.LazyAdam,
}  # fmt: skip


def test_the_page_of_names_has_all_of_them() -> None:
    assert [name for name in PUBLIC if f"`{name}" not in API_PAGE] == []


@pytest.mark.parametrize("name", CALLS)
def test_the_page_of_names_has_every_argument_with_its_default(name: str) -> None:
    (shown,) = re.findall(rf"`{re.escape(name)}\(([^`]*)\)`", API_PAGE)
    expected = [
        parameter.name + _default(parameter) for parameter in inspect.signature(CALLS[name]).parameters.values()
    ]
    assert re.split(r", (?=\w+)", shown) == expected


def _default(parameter: inspect.Parameter) -> str:
    """As the page writes it: nothing for a place, `=` for a keyword that has to be given."""
    if parameter.default is inspect.Parameter.empty:
        return "=" if parameter.kind is inspect.Parameter.KEYWORD_ONLY else ""
    value = parameter.default
    return "=" + (f'"{value}"' if isinstance(value, str) else repr(value))
