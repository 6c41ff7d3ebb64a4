"""A mean step: volumes and speeds in; seconds, their parts, how busy each resource is, and the bottleneck out.

Steps are played through by the rules of the engine (`playing`). And below some bounds no step can fall: bytes over a
link, rows over what servers serve, processor time over cores. A mean step, not its jitter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.plan.cost import stores
from foresee.plan.cost.exchanges import Exchanges, dense_link_seconds, dense_seconds
from foresee.plan.cost.playing import play
from foresee.plan.cost.speeds import RowBytes, Speeds
from foresee.plan.volumes import Volumes

Float64 = NDArray[np.float64]

COMPUTE, WAITED, EXCHANGE, DENSE, BEHIND = "compute", "waiting for rows", "exchange", "dense sum", "background late"
PARTS = (COMPUTE, WAITED, EXCHANGE, DENSE, BEHIND)
PLANNER, READER, WRITER, TRAINER_LINK, SERVER_LINK, SERVERS, CORES, DEPENDENCY = (
    "planner", "reading rows", "writing rows", "trainer link", "server link", "servers", "processor cores",
    "write, then read",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds of a mean step."""

    step_seconds: float
    parts: dict[str, float]
    """By `PARTS`; what they leave is the stretch that a bound below adds."""
    lanes: dict[str, float]
    """How long each resource is busy in a step: the step cannot be shorter than any of them."""
    bottleneck: str


def predict(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds, *, first_step: int = 0) -> Prediction:
    """The mean step from `first_step` on; the steps before fill caches and queues."""
    played = play(volumes, row_bytes, speeds)
    first_step = min(first_step, volumes.num_steps - 1)
    steady = volumes.from_step(first_step)
    lanes = _lanes(steady, row_bytes, speeds)
    parts = {
        COMPUTE: float(speeds.compute_seconds + stores.cache_seconds(steady, speeds).max(axis=1).mean()),
        WAITED: float(played.waited[first_step:].mean()),
        EXCHANGE: float(played.exchanged[first_step:].mean()),
        DENSE: dense_seconds(volumes.num_workers, speeds),
        BEHIND: float(played.late[first_step:].mean()),
    }
    mean = float(played.begin[-1] - played.begin[first_step]) / steady.num_steps
    seconds = max(mean, *lanes.values())
    return Prediction(step_seconds=seconds, parts=parts, lanes=lanes, bottleneck=_bottleneck(seconds, parts, lanes))


def _lanes(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> dict[str, float]:
    """How long each resource is busy in a mean step; of several trainers, the busiest."""
    read, write = stores.read_seconds(volumes, row_bytes, speeds), stores.write_seconds(volumes, row_bytes, speeds)
    stored_in, stored_out = stores.bytes_read(volumes, row_bytes), stores.bytes_written(volumes, row_bytes)
    exchange = Exchanges.of(volumes, row_bytes, speeds)
    busy = exchange.link_seconds.sum(axis=3) * speeds.exchange_link_share
    on_link = exchange.stored_seconds + busy  # [steps, workers, directions]
    dense = dense_link_seconds(volumes.num_workers, speeds)
    at_servers = float(max(stored_in.sum(axis=1).mean(), stored_out.sum(axis=1).mean()))
    served = float((volumes.fetched + volumes.refreshed + volumes.evicted + volumes.pushed).sum(axis=1).mean())
    return {
        PLANNER: speeds.planner_seconds,
        READER: float(read.mean(axis=0).max()),
        WRITER: float(write.mean(axis=0).max()),
        TRAINER_LINK: float(on_link.mean(axis=0).max()) + dense,
        SERVER_LINK: at_servers / speeds.num_servers / speeds.server_bytes_per_second,
        SERVERS: served / speeds.num_servers / speeds.server_rows_per_second,
        CORES: float(_processor_seconds(volumes, exchange, speeds).mean(axis=0).max()) / speeds.cores,
    }


def _processor_seconds(volumes: Volumes, exchange: Exchanges, speeds: Speeds) -> Float64:
    """[steps, workers]: work on the cores of a trainer's machine, whoever does it."""
    seconds: Float64 = (
        speeds.compute_seconds * speeds.compute_threads
        + stores.cache_seconds(volumes, speeds)
        + stores.read_processor_seconds(volumes, speeds)
        + stores.write_processor_seconds(volumes, speeds)
        + exchange.packed_seconds.sum(axis=2)
        + speeds.planner_seconds * speeds.planner_cores_here
    )
    return seconds


def _bottleneck(seconds: float, parts: dict[str, float], lanes: dict[str, float]) -> str:
    """A resource that is busy all the time, or else the largest part of a step."""
    busiest = max(lanes, key=lambda name: lanes[name])
    if lanes[busiest] >= 0.98 * seconds and lanes[busiest] > 1.1 * parts[COMPUTE]:
        return busiest
    named = {name: spent for name, spent in parts.items() if name not in (WAITED, BEHIND)}
    largest = max(named, key=lambda name: named[name])
    if named[largest] >= seconds - sum(named.values()):
        return largest
    return busiest if lanes[busiest] >= 0.8 * seconds else DEPENDENCY
