"""What users' scripts and programs depend on, as lines of text: the command line, the public API, figures.

Words of help are left out. Commands are found as a shell finds them, by `python -m foresee`; nothing here names a
module inside the package.
"""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from unittest import mock

from typer.core import TyperGroup

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
GOLDEN = HERE / "golden"


# The command line ----------------------------------------------------------------------------------------------------


class _Found(BaseException):
    """Carries the group of all commands out of `python -m foresee`."""

    def __init__(self, group: TyperGroup) -> None:
        self.group = group


def command_line() -> Iterator[str]:
    """Each command with its arguments and options: kind, type, default."""

    def found(group: TyperGroup, *_: Any, **__: Any) -> None:
        raise _Found(group)

    with mock.patch.object(TyperGroup, "main", found), mock.patch.object(sys, "argv", ["foresee"]):
        try:
            runpy.run_module("foresee", run_name="__main__")
        except _Found as carried:
            yield from _commands("foresee", carried.group)


def _commands(path: str, command: Any) -> Iterator[str]:
    context = command.make_context("foresee", [], resilient_parsing=True)
    hidden = " hidden" if command.hidden else ""
    yield f"{path}{hidden}"
    for parameter in command.params:
        yield f"{path} {_parameter(parameter, context)}"
    for name in command.list_commands(context) if hasattr(command, "list_commands") else ():
        yield from _commands(f"{path} {name}", command.resolve_command(context, [name])[1])


def _parameter(parameter: Any, context: Any) -> str:
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    about = {
        "type": _type(parameter.type_descriptor.annotation), "min": parameter.min, "max": parameter.max,
        "default": _default(parameter.default), "required": parameter.required,
        "nargs": parameter.nargs if parameter.nargs != 1 else None, "multiple": getattr(parameter, "multiple", None),
        "flag": getattr(parameter, "is_flag", None), "hidden": getattr(parameter, "hidden", None),
        "environment": parameter.envvar,
    }  # fmt: skip
    said = " ".join(f"{name}={value!r}" for name, value in about.items() if value is not None and value is not False)
    return f"{parameter.param_type_name} {names}: {said}"


def _type(annotation: Any) -> str:
    """The type of a value; of a choice, what there is to choose."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " ".join(str(it.value) for it in annotation)
    return re.sub(r"\b(\w+\.)+(?=\w)", "", annotation.__name__ if type(annotation) is type else str(annotation))


def _default(value: Any) -> Any:
    """Values that compare as text; functions and objects by their kind only."""
    if isinstance(value, Enum):
        return str(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, Path | list | tuple) else f"<{type(value).__name__}>"


# The public API ------------------------------------------------------------------------------------------------------


def public_api() -> Iterator[str]:
    """Each public name with its signature, members and fields."""
    import foresee
    import foresee.testing

    for module in (foresee, foresee.testing):
        for name in sorted(module.__all__):
            yield from _thing(f"{module.__name__}.{name}", getattr(module, name))


def _thing(path: str, thing: Any) -> Iterator[str]:
    if inspect.ismodule(thing):
        yield f"module {path}"
        documented = (ROOT / "docs" / "api.md").read_text("utf-8")
        names = getattr(
            thing, "__all__", [it for it in vars(thing) if f"{path.rpartition('.')[2]}.{it}(" in documented]
        )
        for name in sorted(names):
            yield from _thing(f"{path}.{name}", getattr(thing, name))
    elif inspect.isclass(thing):
        bases = [it.__name__ for it in thing.__mro__[1:] if it.__module__.startswith("foresee")]
        yield f"class {path}({', '.join(bases)}){_signature(thing)}"
        yield from sorted(_members(path, thing))
    elif callable(thing):
        yield f"function {path}{_signature(thing)}"
    else:
        yield f"value {path}: {type(thing).__name__}"


def _members(path: str, kind: type) -> Iterator[str]:
    if is_dataclass(kind):
        for field in fields(kind):
            default = "" if field.default is MISSING else f" = {_default(field.default)!r}"
            yield f"field {path}.{field.name}: {field.type}{default}"
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("foresee"):
            continue
        for name, member in vars(base).items():
            if name.startswith(("_", "test_")) or name in seen:
                continue
            seen.add(name)
            inner = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(member, property):
                settable = "" if member.fset is None else ", settable"
                yield f"property {path}.{name}{_signature(member.fget)}{settable}"
            elif inspect.isfunction(inner):
                yield f"method {path}.{name}{_signature(inner)}"
    for name, annotation in sorted(inspect.get_annotations(kind).items()):
        if not is_dataclass(kind) and not name.startswith("_"):
            yield f"attribute {path}.{name}: {annotation}"


def _signature(thing: Callable[..., Any] | None) -> str:
    try:
        text = str(inspect.signature(thing)) if thing is not None else "()"
    except (TypeError, ValueError):
        return "(?)"
    # Quotes around annotations and homes of classes are no part of an interface, nor are addresses of objects.
    text = re.sub(r"\bforesee(\.\w+)+\.(?=\w)", "", text.replace("'", ""))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


# Figures of benchmarks -----------------------------------------------------------------------------------------------


def figures() -> Iterator[str]:
    """Names in each benchmark's source that may be keys of what it prints; `*` stands for what is filled in."""
    folder = ROOT / "benchmarks"
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if path.parent == folder:
            yield from (f"{name}: {key}" for key in sorted(set(_keys(ast.parse(path.read_text("utf-8"))))))
    others = [it for it in folder.rglob("*.py") if it.parent != folder]
    keys = {key for path in others for key in _keys(ast.parse(path.read_text("utf-8")))}
    yield from (f"modules of benchmarks: {key}" for key in sorted(keys))


def _keys(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (name for key in node.keys for name in _name(key))
        elif isinstance(node, ast.DictComp):
            yield from _name(node.key)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield from _name(node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def _name(key: ast.expr | None) -> Iterator[str]:
    """The text of a key, if it could be a figure's name."""
    if isinstance(key, ast.IfExp):
        yield from (*_name(key.body), *_name(key.orelse))
    text = ""
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        text = key.value
    elif isinstance(key, ast.JoinedStr):
        text = "".join(str(it.value) if isinstance(it, ast.Constant) else "*" for it in key.values)
    if re.fullmatch(r"[\w*.@]+", text) and text.strip("*"):
        yield text


SURFACES: dict[str, Callable[[], Iterator[str]]] = {
    "command_line": command_line,
    "public_api": public_api,
    "figures": figures,
}


def recorded(name: str) -> list[str]:
    """The lines of a golden file."""
    path = GOLDEN / f"{name}.txt"
    return path.read_text("utf-8").splitlines() if path.exists() else []


def record(name: str) -> None:
    """Write the lines that are there now."""
    (GOLDEN / f"{name}.txt").write_text("\n".join(SURFACES[name]()) + "\n", "utf-8")


def differences(name: str) -> list[str]:
    """Lines that are gone, and lines that are new."""
    before, now = recorded(name), list(SURFACES[name]())
    gone = [f"{name}: gone: {line}" for line in before if line not in set(now)]
    new = [f"{name}: new: {line}" for line in now if line not in set(before)]
    moved = [f"{name}: the order of lines changed"] if before != now and not gone and not new else []
    return gone + new + moved
