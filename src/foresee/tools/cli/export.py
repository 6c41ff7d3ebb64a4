"""`foresee export`: a trained run as plain files for serving.

`foresee score`: probabilities for the rows of a raw file, by an exported model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from foresee.io.units import counted
from foresee.io.urls import place, sent, shown
from foresee.tools.cli.options import RunPlace
from foresee.tools.cli.terminal import show, terminal


def export(
    run: RunPlace,
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="New folder for the export, or a URL.")],
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
    from foresee.run.backup_shards import brought_run
    from foresee.run.serving.export import EXPORT_FILE
    from foresee.run.serving.export import export as export_run

    console = terminal()
    with (
        sent(place(out), marker=EXPORT_FILE) as folder,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("rows", total=None)
        description = export_run(
            brought_run(place(run)),
            folder,
            lambda done, total: progress.update(task, completed=done, total=total),
            best=best,
        )
    tables = description["tables"]
    num_rows, num_written, num_bytes = (
        sum(table[key] for table in tables) for key in ("num_rows", "num_written", "num_bytes")
    )
    name, step = description["model"]["name"], description["step"]
    show(
        console,
        f"{shown(out)}: {name} after step {step:,}, {counted(len(tables), 'table')} with {num_rows:,} rows, "
        f"{num_written:,} of them in {num_bytes:,} bytes of files; see {shown(out)}/README.md",
    )


def score(
    export: Annotated[str, typer.Argument(metavar="EXPORT", help="Folder that `foresee export` made, or its URL.")],
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Raw samples: CSV, plain or gzip, or Parquet; or the URL of a file.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write them here instead of printing them.")
    ] = None,
    separator: Annotated[str, typer.Option(help="What stands between cells of text; `\\t` is a tab.")] = ",",
    header: Annotated[bool, typer.Option(help="The first line of text names the columns.")] = True,
    column_names: Annotated[
        str | None, typer.Option(help="All columns' names, with commas between; replaces a missing or damaged header.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="How text is encoded, such as latin-1.")] = "utf-8",
    import_model: Annotated[
        bool, typer.Option("--import-model", help="Import the Python class of a model that is none of ours.")
    ] = False,
) -> None:
    """Score raw samples with an exported model: one probability a line, in the order of the file.

    A model of several tasks gives a column for each: probabilities, numbers, and the probability of each class.

    Cells are read as they were when the log was prepared: the same separators, markers of missing values, transforms
    and vocabularies. The file needs the columns of the log but no label. A cell that cannot be right ends the command
    with its line and column.

    [bold]Examples[/]

      foresee score export tomorrow.csv
      foresee score export tomorrow.parquet --out scores.csv
    """
    from foresee.data.formats.delimited import Layout
    from foresee.run.serving.exported import load_exported
    from foresee.run.serving.score_file import columns_of, score_file, write_scores

    layout = Layout(
        separator=separator.replace("\\t", "\t"),
        quoted=True,
        header=header,
        names=tuple(column_names.split(",")) if column_names else None,
        encoding=encoding,
    )
    model = load_exported(export, import_model=import_model)
    write_scores(score_file(model, place(file), layout), columns_of(model), out)
