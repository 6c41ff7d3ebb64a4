"""`foresee train`: a run file in, a run folder out.

`foresee worker`: one trainer of several, under torchrun or `foresee train --workers`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from foresee.io import logs
from foresee.io.urls import absolute, place
from foresee.run.config_file import load_run
from foresee.tools.cli.options import Logged, RunFile, Set
from foresee.tools.cli.watch import WatchDisplay


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
    resume_or_begin: Annotated[
        bool,
        typer.Option(
            "--resume-or-begin",
            help="Go on if the run folder or its storage holds a run, else begin; the one command that an engine can "
            "repeat.",
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
    on: Annotated[
        str,
        typer.Option("--on", metavar="ENGINE", help="Where several processes run: local (this machine) or ray."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="ADDRESS", help="Of the Ray cluster; left out: a cluster of this machine."),
    ] = None,
    plan: Annotated[
        str | None,
        typer.Option("--plan", metavar="PLAN", help="Train by a plan that `foresee plan --out PLAN` kept."),
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
      foresee train run.yaml --workers 4 --servers 2 --on ray --address auto
      foresee train run.yaml --watch

    [bold]Several processes[/] are started, watched and taken down together, on this
    machine or on a Ray cluster (docs/machines.md). Parts that are killed
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
    if on != "local":
        run_file = run_file.absolute()  # parts run wherever the engine puts them
    given += [] if plan is None else [f"cache.plan_file={absolute(place(plan))}"]
    config = load_run(run_file, [*(overrides or ()), *given])
    if replace and (resume or resume_or_begin):
        raise typer.BadParameter("--resume goes on and --replace starts anew; give one of them")
    logs.configure(log_level, "launcher" if config.num_servers else "trainer")
    console = Console()
    display = WatchDisplay(console, config.run) if watch and console.is_terminal else None
    if on != "local" and not config.num_servers:
        config = load_run(run_file, [*(overrides or ()), *given, "distributed.servers=1"])
    if resume_or_begin:
        from foresee.run.backup import is_begun

        resume = resume or is_begun(config)
    if config.num_servers:
        from foresee.launch.engines import opened

        # The parts' imports begin now, beside our own.
        with opened(config, on, address) as engine:
            from foresee.launch.launcher import launch

            code = launch(config, engine, resume=resume, replace=replace, stop_after=stop_after, display=display)
        raise typer.Exit(code)
    from foresee.run.session import train as run_training

    outcome = run_training(config, resume=resume, replace=replace, stop_after=stop_after, display=display)
    raise typer.Exit(outcome.exit_code)


class Resume(StrEnum):
    """Whether a worker goes on."""

    NEVER = "never"
    ALWAYS = "always"
    AUTO = "auto"


def worker(
    run_file: RunFile,
    server: Annotated[
        list[str],
        typer.Option("--server", metavar="ADDRESS", help="grpc://host:port of a server; give all of them."),
    ],
    planner: Annotated[str, typer.Option("--planner", metavar="ADDRESS", help="Of `foresee plan-server`.")],
    overrides: Set = None,
    resume: Annotated[
        Resume,
        typer.Option(
            "--resume",
            help="always: go on from the servers' last commit. auto: go on if the run folder or its storage holds a "
            "run, else begin; the one command that an engine can repeat.",
        ),
    ] = Resume.NEVER,
    replace: Annotated[bool, typer.Option("--replace", help="Start anew, over the run in the folder.")] = False,
    stop_after: Annotated[int | None, typer.Option("--stop-after", min=1, metavar="STEPS")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Or set the variable FORESEE_TOKEN.")
    ] = None,
    tls_root_certificate: Annotated[
        Path | None, typer.Option("--tls-root-certificate", metavar="PEM", help="Who signed the certificates.")
    ] = None,
    log_level: Logged = logs.LogLevel.WARNING,
    rendezvous: Annotated[str, typer.Option("--rendezvous", hidden=True)] = "env://",
    launched: Annotated[bool, typer.Option("--launched", hidden=True)] = False,
) -> None:
    """Train a share of every batch, together with the other workers.

    Rank, number of workers and where they meet come from torchrun. Every
    worker reads the log itself, so it must be on a path that all of them see,
    or a URL; the run folder, too, if a run without a storage is to be resumed.
    docs/cluster.md has whole scripts.

    [bold]Example[/]

      torchrun --nproc-per-node 2 -m foresee worker run.yaml --set distributed.workers=2
        --server grpc://127.0.0.1:4444 --server grpc://127.0.0.1:4445 --planner grpc://127.0.0.1:4446
        --resume auto
    """
    import os
    import sys

    from rich.console import Console

    from foresee.errors import ConfigError
    from foresee.launch.supervisor import RelayedDisplay, SilentDisplay
    from foresee.run.backup import is_begun
    from foresee.run.config_file import load_run
    from foresee.run.progress import Display, make_display
    from foresee.run.stop import ending_at_once
    from foresee.run.worker import FolderUse, WorkerContext, run_worker
    from foresee.store.rpc.security import read_token

    with ending_at_once():
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise ConfigError(
                "a worker has to know its place (RANK and WORLD_SIZE are not set); start it with torchrun, or use "
                "`foresee train --workers`"
            )
        config = load_run(run_file, overrides or ())
        place = WorkerContext(
            rank=int(os.environ["RANK"]),
            num_workers=int(os.environ["WORLD_SIZE"]),
            rendezvous=rendezvous,
            servers=tuple(server),
            planner=planner,
            token=read_token(token_file),
            tls_root_certificate=None if tls_root_certificate is None else tls_root_certificate.read_bytes(),
        )
        logs.configure(log_level, "worker", place.rank)
        # The others do not touch the folder.
        goes_on = resume is Resume.ALWAYS or (resume is Resume.AUTO and place.rank == 0 and is_begun(config))
        use: FolderUse = "ready" if launched else "resume" if goes_on else "replace" if replace else "begin"
        display: Display = SilentDisplay()
        if place.rank == 0:
            display = RelayedDisplay(sys.stdout) if launched else make_display(Console())
        raise SystemExit(run_worker(config, place, display, folder_use=use, stop_after=stop_after))
