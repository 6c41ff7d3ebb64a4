"""`foresee serve`: an embedding server for one shard of the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FILES_SPARE = 512
"""Files beside two for each connection."""


def serve(
    layout: Annotated[
        Path | None,
        typer.Option("--layout", metavar="FILE", help="JSON that describes the tables; a folder knows its own."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Keep the rows on disk here; without it, in memory.")
    ] = None,
    shard: Annotated[int, typer.Option("--shard", min=0, help="Which shard this server is, from 0.")] = 0,
    num_shards: Annotated[int, typer.Option("--num-shards", min=1, help="Number of servers of these tables.")] = 1,
    host: Annotated[str, typer.Option("--host", help="Any but this machine needs TLS and a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 0,
    port_file: Annotated[
        Path | None, typer.Option("--port-file", metavar="FILE", help="Written with the port when ready.")
    ] = None,
    parent: Annotated[
        int | None, typer.Option("--parent", metavar="PID", help="End when this process, which started it, has ended.")
    ] = None,
    tls_certificate: Annotated[Path | None, typer.Option("--tls-certificate", metavar="PEM")] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="PEM")] = None,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Of mode 600; or set the variable FORESEE_TOKEN."),
    ] = None,
    connections_max: Annotated[int, typer.Option("--connections-max", min=1)] = 512,
    bytes_in_flight_max: Annotated[int, typer.Option("--bytes-in-flight-max", min=1)] = 1 << 30,
    rows_per_request_max: Annotated[int, typer.Option("--rows-per-request-max", min=1)] = 1 << 20,
) -> None:
    """Serve one shard of the embedding rows, in memory or on disk, until SIGTERM or Ctrl-C.

    Prints one line when it is ready. Trainers are given the addresses of all shards.

    [bold]Examples[/]

      foresee serve --layout layout.json --port 4444
      foresee serve --layout layout.json --folder shard-1 --shard 1 --num-shards 2 --port 0 --port-file port
    """
    from foresee.errors import ConfigError
    from foresee.store.machine import raise_file_limit, share_arenas
    from foresee.store.server.footprint import check_footprint, footprint, in_words, warm_up
    from foresee.store.server.layout_file import read_layout
    from foresee.store.server.limits import Limits
    from foresee.store.server.process import end_process, run_server
    from foresee.store.server.security import check_address, read_security
    from foresee.store.server.shard import Share, disk_shard, memory_shard

    share_arenas()
    raise_file_limit(2 * connections_max + FILES_SPARE)
    security = read_security(tls_certificate, tls_key, token_file)
    check_address(host, security)
    described = None if layout is None else read_layout(layout)
    share = Share(shard, num_shards)
    if folder is not None:
        rows = disk_shard(folder, described, share)
    elif described is not None:
        rows = memory_shard(described, share)
    else:
        raise ConfigError("a server has to know its tables: give --layout, or --folder with tables in it")
    limits = Limits(
        connections_max=connections_max,
        bytes_in_flight_max=bytes_in_flight_max,
        rows_per_request_max=rows_per_request_max,
    )
    warm_up()
    needed = footprint(rows, limits, in_memory=folder is None)
    print(in_words(needed), flush=True)
    try:
        check_footprint(needed)
    except ConfigError:
        rows.close()
        raise
    code = run_server(rows, host=host, port=port, security=security, limits=limits, port_file=port_file, parent=parent)
    end_process(code)
