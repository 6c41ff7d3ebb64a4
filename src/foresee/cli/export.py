"""`foresee export`: a trained run as plain files for serving."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from foresee.cli.options import RunFolder


def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="New folder for the export.")],
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

    console = Console()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        description = export_run(run, out, lambda done, total: progress.update(task, completed=done, total=total))
    tables = description["tables"]
    num_rows, num_written, num_bytes = (
        sum(table[key] for table in tables) for key in ("num_rows", "num_written", "num_bytes")
    )
    console.print(
        f"{out}: {description['model']['name']} after step {description['step']:,}, {len(tables)} tables with "
        f"{num_rows:,} rows, {num_written:,} of them in {num_bytes:,} bytes of files; see {out / 'README.md'}",
        highlight=False,
    )
