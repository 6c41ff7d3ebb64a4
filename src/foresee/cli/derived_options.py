"""Options of a command out of the fields of a dataclass: those that are annotated with a text, which is the help.

In: a dataclass. Out: for each such field an annotation as Typer reads it, a default, and how what was typed becomes the
field's value. A tuple of names is typed with commas between; a tuple of paths is an option that may be given several
times, named in the singular; \\t in a text is a tab.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from foresee.data.column_syntax import split_names, tabbed

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
    if hint == tuple[Path, ...]:
        option = typer.Option(flag.removesuffix("s"), metavar="FILE", help=text)
        return DerivedOption(name, Annotated[list[Path] | None, option], None, lambda it: tuple(it or ()))
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
