"""Embedding servers and the planner by hand: `foresee layout`, `serve`, `plan-server` and `status`.

`layout` describes the tables of a run as a file, `serve` is one shard of the rows, `plan-server` plans for all workers
of a run, `status` says what servers are doing, for a person or a monitor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foresee.io import logs
from foresee.tools.cli.options import Logged, RunFile, Set

FILES_SPARE = 512
"""Files beside two for each connection."""

Host = Annotated[str, typer.Option("--host", help="Any but this machine needs TLS and a token.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")]
PortFile = Annotated[Path | None, typer.Option("--port-file", metavar="FILE", help="Written with the port when ready.")]
TlsCertificate = Annotated[Path | None, typer.Option("--tls-certificate", metavar="PEM")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", metavar="PEM")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="Of mode 600; or set the variable FORESEE_TOKEN.")
]


def serve(
    layout: Annotated[
        Path | None,
        typer.Option("--layout", metavar="FILE", help="JSON that describes the tables; a folder knows its own."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="Keep the rows on disk here; without it, in memory.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="NAME", help="disk, memory, or one that an installed package has."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            metavar="URL",
            help="Copy commits of --folder to the storage of the run, such as s3://bucket/runs/1, and load from there "
            "what the folder does not have.",
        ),
    ] = None,
    run_id: Annotated[str, typer.Option("--run-id", hidden=True)] = "",
    shard: Annotated[int, typer.Option("--shard", min=0, help="Which shard this server is, from 0.")] = 0,
    num_shards: Annotated[int, typer.Option("--num-shards", min=1, help="Number of servers of these tables.")] = 1,
    host: Host = "127.0.0.1",
    port: Port = 0,
    port_file: PortFile = None,
    parent: Annotated[
        int | None, typer.Option("--parent", metavar="PID", help="End when this process, which started it, has ended.")
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    connections_max: Annotated[int, typer.Option("--connections-max", min=1)] = 512,
    bytes_in_flight_max: Annotated[int, typer.Option("--bytes-in-flight-max", min=1)] = 1 << 30,
    rows_per_request_max: Annotated[int, typer.Option("--rows-per-request-max", min=1)] = 1 << 20,
    log_level: Logged = logs.LogLevel.WARNING,
) -> None:
    """Serve one shard of the embedding rows, in memory or on disk, until SIGTERM or Ctrl-C.

    Prints one line when it is ready. Trainers are given the addresses of all shards.

    [bold]Examples[/]

      foresee serve --layout layout.json --port 4444
      foresee serve --layout layout.json --folder shard-1 --shard 1 --num-shards 2 --port 0 --port-file port
      foresee serve --layout layout.json --folder shard-1 --storage s3://bucket/runs/first
    """
    from foresee.errors import ConfigError
    from foresee.io.machine import raise_file_limit, share_arenas
    from foresee.io.storage import Storage
    from foresee.store.disk.backed_up import copied, shard_place
    from foresee.store.layout import read_layout
    from foresee.store.registry import DISK, MEMORY, STORES
    from foresee.store.rpc.limits import Limits
    from foresee.store.rpc.security import check_address, read_security
    from foresee.store.server.process import end_process, run_server
    from foresee.store.server.shard import Share, forget_other_share, open_shards
    from foresee.store.server.status import check_footprint, footprint, in_words, warm_up

    logs.configure(log_level, "server", shard)
    share_arenas()
    raise_file_limit(2 * connections_max + FILES_SPARE)
    security = read_security(tls_certificate, tls_key, token_file)
    check_address(host, security)
    described = None if layout is None else read_layout(layout)
    share = Share(shard, num_shards)
    if folder is None and described is None:
        raise ConfigError("a server has to know its tables: give --layout, or --folder with tables in it")
    kind = STORES.find(store, "--store") if store is not None else MEMORY if folder is None else DISK
    if storage is not None:
        if folder is None or described is None:
            raise ConfigError("--storage copies the commits of a folder; give --folder and --layout, too")
        forget_other_share(folder, share, run_id)
        kind = copied(kind, folder, Storage.open(storage).below(*shard_place(shard, num_shards)))
    rows = open_shards(kind, folder, described, share)
    limits = Limits(
        connections_max=connections_max,
        bytes_in_flight_max=bytes_in_flight_max,
        rows_per_request_max=rows_per_request_max,
    )
    warm_up()
    needed = footprint(*rows, limits=limits, in_memory=kind.rows_in_memory)
    print(in_words(needed), flush=True)
    try:
        check_footprint(needed)
    except ConfigError:
        for opened in rows:
            opened.close()
        raise
    code = run_server(rows, host=host, port=port, security=security, limits=limits, port_file=port_file, parent=parent)
    end_process(code)


def layout(
    run_file: RunFile,
    overrides: Set = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where it goes.")] = Path("layout.json"),
) -> None:
    """Describe the tables of a run for its embedding servers: `foresee serve --layout`.

    The log says how many rows each table has, the model how wide they are, the
    optimiser how much state belongs to each row. Servers with other tables than
    the run are refused by its workers.

    [bold]Examples[/]

      foresee layout run.yaml
      foresee layout run.yaml --set model.name=deepfm --out deepfm.json
    """
    from foresee.run.build import open_log, table_layout
    from foresee.run.config_file import load_run
    from foresee.store.layout import write_layout

    config = load_run(run_file, overrides or ())
    tables = table_layout(config, open_log(config))
    write_layout(out, tables)
    dim, width = config.model.dim, tables.width
    of_model = "model.dim" if width == dim else f"{config.model.name} makes that of model.dim, which is {dim}"
    each = f"each of {width} values ({of_model}) and {tables.state_width} of state ({tables.optimizer})"
    if tables.widths:
        of_widths = (f"{it.num_rows:,} of {it.width} values and {it.state_width} of state" for it in tables.groups)
        each = f"{', '.join(of_widths)} ({tables.optimizer})"
    print(
        f"{out}: {tables.num_rows:,} rows in {len(tables.tables)} tables, {each}: {tables.num_bytes / 1e6:,.1f} MB "
        "when every row is written"
    )


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

    from foresee.store.remote.opening import ask_status
    from foresee.store.rpc.security import read_token
    from foresee.store.server.status import status_text

    token = read_token(token_file)
    certificate = None if tls_root_certificate is None else tls_root_certificate.read_bytes()
    for address in addresses:
        answer = ask_status(address, token=token, tls_root_certificate=certificate, timeout_seconds=timeout_seconds)
        print(json.dumps(answer) if as_json else status_text(answer))


def plan_server(
    run_file: RunFile,
    overrides: Set = None,
    host: Host = "127.0.0.1",
    port: Port = 0,
    port_file: PortFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    log_level: Logged = logs.LogLevel.WARNING,
) -> None:
    """Read the log, plan for all workers, and give each its own records, until SIGTERM or Ctrl-C.

    Keeps nothing: started again, it plans the same again, and workers that
    wait for it go on.

    [bold]Example[/]

      foresee plan-server run.yaml --set distributed.workers=2 --port 4446
    """
    from foresee.launch.planner_process import run_planner
    from foresee.run.config_file import load_run
    from foresee.store.rpc.security import check_address, read_security
    from foresee.store.server.process import end_process

    logs.configure(log_level, "planner")
    config = load_run(run_file, overrides or ())
    security = read_security(tls_certificate, tls_key, token_file)
    check_address(host, security)
    end_process(run_planner(config, host=host, port=port, security=security, port_file=port_file))
