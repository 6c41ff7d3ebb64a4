"""The commands. Each module of this folder is one command; this one only mounts them and turns errors into exits.

A person's mistake (InputError) is one sentence on the error stream and exit code 2, here and nowhere else. Any other
exception keeps its traceback: it is ours to repair. An interrupt exits with 130.

A module `name.py` has either a function `name`, which is the command, or an `app` of commands.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

from foresee.cli import (
    check,
    compare,
    demo,
    evaluate,
    explain,
    export,
    plan,
    plan_server,
    prepare,
    report,
    score,
    serve,
    simulate,
    status,
    train,
    verify,
    watch,
    worker,
)
from foresee.cluster import commands as cluster
from foresee.engine.launcher.lifeline import end_with_launcher
from foresee.errors import InputError

COMMANDS: dict[str, ModuleType] = {
    "demo": demo,
    "prepare": prepare,
    "plan": plan,
    "compare": compare,
    "simulate": simulate,
    "train": train,
    "watch": watch,
    "evaluate": evaluate,
    "verify": verify,
    "check": check,
    "explain": explain,
    "report": report,
    "export": export,
    "score": score,
    "serve": serve,
    "plan-server": plan_server,
    "worker": worker,
    "status": status,
    "cluster": cluster,
}
"""In the order in which a person needs them."""


class _InOrder(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


app = typer.Typer(
    cls=_InOrder,
    help="Train models whose embedding tables outgrow memory: plan every access first, then carry the plan out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _module in COMMANDS.items():
    if hasattr(_module, "app"):
        app.add_typer(_module.app, name=_name)
    else:
        app.command(_name)(getattr(_module, _name.replace("-", "_")))


def main() -> None:
    """Runs the command of sys.argv."""
    end_with_launcher()
    try:
        app(prog_name="foresee")
    except InputError as error:
        print(f"foresee: {error}", file=sys.stderr)
        sys.exit(2)
