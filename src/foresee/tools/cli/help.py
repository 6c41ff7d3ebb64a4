"""Help that shows all of a command's syntax at any width: no name, metavar or choice is ever cut.

In: a command of typer. Out: the same command, whose help is usage, text, and lists of arguments, options and commands;
an option that is too long for its column has its text on the next line. `[bold]` and the like in texts are rendered.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

COLUMN = 26
"""Where texts begin; a name that reaches further has a line of its own."""
WIDTH_MAX = 110
_NUMBERS, _PATHS, _FLAGS = ("int", "float"), ("path", "file"), ("bool",)


def with_whole_help(command: Any) -> Any:
    """Gives the command, and all below it, help of this kind."""
    command.format_help = partial(_write_help, command)
    for below in getattr(command, "commands", {}).values():
        with_whole_help(below)
    return command


def _write_help(command: Any, ctx: Any, formatter: Any) -> None:
    console = Console(highlight=False)
    console.width = min(console.width, WIDTH_MAX)
    console.print(Text(f"Usage: {' '.join([ctx.command_path, *_usage(command)])}", "bold"), soft_wrap=True)
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        console.print()
        _paragraph(console, paragraph)
    shown = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [(_argument(param), _words(param)) for param in shown if param.param_type_name == "argument"]
    options = [(_option(param), _words(param)) for param in shown if param.param_type_name == "option"]
    below = [(name, _line(command.get_command(ctx, name))) for name in getattr(command, "commands", {})]
    for title, entries in (("Arguments", arguments), ("Options", options), ("Commands", below)):
        _list(console, title, entries)


def _paragraph(console: Console, text: str) -> None:
    """Prose fills the width; indented lines are examples, to be copied as they are."""
    if any(line.startswith(" ") for line in text.splitlines()):
        for line in text.splitlines():
            console.print(Text.from_markup(line), soft_wrap=True)
    else:
        for wrapped in Text.from_markup(" ".join(text.split())).wrap(console, console.width):
            wrapped.rstrip()
            console.print(wrapped)


def _list(console: Console, title: str, entries: Sequence[tuple[str, str]]) -> None:
    if not entries:
        return
    console.print(Text(f"\n{title}", "bold"))
    column = min(COLUMN, 4 + max(len(name) for name, _ in entries))
    for name, text in entries:
        lines = Text.from_markup(text).wrap(console, max(20, console.width - column))
        for line in lines:
            line.rstrip()
        first = Text(f"  {name}", "cyan")
        if lines and first.cell_len < column - 1:
            console.print(first + Text(" " * (column - first.cell_len)) + lines.pop(0))
        else:
            console.print(first, soft_wrap=True)
        for line in lines:
            console.print(Text(" " * column) + line)


def _usage(command: Any) -> list[str]:
    needed = [_option(param) for param in command.params if param.param_type_name == "option" and param.required]
    arguments = [_argument(param) for param in command.params if param.param_type_name == "argument"]
    below = ["COMMAND ..."] if getattr(command, "commands", None) else []
    return [*arguments, *needed, "[OPTIONS]", *below]


def _argument(param: Any) -> str:
    name = param.metavar or param.name.upper()
    name = name if param.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option(param: Any) -> str:
    names = ", ".join(sorted(param.opts, key=len)) + "".join(f" / {name}" for name in param.secondary_opts)
    return f"{names} {_value(param)}".rstrip()


def _value(param: Any) -> str:
    """What follows the option's name."""
    if param.metavar:
        return str(param.metavar)
    # The library keeps types in one place or another, as its version has it.
    kept = getattr(param, "type", None) or param.type_descriptor
    if getattr(kept, "choices", None):
        return "|".join(map(str, kept.choices))
    kind = str(getattr(kept, "name", None) or getattr(kept, "annotation", "")).lower()
    kinds = {_FLAGS: "", _PATHS: "PATH", _NUMBERS: "NUM"}
    return next((word for parts, word in kinds.items() if any(part in kind for part in parts)), "TEXT")


def _words(param: Any) -> str:
    """The option's help, and what is taken without it."""
    text = " ".join((getattr(param, "help", None) or "").split())
    if param.required:
        return f"{text} \\[required]"
    default = param.default
    if param.secondary_opts:
        default = (param.opts if default else param.secondary_opts)[0].lstrip("-")
    taken = default is not None and default is not False and default != "" and not callable(default)
    return f"{text} \\[default: {default}]" if taken and getattr(param, "show_default", True) else text


def _line(command: Any) -> str:
    """The first paragraph of what a command says of itself."""
    return " ".join(inspect.cleandoc(command.short_help or command.help or "").split("\n\n")[0].split())
