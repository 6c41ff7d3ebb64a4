"""`foresee train`: a run file in, a run folder out."""

from __future__ import annotations

from typing import Annotated

import typer

from foresee.cli.options import RunFile, Set
from foresee.config import load_run


def train(
    run_file: RunFile,
    overrides: Set = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the last commit of the run folder. Ends with the same bytes as a run that never stopped; "
            "keys that would change the result are refused.",
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Start anew, over the run that is in the folder. Its tables are deleted.")
    ] = False,
    stop_after: Annotated[
        int | None,
        typer.Option(
            "--stop-after",
            min=1,
            metavar="STEPS",
            help="Stop, and keep the state, when so many steps of the run are done, counted from its very first.",
        ),
    ] = None,
) -> None:
    """Train a model whose tables may be far larger than memory.

    Reads ahead in the log, plans which rows are needed when, and trains while
    rows travel between cache and disk. Shows loss, AUC, samples per second,
    the share of a step's rows found in the cache and the share of time waited
    for rows; evaluates on the valid split; keeps the state at intervals, at
    the end, and when you press Ctrl-C.

    [bold]Examples[/]

      foresee train run.yaml
      foresee train run.yaml --set cache.share=0.05 --set train.epochs=2
      foresee train run.yaml --resume

    [bold]A run file[/] has at least this; docs/run-file.md explains every key:

      log: data/criteo        # made by `foresee prepare`
      run: runs/first         # tables, checkpoints, metrics.jsonl
      model: {name: dlrm, dim: 16}
      cache: {share: 0.1}     # a tenth of all rows

    [bold]Exit codes[/]: 0 done, or stopped as asked; 2 something in your input is
    wrong; 130 Ctrl-C; 143 SIGTERM. After 130 and 143 the state was kept: use
    --resume.
    """
    from foresee.engine.training import train as run_training

    config = load_run(run_file, overrides or ())
    if resume and replace:
        raise typer.BadParameter("--resume goes on and --replace starts anew; give one of them")
    outcome = run_training(config, resume=resume, replace=replace, stop_after=stop_after)
    raise typer.Exit(outcome.exit_code)
