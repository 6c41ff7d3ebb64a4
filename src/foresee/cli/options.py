"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, as `run` in its run file names it.")]
