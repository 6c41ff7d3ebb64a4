"""`foresee export`: a trained run as plain files for serving."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from foresee.cli.options import RunFolder
from foresee.terminal import show, terminal
from foresee.words import counted


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the export.")],
    best: Annotated[
        bool, typer.Option("--best", help="As of the best evaluation (train.best.metric) instead of the last commit.")
    ] = False,
) -> None:
    """Write a trained model and its tables for serving: safetensors, the vocabularies as Parquet, one JSON.

    Needs no more memory than training did, however large the tables are.

    [bold]Examples[/]

      foresee export runs/first --out export
      python -c "from foresee.engine.exported import load_exported; print(load_exported('export').features)"
    """
    from foresee.engine.export import export as export_run

    console = terminal()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        description = export_run(
            run, out, lambda done, total: progress.update(task, completed=done, total=total), best=best
        )
    tables = description["tables"]
    show(
        console,
        f"{out}: {description['model']['name']} after step {description['step']:,}, "
        f"{counted(len(tables), 'table')} with {sum(table['num_rows'] for table in tables):,} rows; "
        f"see {out / 'README.md'}",
    )
