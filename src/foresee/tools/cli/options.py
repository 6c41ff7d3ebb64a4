"""Arguments and options that several commands share, so that they read the same everywhere.

A bar for commands that work through a known number of steps; nothing where nobody looks.

How this command was started, so that commands printed for a person can be pasted as they are.

Options of a command out of the fields of a dataclass: those that are annotated with a text, which is the help
(`options_of`), or all, annotated as Typer does it (`grouped`).

In: a dataclass. Out: for each such field an annotation as Typer reads it, a default, and how what was typed becomes the
field's value. A tuple of names is typed with commas between; a tuple of paths is an option that may be given several
times, named in the singular; \t in a text is a tab.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foresee.data.formats.delimited import tabbed
from foresee.io.logs import LEVEL_VARIABLE, LogLevel
from foresee.io.urls import Place, place
from foresee.tools.cli.columns import split_names

RunFile = Annotated[
    Path, typer.Argument(metavar="RUN.YAML", help="The run: log, model, tables, cache, training. See docs/run-file.md.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Use another value than the file, such as [bold]--set cache.rows=200000[/]. May be given several times.",
    ),
]
Logged = Annotated[
    LogLevel,
    typer.Option("--log-level", envvar=LEVEL_VARIABLE, help="What processes say of themselves on the error stream."),
]
Log = Annotated[
    str, typer.Argument(metavar="LOG", help="A prepared log: a folder that `foresee prepare` wrote, or a URL of one.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, as `run` in its run file names it.")]
RunPlace = Annotated[
    str, typer.Argument(metavar="RUN", help="Folder of a run, as `run` in its run file names it; or the URL of one.")
]


@contextmanager
def bar(console: Console, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yields what is to be called after each step."""
    text = TextColumn("{task.description:>16}")
    columns = (text, BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def invocation() -> str:
    """`foresee` where a shell finds the one that runs; else its path, or `python -m foresee` if that is how it was."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return f"{_as_typed(Path(sys.executable))} -m foresee"
    if started.name != "foresee" or not started.exists():
        return "foresee"
    found = shutil.which("foresee")
    if found is not None and os.path.samefile(found, started):
        return "foresee"
    return _as_typed(started)


def _as_typed(path: Path) -> str:
    """From the current folder where it is below it, as a person would type it; links are left as they are."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    found = shutil.which(path.name)
    if found is not None and Path(found) == absolute:
        return path.name
    return shlex.quote(str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute))


REQUIRED: Any = Parameter.empty


@dataclass(frozen=True, slots=True)
class DerivedOption:
    """One option of a command."""

    name: str
    annotation: Any
    default: Any
    convert: Callable[[Any], Any]

    def value(self, given: dict[str, Any]) -> Any:
        """The field's value, out of everything that was typed."""
        return self.convert(given[self.name])


def options_of(kind: type[Any]) -> list[DerivedOption]:
    """One option for each field of a dataclass that has a help text."""
    hints = get_type_hints(kind, include_extras=True)
    derived = []
    for field in fields(kind):
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            default = REQUIRED if field.default is MISSING else field.default
            kind_of_value, text = get_args(hint)
            derived.append(_option(field.name, kind_of_value, text, default))
    return derived


def _option(name: str, hint: Any, text: str, default: Any) -> DerivedOption:
    flag = f"--{name.replace('_', '-')}"
    if hint == tuple[str, ...] | None:
        option = typer.Option(flag, metavar="A,B,C", help=text)
        return DerivedOption(name, Annotated[str | None, option], default, lambda it: split_names(it) if it else None)
    if hint in (tuple[Path, ...], tuple[Place, ...]):
        option = typer.Option(flag.removesuffix("s"), metavar="FILE", help=text)
        kind: Callable[[str], Place] = Path if hint == tuple[Path, ...] else place
        return DerivedOption(name, Annotated[list[str] | None, option], None, lambda it: tuple(map(kind, it or ())))
    if hint == Place | None:
        option = typer.Option(flag, metavar="PATH", help=text)
        return DerivedOption(name, Annotated[str | None, option], default, lambda it: it if it is None else place(it))
    if hint is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}" if default else flag, help=text)
        return DerivedOption(name, Annotated[bool, option], default, bool)
    convert = tabbed if hint is str else lambda it: it
    return DerivedOption(name, Annotated[hint, typer.Option(flag, help=text)], default, convert)


def with_parameters(run: Callable[..., None], parameters: list[tuple[str, Any, Any]]) -> Callable[..., None]:
    """`run(**given)` as a function with (name, annotation, default) parameters, which is what Typer looks at."""
    ordered = sorted(parameters, key=lambda it: it[2] is not REQUIRED)
    run.__annotations__ = {name: annotation for name, annotation, _ in ordered}
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name, Parameter.KEYWORD_ONLY, default=it, annotation=hint) for name, hint, it in ordered]
    )
    return run


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let parameters that are dataclasses stand for their fields: one option for each, in this order.

    The fields of such a dataclass are annotated as Typer's parameters are.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}

    def run(**given: Any) -> None:
        for name, kind in groups.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        command(**given)

    parameters: list[tuple[str, Any, Any]] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters.append((name, hints[name], parameter.default))
            continue
        of_fields = get_type_hints(groups[name], include_extras=True)
        for field in fields(groups[name]):
            default = REQUIRED if field.default is MISSING else field.default
            parameters.append((field.name, of_fields[field.name], default))
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return with_parameters(run, parameters)
