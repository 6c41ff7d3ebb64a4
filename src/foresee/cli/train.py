"""`foresee train`: a run file in, a run folder out."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from foresee.base import logs
from foresee.cli.options import Logged, RunFile, Set
from foresee.cli.watch import WatchDisplay
from foresee.run.run_file import load_run


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
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, metavar="NUM", help="Train with so many processes that share every batch."),
    ] = None,
    servers: Annotated[
        int | None,
        typer.Option("--servers", min=1, metavar="NUM", help="Keep the rows on so many embedding servers."),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Show time by activity, cache and links while training, in a terminal."),
    ] = False,
    log_level: Logged = logs.LogLevel.WARNING,
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
      foresee train run.yaml --workers 2 --servers 2
      foresee train run.yaml --watch

    [bold]Several processes[/] are started, watched and taken down together on this
    machine; docs/cluster.md starts the same parts on many. Parts that are killed
    are started again and go on from the last commit; docs/recovery.md.

    [bold]A run file[/] has at least this; docs/run-file.md explains every key:

      log: data/criteo        # made by `foresee prepare`
      run: runs/first         # tables, checkpoints, metrics.jsonl
      model: {name: dlrm, dim: 16}
      cache: {share: 0.1}     # a tenth of all rows

    [bold]Exit codes[/]: 0 done, or stopped as asked; 1 one of several processes
    failed; 2 something in your input is wrong; 130 Ctrl-C; 143 SIGTERM. After
    130 and 143 the state was kept: use --resume.
    """
    sizes = {"workers": workers, "servers": servers}
    given = [f"distributed.{name}={number}" for name, number in sizes.items() if number is not None]
    config = load_run(run_file, [*(overrides or ()), *given])
    if resume and replace:
        raise typer.BadParameter("--resume goes on and --replace starts anew; give one of them")
    logs.configure(log_level, "launcher" if config.num_servers else "trainer")
    console = Console()
    display = WatchDisplay(console, config.run) if watch and console.is_terminal else None
    if config.num_servers:
        from foresee.launch.processes import starting

        # The parts' imports begin now, beside our own.
        with starting(config.distributed.workers, [config.tables.optimizer.name]) as start:
            from foresee.launch.launcher import launch

            code = launch(config, start, resume=resume, replace=replace, stop_after=stop_after, display=display)
        raise typer.Exit(code)
    from foresee.run.training import train as run_training

    outcome = run_training(config, resume=resume, replace=replace, stop_after=stop_after, display=display)
    raise typer.Exit(outcome.exit_code)
