"""`foresee check`: what a folder or file holds, and whether it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def check(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH...", help="Table folders, run folders, prepared logs, plans or exports."),
    ],
) -> None:
    """Check whether tables, runs, logs, plans and exports are whole. Never writes.

    Says what is there, which commits can be opened, what was interrupted and
    will be finished by whoever opens it, and what is damaged. Sizes, versions
    and every checksum that the formats have are compared; docs/security.md
    says what has none.

    [bold]Examples[/]

      foresee check runs/first
      foresee check runs/first/tables data/criteo
      foresee check plan.arrow

    [bold]Exit codes[/]: 0 all are whole; 1 one is damaged; 2 one is nothing of ours.
    """
    whole = [_is_whole(path) for path in paths]
    raise typer.Exit(0 if all(whole) else 1)


def _is_whole(path: Path) -> bool:
    """Shows what is there."""
    from rich.table import Table
    from rich.text import Text

    from foresee.engine.checkup import check as check_path
    from foresee.terminal import show, terminal

    found = check_path(path)
    colours = {"whole": "green", "damaged": "bold red", "note": "yellow"}
    table = Table("what", "state", "", title=f"{path}: {found.kind}", title_justify="left")
    for finding in found.findings:
        # As plain text: what stands in a damaged file must not be taken for markup.
        table.add_row(Text(finding.what), Text(finding.state, colours[finding.state]), Text(finding.text))
    show(terminal(), table, found.sentence)
    return found.is_whole
