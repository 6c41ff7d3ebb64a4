"""The command `foresee`: starts at once, and turns what went wrong into a sentence and an exit code.

A person's mistake (InputError) is one sentence on the error stream and exit code 2, here and nowhere else. Any other
exception keeps its traceback: it is ours to repair. Ctrl-C is a word and 130, from the first import on: therefore
nothing but `sys` is imported outside `main`.

`commands.py` lists the commands; each other module `name.py` is one of them, imported when it is invoked.
"""

from __future__ import annotations

import sys

INTERRUPTED = 130


def main() -> None:
    """Runs the command of sys.argv."""
    try:
        _run()
    except KeyboardInterrupt:
        print("foresee: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _run() -> None:
    from foresee.engine.launcher.lifeline import end_with_launcher

    end_with_launcher()
    from foresee.cli.commands import app
    from foresee.errors import InputError

    try:
        app(prog_name="foresee")
    except InputError as error:
        print(f"foresee: {error}", file=sys.stderr)
        sys.exit(2)
