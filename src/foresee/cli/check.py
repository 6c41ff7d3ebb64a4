"""`foresee check`: what a folder or file holds, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A table folder, run folder, prepared log, plan or export."),
    ],
) -> None:
    """Check whether tables, runs, logs, plans and exports are whole. Never writes.

    Says what is there, which commits can be opened, what was interrupted and
    will be finished by whoever opens it, and what is damaged. Sizes, versions
    and every checksum that the formats have are compared; docs/security.md
    says what has none.

    [bold]Examples[/]

      foresee check runs/first
      foresee check runs/first/tables
      foresee check plan.arrow

    [bold]Exit codes[/]: 0 whole; 1 damaged; 2 nothing of ours.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from foresee.engine.checkup import check as check_path

    found = check_path(path)
    colours = {"whole": "green", "damaged": "bold red", "note": "yellow"}
    table = Table("what", "state", "", title=f"{path}: {found.kind}", title_justify="left")
    for finding in found.findings:
        # As plain text: what stands in a damaged file must not be taken for markup.
        table.add_row(Text(finding.what), Text(finding.state, colours[finding.state]), Text(finding.text))
    console = Console()
    console.print(table)
    console.print(Text(found.sentence), soft_wrap=True)
    raise typer.Exit(0 if found.is_whole else 1)
