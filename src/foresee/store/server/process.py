"""A server as a process: starts, says where it listens, and ends cleanly on SIGTERM or Ctrl-C.

In: a shard, or one for each width of rows, and where to listen. Out: an exit code. On a signal new requests are
refused, those inside are finished, the store is closed (what was not committed is given up, as the contract says), and
nothing stays behind.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from foresee.errors import ConfigError, StoreError
from foresee.io.folders import replace_text
from foresee.store.rpc.limits import Limits
from foresee.store.rpc.security import Security
from foresee.store.server.service import EmbeddingServer
from foresee.store.server.shard import Shard

_logger = logging.getLogger(__name__)

STOP_SECONDS = 10.0
FLUSH_SECONDS = 0.5
PARENT_POLL_SECONDS = 0.5
"""How often a server looks whether its launcher is still there: even kill -9 of a launcher leaves nothing behind."""


def run_server(
    shards: Sequence[Shard],
    *,
    host: str,
    port: int,
    security: Security,
    limits: Limits,
    port_file: Path | None = None,
    parent: int | None = None,
) -> int:
    """Serves until a signal comes, or `parent` is no longer the process that started this one.

    Call it from the main thread; returns the exit code.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        server = EmbeddingServer(*shards, host=host, port=port, security=security, limits=limits)
    except (OSError, pa.ArrowException) as error:
        for shard in shards:
            shard.close()
        raise StoreError(f"this server cannot listen on {host}:{port} ({error}); choose another port") from error
    _announce(server, shards, port_file)
    while not stop.wait(PARENT_POLL_SECONDS) and (parent is None or os.getppid() == parent):
        pass
    _logger.info("asked to stop" if stop.is_set() else f"process {parent}, which started this server, has ended")
    finished = server.stop(STOP_SECONDS)
    if port_file is not None:
        with suppress(OSError):
            port_file.unlink()
    print("stopped" if finished else f"stopped; some requests did not end within {STOP_SECONDS:.0f} s", flush=True)
    # Idle connections never end by themselves, so this gives the last replies time to leave and no more.
    flush = threading.Thread(target=server.shutdown, daemon=True)
    flush.start()
    flush.join(FLUSH_SECONDS)
    return 0


def end_process(code: int) -> None:
    """Ends without waiting for the threads of idle connections; everything of ours is closed by now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _announce(server: EmbeddingServer, shards: Sequence[Shard], port_file: Path | None) -> None:
    if port_file is not None:
        try:
            replace_text(port_file, f"{server.port}\n")
        except OSError as error:
            raise ConfigError(f"the port file {port_file} cannot be written ({error.strerror}); check it") from error
    share, num_rows = shards[0].share, sum(shard.num_rows for shard in shards)
    print(
        f"serving shard {share.shard} of {share.num_shards} ({num_rows:,} rows, step {shards[0].committed_step}) "
        f"on {server.address}",
        flush=True,
    )
