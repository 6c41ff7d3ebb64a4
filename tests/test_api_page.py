"""docs/api.md is what the docstrings say, and the docstrings name every argument."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import foresee
from foresee.run.serving.exported import Exported

ROOT = Path(__file__).resolve().parent.parent
TOLD_IN_PROSE = {"Run", "Step", "lookahead"}
"""Public names whose arguments have no section yet."""
NO_SECTION = {"state_width", "step_tensors", "step_rows"}
"""Methods of optimisers, which rows call and people do not."""


def writer() -> Any:
    specification = importlib.util.spec_from_file_location("write_api", ROOT / "docs" / "write_api.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_the_page_is_current() -> None:
    module = writer()
    assert module.page() == module.PAGE.read_text("utf-8"), "docs/api.md is behind: run python docs/write_api.py"


def callables() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Everything public that takes arguments: its name, itself, and the text that has to name them."""
    classes = {name: it for name in foresee.__all__ if inspect.isclass(it := getattr(foresee, name))}
    for name, kind in {**classes, "Exported": Exported}.items():
        if name in TOLD_IN_PROSE or issubclass(kind, Exception):
            continue
        if not is_dataclass(kind) and not getattr(kind, "_is_protocol", False):
            yield name, kind, inspect.getdoc(kind) or ""
        for method, value in vars(kind).items():
            if (
                method not in NO_SECTION
                and not method.startswith("_")
                and (inspect.isfunction(value) or isinstance(value, classmethod))
            ):
                function = getattr(kind, method)
                yield f"{name}.{method}", function, inspect.getdoc(function) or ""
    for name in sorted(set(foresee.__all__) - TOLD_IN_PROSE):
        if inspect.isfunction(function := getattr(foresee, name)):
            yield name, function, inspect.getdoc(function) or ""
    for function in (foresee.checkpoint.save, foresee.checkpoint.load):
        yield f"checkpoint.{function.__name__}", function, inspect.getdoc(function) or ""


@pytest.mark.parametrize(("name", "thing", "text"), [pytest.param(*it, id=it[0]) for it in callables()])
def test_every_argument_has_its_line(name: str, thing: Callable[..., Any], text: str) -> None:
    wanted = [it for it in inspect.signature(thing).parameters if it not in ("self", "kwargs")]
    section = text.partition("Args:\n")[2].split("\n\n")[0]
    told = re.findall(r"^ {4}(\w+): \S", section, re.M)
    assert told == wanted, f"foresee.{name}: Args: names {told}, the arguments are {wanted}"


@pytest.mark.parametrize("name", ["SGD", "Adagrad", "RowwiseAdagrad", "LazyAdam", "EmbeddingBagConfig"])
def test_fields_of_dataclasses_are_told_below_them(name: str) -> None:
    kind = getattr(foresee, name)
    assert set(dict(writer().field_docs(kind))) == {it.name for it in fields(kind)}


def test_sections_become_lists() -> None:
    text = "It.\n\nArgs:\n    rows: How many,\n        at most.\n    a: B.\n\nReturns:\n    A number: one.\n\nMore."
    assert writer().rendered(text) == (
        "It.\n\n**Args**\n\n- `rows`: How many, at most.\n- `a`: B.\n\n**Returns**\n\n- A number: one.\n\nMore.\n"
    )
