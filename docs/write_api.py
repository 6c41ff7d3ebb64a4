"""Writes docs/api.md: the public names with their signatures and docstrings.

In: `foresee.__all__` and what the code says of itself. Out: one page. Run it after changing a public name or its
docstring; a test fails while the page is behind. Fields of dataclasses are documented below each of them, so they are
read from the source.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"
sys.path.insert(0, str(ROOT / "src"))

import foresee  # noqa: E402 - the source beside this page, whatever is installed
from foresee.run.serving.exported import Exported  # noqa: E402

BESIDE: dict[str, Any] = {"load_exported": Exported}
"""What a public function returns and people use, though they never name it."""
OF_MODULES = {"checkpoint": ("save", "load"), "models": None}
"""Which functions of a public module are meant; None: all that it lists."""
INTRODUCTION = """# API reference

<!-- Written by docs/write_api.py from the docstrings; change those. -->

Every public name of `import foresee`. The [tutorial](tutorial.md) has them at work, [extending](extending.md) shows
where your own code goes. What is not here is private and may change with any release.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(part for name in sorted(foresee.__all__, key=str.lower) for part in entry(name))])


def entry(name: str) -> Iterator[str]:
    thing = getattr(foresee, name)
    yield f"## `foresee.{name}`\n"
    if inspect.ismodule(thing):
        yield from of_module(name, thing)
    elif inspect.isclass(thing):
        yield from of_class(name, thing)
    else:
        yield from of_callable(f"foresee.{name}", thing)
    if name in BESIDE:
        yield f"### `{BESIDE[name].__name__}`\n"
        yield from of_class(BESIDE[name].__name__, BESIDE[name])


def of_module(name: str, module: Any) -> Iterator[str]:
    yield rendered(inspect.getdoc(module) or "")
    for inside in OF_MODULES[name] or sorted(module.__all__):
        thing = getattr(module, inside)
        if inspect.isclass(thing) and inspect.getdoc(thing):
            yield f"- `foresee.{name}.{inside}{signature(thing)}`: {first_sentence(thing)}\n"
        elif inspect.isfunction(thing):
            yield from of_callable(f"foresee.{name}.{inside}", thing)


def of_class(name: str, kind: type[Any]) -> Iterator[str]:
    if not issubclass(kind, Exception):
        yield f"```python\n{name}{signature(kind)}\n```\n"
    yield rendered(inspect.getdoc(kind) or "")
    if is_dataclass(kind) and (told := dict(field_docs(kind))):
        yield "**Args**\n"
        yield "\n".join(f"- `{it.name}`: {told.get(it.name, '')}" for it in fields(kind) if it.init) + "\n"
    for attribute, value in vars(kind).items():
        if attribute.startswith("_") or (is_dataclass(kind) and attribute in {it.name for it in fields(kind)}):
            continue
        if isinstance(value, property):
            yield f"- `.{attribute}`: {first_sentence(value)}\n"
        elif inspect.isfunction(value) or isinstance(value, classmethod | staticmethod):
            yield from of_callable(f"{name}.{attribute}", getattr(kind, attribute))


def of_callable(name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield f"**`{name}{signature(function)}`**\n"
    yield rendered(inspect.getdoc(function) or "")


def signature(thing: Callable[..., Any]) -> str:
    """As it stands in the source: annotations without quotes, on one line."""
    try:
        found = inspect.signature(thing)
    except ValueError:
        return "(...)"
    words: list[str] = []
    for parameter in found.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(_parameter(parameter))
    given = found.return_annotation
    returns = "" if given is found.empty or inspect.isclass(thing) else f" -> {_word(given)}"
    return f"({', '.join(words)}){returns}"


def _parameter(parameter: inspect.Parameter) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = f"{star}{parameter.name}"
    if parameter.annotation is not parameter.empty:
        text += f": {_word(parameter.annotation)}"
    default = parameter.default
    if default is parameter.empty or default is MISSING:
        return text
    # An address would be another in every process.
    shown = re.sub(r" at 0x[0-9a-f]+", "", repr(default))
    return f"{text} = {shown}"


def _word(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def field_docs(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """The text below each field of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def rendered(text: str) -> str:
    """A docstring as Markdown: its sections (Args:, Returns:, Raises:, Yields:) become lists."""
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Returns|Raises|Yields):", line):
            out += [f"**{line[:-1]}**", ""]
            inside = True
        elif inside and re.match(r" {4}\S", line):
            name, colon, said = line.strip().partition(": ")
            out.append(f"- `{name}`: {said}" if colon and re.fullmatch(r"[\w*]+", name) else f"- {line.strip()}")
        elif inside and line.startswith(" " * 5):
            out[-1] += f" {line.strip()}"
        else:
            inside = inside and not line
            out.append(line)
    return "\n".join(out) + "\n"


def first_sentence(thing: Any) -> str:
    line = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return line.split(". ")[0].rstrip(".") + "."


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
