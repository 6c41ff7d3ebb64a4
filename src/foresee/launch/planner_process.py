"""The planner as a process: starts, says where it listens, and ends on SIGTERM or Ctrl-C.

In: a run's configuration and where to listen. Out: an exit code. It keeps nothing, so there is nothing to save.
"""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import pyarrow as pa

from foresee.engine.planner_service.server import PlannerServer
from foresee.errors import ConfigError, PlanError
from foresee.io.folders import replace_text
from foresee.run.build import (
    check_same_plan,
    open_log,
    plan_header,
    records_of,
    saved_plan,
    table_layout,
    train_stream,
)
from foresee.run.config import RunConfig
from foresee.run.kept_plan import KeptPlan
from foresee.run.memory import check_memory, in_words, planner_memory
from foresee.store.rpc.security import Security

_logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.2


def run_planner(config: RunConfig, *, host: str, port: int, security: Security, port_file: Path | None = None) -> int:
    """Plans until a signal comes. Call it from the main thread."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    log = open_log(config)
    stream = train_stream(config, log)
    header = plan_header(config, log, stream)  # what is wrong is said now, not to the first worker
    saved = saved_plan(config, stream)
    kept: KeptPlan | None = None
    if saved is not None:
        check_same_plan(saved, header)
        kept = KeptPlan.from_saved(saved)
        print(kept.summary(), flush=True)
    needed = planner_memory(table_layout(config, log), header, stream.batch(0), config.train.shuffle_samples)
    print(in_words(needed), flush=True)
    check_memory(needed)
    try:
        server = PlannerServer(
            stream,
            lambda begin: plan_header(
                config, log, stream, first_step=begin.first_step, planned_from=begin.planned_from
            ),
            host=host,
            port=port,
            security=security,
            records=lambda header: records_of(kept, stream, header),
        )
    except (OSError, pa.ArrowException) as error:
        raise PlanError(f"the planner cannot listen on {host}:{port} ({error}); choose another port") from error
    if port_file is not None:
        announce(port_file, server.port)
    num_workers = config.distributed.workers
    doing = "planning" if saved is None else f"giving out {saved.path},"
    print(f"{doing} {stream.num_steps:,} steps for {num_workers} workers on {server.address}", flush=True)
    # A signal that reaches one of Flight's threads first does not wake this one, so it looks by itself now and then.
    while not stop.wait(LOOK_SECONDS):
        pass
    _logger.info("asked to stop")
    server.stop()
    print("stopped", flush=True)
    return 0


def announce(port_file: Path, port: int) -> None:
    """The file appears whole."""
    try:
        replace_text(port_file, f"{port}\n")
    except OSError as error:
        raise ConfigError(f"the port file {port_file} cannot be written ({error.strerror}); check it") from error
