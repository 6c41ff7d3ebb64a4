"""`foresee check`: what a folder or file holds, and whether it is whole; and `foresee fold`.

`foresee verify`: the proof, on a person's own run, that plan, cache and store change no byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foresee.io.units import counted
from foresee.io.urls import Place, place
from foresee.run.config_file import load_run
from foresee.tools.cli.options import RunFile, Set, bar
from foresee.tools.cli.terminal import show, terminal


def check(
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Table folders, run folders, prepared logs, plans or exports, or URLs."),
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
    whole = [_is_whole(place(path)) for path in paths]
    raise typer.Exit(0 if all(whole) else 1)


def fold(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Table folders, or run folders.")],
) -> None:
    """Bring rows that are still in the log of table folders into plain arrays that numpy reads.

    A run that ends does this by itself if its log is at most 256 MB; a
    larger log stays, as does that of a run that was killed: everything but
    numpy reads it there (tables.fold in the run file). A commit that was
    interrupted by an older version of Foresee is finished, too.

    [bold]Examples[/]

      foresee fold runs/first
      foresee fold runs/first/tables
    """
    from foresee.errors import ConfigError
    from foresee.run.progress import FoldDisplay
    from foresee.store.disk import DiskStore
    from foresee.store.disk.manifest import MANIFEST_FILE

    for path in paths:
        folders = sorted(found.parent for found in path.rglob(MANIFEST_FILE))
        if not folders:
            raise ConfigError(f"{path} holds no tables: there is no {MANIFEST_FILE} in it; give a table or run folder")
        for folder in folders:
            store = DiskStore.open(folder)
            try:
                with FoldDisplay(terminal()) as store.fold_progress:
                    store.fold()
                show(terminal(), f"{folder}: the rows of step {store.committed_step:,} are in rows.npy")
            finally:
                store.close()


def _is_whole(path: Place) -> bool:
    """Shows what is there."""
    from rich.table import Table
    from rich.text import Text

    from foresee.tools.cli.terminal import show, terminal
    from foresee.tools.fsck import check as check_path

    found = check_path(path)
    colours = {"whole": "green", "damaged": "bold red", "note": "yellow"}
    table = Table("what", "state", "", title=f"{path}: {found.kind}", title_justify="left")
    for finding in found.findings:
        # As plain text: what stands in a damaged file must not be taken for markup.
        table.add_row(Text(finding.what), Text(finding.state, colours[finding.state]), Text(finding.text))
    show(terminal(), table, found.sentence)
    return found.is_whole


def verify(
    run_file: RunFile,
    steps: Annotated[int, typer.Option(min=1, metavar="NUM", help="How many steps to train on each side.")] = 100,
    overrides: Set = None,
) -> None:
    """Train the first steps without a cache and with the run's plan, and compare every byte.

    One side fetches all rows of every step from memory and keeps none. The other has the run's planner or saved plan,
    its cache and its store, with tables in a temporary folder (TMPDIR says where). The run's own folder is
    neither read nor written, so the run may be finished, interrupted, or being trained just now.
    All rows that the steps touched are compared, values, optimiser state and versions, and the dense weights.

    [bold]Examples[/]

      foresee verify run.yaml --steps 200
      foresee verify run.yaml --set cache.planner=none --set cache.share=0.02

    [bold]Exit codes[/]: 0 no byte differs, 1 some do, 2 something in your input is wrong.
    """
    from foresee.run.torch_settings import NOT_DETERMINISTIC
    from foresee.tools.verify import verify as run_verification

    config = load_run(run_file, overrides or ())
    console = terminal()
    with bar(console, "both sides", 2 * steps) as advance:
        found = run_verification(config, num_steps=steps, advance=advance)
    show(
        console,
        f"{counted(found.num_differing, 'differing byte')} after {counted(found.num_steps, 'step')}: "
        f"{counted(found.num_rows, 'row')} and the dense weights compared, {found.num_bytes:,} bytes on each side",
    )
    if config.distributed.workers > 1:
        show(console, f"both sides in one process; the run's {config.distributed.workers} workers were not started")
    if not found.equal:
        show(console, f"the first difference: {found.first_difference}")
        if not found.is_deterministic:
            show(console, NOT_DETERMINISTIC)
        raise typer.Exit(1)
