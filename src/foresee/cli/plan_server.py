"""`foresee plan-server`: one process that plans for all workers of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foresee.cli.options import RunFile, Set


def plan_server(
    run_file: RunFile,
    overrides: Set = None,
    host: Annotated[str, typer.Option("--host", help="Any but this machine needs TLS and a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
    port_file: Annotated[
        Path | None, typer.Option("--port-file", metavar="FILE", help="Written with the port when ready.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", metavar="PEM")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="PEM")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Of mode 600; or set the variable FORESEE_TOKEN."),
    ] = None,
) -> None:
    """Read the log, plan for all workers, and give each its own records, until SIGTERM or Ctrl-C.

    Keeps nothing: started again, it plans the same again, and workers that
    wait for it go on.

    [bold]Example[/]

      foresee plan-server run.yaml --set distributed.workers=2 --port 4446
    """
    from foresee.config import load_run
    from foresee.engine.planner_service.process import run_planner
    from foresee.store.server.process import end_process
    from foresee.store.server.security import check_address, read_security

    config = load_run(run_file, overrides or ())
    security = read_security(tls_certificate, tls_key, token_file)
    check_address(host, security)
    end_process(run_planner(config, host=host, port=port, security=security, port_file=port_file))
