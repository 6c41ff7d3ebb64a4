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

    Needs no more memory than training did, however large the tables are, and no right to write to the run. Rows that
    were never written are left out where that halves a table: they follow from the seed. Refuses to begin if the disk
    has no room.

    [bold]Examples[/]

      foresee export runs/first --out export
      foresee score export tomorrow.csv
    """
    from foresee.engine.export import export as export_run

    console = terminal()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        description = export_run(
            run, out, lambda done, total: progress.update(task, completed=done, total=total), best=best
        )
    tables = description["tables"]
    num_rows, num_written, num_bytes = (
        sum(table[key] for table in tables) for key in ("num_rows", "num_written", "num_bytes")
    )
    show(
        console,
        f"{out}: {description['model']['name']} after step {description['step']:,}, {counted(len(tables), 'table')} "
        f"with {num_rows:,} rows, {num_written:,} of them in {num_bytes:,} bytes of files; see {out / 'README.md'}",
    )
