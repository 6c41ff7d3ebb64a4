"""`foresee score`: probabilities for the rows of a raw file, by an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def score(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="Folder that `foresee export` made.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Raw samples: CSV, plain or gzip, or Parquet.")],
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

    Cells are read as they were when the log was prepared: the same separators, markers of missing values, transforms
    and vocabularies. The file needs the columns of the log but no label. A cell that cannot be right ends the command
    with its line and column.

    [bold]Examples[/]

      foresee score export tomorrow.csv
      foresee score export tomorrow.parquet --out scores.csv
    """
    from foresee.data.formats.delimited import Layout
    from foresee.engine.exported import load_exported
    from foresee.engine.score_file import score_file, write_scores

    layout = Layout(
        separator=separator.replace("\\t", "\t"),
        quoted=True,
        header=header,
        names=tuple(column_names.split(",")) if column_names else None,
        encoding=encoding,
    )
    write_scores(score_file(load_exported(export, import_model=import_model), file, layout), out)
