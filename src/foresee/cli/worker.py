"""`foresee worker`: one trainer of several, under torchrun or `foresee train --workers`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foresee.base import logs
from foresee.cli.options import Logged, RunFile, Set


def worker(
    run_file: RunFile,
    server: Annotated[
        list[str],
        typer.Option("--server", metavar="ADDRESS", help="grpc://host:port of a server; give all of them."),
    ],
    planner: Annotated[str, typer.Option("--planner", metavar="ADDRESS", help="Of `foresee plan-server`.")],
    overrides: Set = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the servers' last commit.")] = False,
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
    worker reads the log itself, so it must be on a path that all of them see;
    the run folder, too, if a run is to be resumed. docs/cluster.md has whole
    scripts.

    [bold]Example[/]

      torchrun --nproc-per-node 2 -m foresee worker run.yaml --set distributed.workers=2
        --server grpc://127.0.0.1:4444 --server grpc://127.0.0.1:4445 --planner grpc://127.0.0.1:4446
    """
    import os
    import sys

    from rich.console import Console

    from foresee.errors import ConfigError
    from foresee.launch.supervisor import RelayedDisplay, SilentDisplay
    from foresee.rpc.security import read_token
    from foresee.run.ending import ending_at_once
    from foresee.run.progress import Display, make_display
    from foresee.run.run_file import load_run
    from foresee.run.worker import FolderUse, WorkerContext, run_worker

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
        use: FolderUse = "ready" if launched else "resume" if resume else "replace" if replace else "begin"
        display: Display = SilentDisplay()
        if place.rank == 0:
            display = RelayedDisplay(sys.stdout) if launched else make_display(Console())
        raise SystemExit(run_worker(config, place, display, folder_use=use, stop_after=stop_after))
