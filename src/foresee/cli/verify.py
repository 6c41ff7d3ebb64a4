"""`foresee verify`: the proof, on a person's own run, that plan, cache and store change no byte."""

from __future__ import annotations

from typing import Annotated

import typer

from foresee.cli.bars import bar
from foresee.cli.options import RunFile, Set
from foresee.config import load_run
from foresee.terminal import show, terminal
from foresee.words import counted


def verify(
    run_file: RunFile,
    steps: Annotated[int, typer.Option(min=1, metavar="NUM", help="How many steps to train on each side.")] = 100,
    overrides: Set = None,
) -> None:
    """Train the first steps without a cache and with the run's plan, and compare every byte.

    One side fetches all rows of every step from memory and keeps none. The other has the run's planner or kept plan,
    its cache and its store, with tables in a temporary folder (TMPDIR says where). The run's own folder is
    neither read nor written, so the run may be finished, interrupted, or being trained just now.
    All rows that the steps touched are compared, values, optimiser state and versions, and the dense weights.

    [bold]Examples[/]

      foresee verify run.yaml --steps 200
      foresee verify run.yaml --set cache.planner=lru --set cache.share=0.02

    [bold]Exit codes[/]: 0 no byte differs, 1 some do, 2 something in your input is wrong.
    """
    from foresee.engine.verification import verify as run_verification

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
        raise typer.Exit(1)
