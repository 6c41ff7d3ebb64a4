"""`foresee status`: what embedding servers are doing, for a person or a monitor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def status(
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS...", help="grpc://host:port of each server.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, for a monitor.")] = False,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Or set the variable FORESEE_TOKEN.")
    ] = None,
    tls_root_certificate: Annotated[
        Path | None, typer.Option("--tls-root-certificate", metavar="PEM", help="Who signed the servers' certificates.")
    ] = None,
    timeout_seconds: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds to wait for each.")] = 5.0,
) -> None:
    """Show health and counters of embedding servers. Exits with 2 if one of them does not answer.

    [bold]Examples[/]

      foresee status grpc://127.0.0.1:4444 grpc://127.0.0.1:4445
      foresee status --json grpc://127.0.0.1:4444 | jq .parked_now
    """
    import json

    from foresee.store.remote.access import read_token
    from foresee.store.remote.status import ask_status
    from foresee.store.server.status import status_text

    token = read_token(token_file)
    certificate = None if tls_root_certificate is None else tls_root_certificate.read_bytes()
    for address in addresses:
        answer = ask_status(address, token=token, tls_root_certificate=certificate, timeout_seconds=timeout_seconds)
        print(json.dumps(answer) if as_json else status_text(answer))
