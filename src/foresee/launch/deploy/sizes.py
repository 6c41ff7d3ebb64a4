"""What each part of a run needs of a machine, for a script or a manifest that has to ask for it beforehand.

In: a configuration whose log can be read here. Out: cores, memory and disk of a server, the planner and a worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foresee.run.build import build_model, open_log, plan_header, table_layout, train_stream
from foresee.run.config import RunConfig
from foresee.run.memory import memory_needed
from foresee.store.registry import store_kind

PROGRAM_BYTES = 1 << 30
"""A process with torch, its model and its connections, before it holds a row."""
REQUESTS_BYTES = 1 << 30
"""What requests under way may take of a server (`--bytes-in-flight-max`)."""
DISK_FACTOR = 3.0
"""A table folder beside its rows: a log of about twice what changed, and the undo of one commit."""
CHECKPOINTS, WEIGHTS_FACTOR = 4, 4
"""Of the last two commits, the best one, and one in the making; weights with the state of their optimiser."""
RECORDS_BYTES = 1 << 30
"""Metrics, timelines, and what parts print."""
MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSize:
    """What one part asks for."""

    cores: int
    memory_bytes: int
    gpus: int = 0

    @property
    def memory_mebibytes(self) -> int:
        return math.ceil(self.memory_bytes / MEBIBYTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What all parts ask for."""

    server: PartSize
    planner: PartSize
    worker: PartSize
    shard_bytes: int
    """Disk of one server."""
    run_bytes: int
    """Disk of the run folder, without tables."""


def sizes_of(config: RunConfig) -> Sizes:
    """Upper bounds, as `foresee train` prints them for one machine."""
    log = open_log(config)
    stream = train_stream(config, log)
    header, layout = plan_header(config, log, stream), table_layout(config, log)
    kind, wanted, servers = store_kind(config.tables.store), config.distributed.resources, max(1, config.num_servers)
    one = memory_needed(layout, header, stream.batch(0), config.train.shuffle_samples, kind=kind)
    kept = one.of("rows", "index", "buffers") // servers
    weights = sum(it.nbytes for it in build_model(config, log).state_dict().values())
    best_rows = layout.num_rows * layout.row_bytes if config.train.best.metric is not None else 0
    return Sizes(
        server=_part(wanted.server, PROGRAM_BYTES + REQUESTS_BYTES + kept),
        planner=_part(wanted.planner, PROGRAM_BYTES + one.of("window", "log", "next_uses")),
        worker=_part(wanted.worker, PROGRAM_BYTES + one.of("slots", "staging", "log")),
        shard_bytes=int(DISK_FACTOR * layout.num_rows * layout.row_bytes / servers) if kind.in_folder else 0,
        run_bytes=CHECKPOINTS * WEIGHTS_FACTOR * weights + best_rows + RECORDS_BYTES,
    )


def _part(wanted: dict[str, float], memory_bytes: int) -> PartSize:
    return PartSize(
        cores=max(1, math.ceil(wanted.get("CPU", 1))), memory_bytes=memory_bytes, gpus=math.ceil(wanted.get("GPU", 0))
    )
