"""The commands. Each module of this folder is one command; this one only mounts them and turns errors into exits.

A person's mistake (InputError) is one sentence on the error stream and exit code 2, here and nowhere else. Any other
exception keeps its traceback: it is ours to repair. An interrupt exits with 130.

A module `name.py` has either a function `name`, which is the command, or an `app` of commands.
"""

from __future__ import annotations

import importlib
import sys

import typer

from foresee.errors import InputError

COMMANDS = ("demo", "prepare", "plan", "train", "evaluate", "verify", "export")

app = typer.Typer(
    help="Train models whose embedding tables outgrow memory: plan every access first, then carry the plan out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _mount(name: str, path: str) -> None:
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError:
        return
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name)
    else:
        app.command(name)(getattr(module, name))


for _name in COMMANDS:
    _mount(_name, f"foresee.cli.{_name}")
_mount("cluster", "foresee.cluster.commands")


def main() -> None:
    """Runs the command of sys.argv."""
    try:
        app(prog_name="foresee")
    except InputError as error:
        print(f"foresee: {error}", file=sys.stderr)
        sys.exit(2)
