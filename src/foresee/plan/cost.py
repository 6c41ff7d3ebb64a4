"""What a plan costs in time: volumes and the speeds of a cluster in, seconds a step and the bottleneck out.

The rules are those of the engine (`engine/loop.py`, `pipeline.py`, `peers.py`), step by step and worker by worker:

    planned      one step after the other, ahead of training
    read         one fetch after the other, once the write-backs of its `not_before` are applied: hidden, unless late
    trained      rows into the cache, forward, backward; part of the dense all-reduce is hidden behind backward
    gradients    due at the next step: on the critical path, after the slowest worker's backward
    settled      the background exchange of the step before must be over
    written      a few write-backs may wait for the writer: hidden, unless the writer falls behind
    rows         for the next step: on the critical path; what is due later starts after them, hidden

What is hidden is still on the link: urgent traffic shares it with what is not sent yet. And below some bounds no step
can fall: bytes over a link, rows over what servers serve, processor time over cores. Workers go in lockstep. A mean
step, not its jitter.
Never: measurements of this machine; every speed is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from foresee.plan.record import Int64, Kind
from foresee.plan.volumes import BACKGROUND, CRITICAL, Volumes

Float64 = NDArray[np.float64]

GRADIENTS, ROWS, LATER = 0, 1, 2
"""The exchanges of a step: two on the critical path, one in the background."""
HIDDEN_FLOWS = 2
"""Hidden flows that an urgent one shares a link with, each way: one with the servers, one with the other trainers."""
WRITES_IN_FLIGHT = 4
"""Write-backs that may wait for the writer before training waits."""
COMPUTE, WAITED, EXCHANGE, DENSE, BEHIND = "compute", "waiting for rows", "exchange", "dense sum", "background late"
PARTS = (COMPUTE, WAITED, EXCHANGE, DENSE, BEHIND)
PLANNER, READER, WRITER, TRAINER_LINK, SERVER_LINK, SERVERS, CORES, DEPENDENCY = (
    "planner", "reading rows", "writing rows", "trainer link", "server link", "servers", "processor cores",
    "write, then read",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes of a row on a wire."""

    stored: int
    """Between store and worker, or when its owner changes: values, state, version."""
    value: int
    """A copy for one step, or a gradient: values alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What a cluster can do. Times of work done by a processor are those of one core."""

    compute_seconds: float
    """Forward, backward, dense and row optimisers of one worker's share of a step, its rows at hand."""
    compute_threads: int = 1
    cores: float = inf
    """Of each trainer, and of whatever else runs on its machine."""
    planner_seconds: float = 0.0
    """Planning one step for all workers; 0: the plan was made before."""
    planner_cores_here: float = 0.0
    """How many planners run on the cores of a trainer: 1 if every trainer plans for itself."""
    trainer_bytes_per_second: float = inf
    """Each way."""
    server_bytes_per_second: float = inf
    latency_seconds: float = 0.0
    """One way between any two machines."""
    num_servers: int = 1
    server_rows_per_second: float = inf
    """What one server reads or writes."""
    request_seconds: float = 0.0
    """A fetch or write-back of no rows at all."""
    read_row_seconds: float = 0.0
    write_row_seconds: float = 0.0
    cache_row_seconds: float = 0.0
    """A row copied between staging memory and cache, by the training loop."""
    exchange_seconds: float = 0.0
    """One all-to-all of nothing between two workers."""
    exchange_row_seconds: float = 0.0
    """A row packed, unpacked or summed, by the training loop."""
    dense_bytes: float = 0.0
    """Gradients of the dense weights, summed over all workers in every step."""
    dense_hidden_share: float = 0.0


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
    begin, waited, exchanged, late = _play(volumes, row_bytes, speeds)
    first_step = min(first_step, volumes.num_steps - 1)
    num_steps = volumes.num_steps - first_step
    played = float(begin[-1] - begin[first_step]) / num_steps
    steady = volumes.from_step(first_step)
    lanes = _lanes(steady, row_bytes, speeds)
    dense = dense_seconds(volumes.num_workers, speeds)
    parts = {
        COMPUTE: float(speeds.compute_seconds + _cache_seconds(steady, speeds).max(axis=1).mean()),
        WAITED: float(waited[first_step:].mean()),
        EXCHANGE: float(exchanged[first_step:].mean()) - dense,
        DENSE: dense,
        BEHIND: float(late[first_step:].mean()),
    }
    seconds = max(played, *lanes.values())
    return Prediction(step_seconds=seconds, parts=parts, lanes=lanes, bottleneck=_bottleneck(seconds, parts, lanes))


def dense_seconds(num_workers: int, speeds: Speeds) -> float:
    """A ring all-reduce of the dense gradients, as far as it is not hidden, on a link of its own."""
    if num_workers == 1 or speeds.dense_bytes == 0:
        return 0.0
    around = 2 * (num_workers - 1)
    sent = around / num_workers * speeds.dense_bytes * (1.0 - speeds.dense_hidden_share)
    return sent / speeds.trainer_bytes_per_second + around * speeds.latency_seconds


def _play(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> tuple[Float64, Float64, Float64, Float64]:
    """When each step begins and the last one ends, and what each step waited for.

    Times are of the slowest worker where workers meet: an exchange begins when all are there.
    """
    num_steps = volumes.num_steps
    read, write = _read_seconds(volumes, row_bytes, speeds), _write_seconds(volumes, row_bytes, speeds)
    exchange, link = Exchanges.of(volumes, row_bytes, speeds), _SharedLink(volumes.num_workers)
    train = speeds.compute_seconds + _cache_seconds(volumes, speeds)
    begin, waited, late, exchanged = (np.zeros(num_steps + 1) for _ in range(4))
    applied = np.zeros(num_steps + 1)  # the last entry stands for step -1: nothing to wait for
    write_begun = np.zeros((num_steps, volumes.num_workers))
    planned, background_over = 0.0, 0.0
    read_over, write_over = np.zeros(volumes.num_workers), np.zeros(volumes.num_workers)
    for step in range(num_steps):
        planned += speeds.planner_seconds
        read_over = np.maximum(np.maximum(read_over, planned), applied[volumes.not_before[step]]) + read[step]
        started = np.maximum(read_over, begin[step])
        waited[step] = started.max() - begin[step]
        trained = float((started + train[step]).max())
        link.pass_time(trained - begin[step])
        gradients = exchange.fixed_seconds[step, GRADIENTS] + link.send(exchange.link_seconds[step, :, :, GRADIENTS])
        freed = write_begun[step - WRITES_IN_FLIGHT].max() if step >= WRITES_IN_FLIGHT else 0.0
        settled = max(trained + gradients, background_over, freed)
        late[step] = settled - trained - gradients
        write_begun[step] = np.maximum(write_over, settled)
        write_over = write_begun[step] + write[step]
        applied[step] = write_over.max()
        link.pass_time(late[step])
        link.hide(exchange.stored_seconds[step])
        rows = exchange.fixed_seconds[step, ROWS] + link.send(exchange.link_seconds[step, :, :, ROWS])
        exchanged[step] = gradients + rows
        begin[step + 1] = settled + rows
        background_over = begin[step + 1] + exchange.fixed_seconds[step, LATER]
        background_over += float(exchange.link_seconds[step, :, :, LATER].max())
        link.hide(exchange.link_seconds[step, :, :, LATER])
    return begin, waited[:-1], exchanged[:-1], late[:-1]


class _SharedLink:
    """Hidden and urgent traffic on the links of the trainers: flows that are there at once share them evenly."""

    def __init__(self, num_workers: int) -> None:
        self._waiting = np.zeros((num_workers, 2))
        """[workers, directions]: seconds of hidden traffic that are not sent yet."""

    def hide(self, seconds: Float64) -> None:
        """More hidden traffic. It is never let grow beyond what matters: a bound of its own sees to that."""
        self._waiting = self._waiting + seconds

    def pass_time(self, seconds: float) -> None:
        self._waiting = np.maximum(self._waiting - seconds, 0.0)

    def send(self, urgent: Float64) -> float:
        """Seconds until urgent traffic has gone over, of the slowest worker."""
        alone = (1 + HIDDEN_FLOWS) * urgent
        took = float(np.minimum(alone, urgent + self._waiting).max())
        self._waiting = np.maximum(self._waiting - np.maximum(took - urgent, 0.0), 0.0)
        return took


def _read_seconds(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Float64:
    """[steps, workers]: a request to every server at once, and its reply."""
    rows = volumes.fetched + volumes.refreshed
    return _store_seconds(rows, _bytes_read(volumes, row_bytes), speeds.read_row_seconds, speeds)


def _write_seconds(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Float64:
    rows = volumes.evicted + volumes.pushed
    return _store_seconds(rows, _bytes_written(volumes, row_bytes), speeds.write_row_seconds, speeds)


def _bytes_read(volumes: Volumes, row_bytes: RowBytes) -> Int64:
    return (volumes.fetched + volumes.refreshed) * row_bytes.stored


def _bytes_written(volumes: Volumes, row_bytes: RowBytes) -> Int64:
    return volumes.evicted * row_bytes.stored + volumes.pushed * row_bytes.value


def _store_seconds(rows: Int64, num_bytes: Int64, row_seconds: float, speeds: Speeds) -> Float64:
    asked = np.where(rows > 0, speeds.request_seconds + 2 * speeds.latency_seconds, 0.0)
    of_all_servers = speeds.num_servers * speeds.server_bytes_per_second
    bytes_per_second = min(speeds.trainer_bytes_per_second, of_all_servers)
    seconds: Float64 = asked + rows * row_seconds + num_bytes / bytes_per_second
    return seconds


def _cache_seconds(volumes: Volumes, speeds: Speeds) -> Float64:
    rows = volumes.fetched + volumes.refreshed + volumes.evicted + volumes.pushed
    return rows.astype(np.float64) * speeds.cache_row_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """What trainers send each other in a step, as seconds: gradients and rows due at the next step, all the rest."""

    link_seconds: Float64  # [steps, workers, directions, exchanges]
    fixed_seconds: Float64  # [steps, exchanges]
    """Latency, messages, and rows packed and unpacked: the slowest worker's, whatever the link carries."""
    stored_seconds: Float64  # [steps, workers, directions]
    """Fetches and write-backs on the trainer's link."""

    @classmethod
    def of(cls, volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Exchanges:
        workers, each = volumes.num_workers, speeds.exchange_seconds * (volumes.num_workers - 1)
        rows, num_bytes = _by_exchange(volumes, row_bytes, speeds)
        link_seconds = num_bytes / speeds.trainer_bytes_per_second
        packed = (rows.sum(axis=2) * speeds.exchange_row_seconds).max(axis=1)  # [steps, exchanges]
        swapped = (each + speeds.latency_seconds) if volumes.transfers.any() else 0.0
        rounds = np.zeros((volumes.num_steps, 3))
        rounds[:, GRADIENTS] = (volumes.reduced[..., CRITICAL].max(axis=1) > 0) + (speeds.dense_bytes > 0)
        rounds[:, LATER] = volumes.reduced[..., BACKGROUND].max(axis=1) > 0
        fixed = packed + swapped + rounds * 2 * (workers - 1) * speeds.latency_seconds
        stored = np.stack([_bytes_written(volumes, row_bytes), _bytes_read(volumes, row_bytes)], axis=-1)
        return cls(
            link_seconds=link_seconds,
            fixed_seconds=fixed if workers > 1 else np.zeros((volumes.num_steps, 3)),
            stored_seconds=stored / speeds.trainer_bytes_per_second,
        )


def _by_exchange(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> tuple[Float64, Float64]:
    """Rows and bytes [steps, workers, directions, exchanges]; sums over all workers go round a ring, with gradients."""
    bytes_of = np.array([row_bytes.stored if kind == Kind.MOVE else row_bytes.value for kind in Kind], np.float64)
    rows = np.stack([
        volumes.transfers[..., Kind.GRAD, CRITICAL],
        volumes.transfers[..., [Kind.VALUE, Kind.MOVE], CRITICAL].sum(axis=-1),
        volumes.transfers[..., BACKGROUND].sum(axis=-1),
    ], axis=-1).astype(np.float64)  # fmt: skip
    num_bytes = np.stack([
        volumes.transfers[..., Kind.GRAD, CRITICAL] * float(row_bytes.value),
        (volumes.transfers[..., CRITICAL] * bytes_of)[..., [Kind.VALUE, Kind.MOVE]].sum(axis=-1),
        (volumes.transfers[..., BACKGROUND] * bytes_of).sum(axis=-1),
    ], axis=-1)  # fmt: skip
    ring = 2.0 * (volumes.num_workers - 1) / volumes.num_workers
    for exchange, urgency in ((GRADIENTS, CRITICAL), (LATER, BACKGROUND)):
        reduced = volumes.reduced[..., urgency, None]  # [steps, workers, one]
        rows[..., exchange] += reduced / 2
        num_bytes[..., exchange] += ring * reduced * row_bytes.value
    exposed = 1.0 - speeds.dense_hidden_share
    num_bytes[..., GRADIENTS] += ring * speeds.dense_bytes * exposed
    num_bytes[..., LATER] += ring * speeds.dense_bytes * (1.0 - exposed)
    return rows, num_bytes


def transfer_bytes(volumes: Volumes, row_bytes: RowBytes) -> Int64:
    """[steps, workers, directions, urgencies]: what goes from worker to worker."""
    bytes_of = np.array([row_bytes.stored if kind == Kind.MOVE else row_bytes.value for kind in Kind], np.int64)
    num_bytes: Int64 = (volumes.transfers * bytes_of[:, None]).sum(axis=3)
    return num_bytes


def _lanes(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> dict[str, float]:
    """How long each resource is busy in a mean step; of several trainers, the busiest."""
    read, write = _read_seconds(volumes, row_bytes, speeds), _write_seconds(volumes, row_bytes, speeds)
    stored_in, stored_out = _bytes_read(volumes, row_bytes), _bytes_written(volumes, row_bytes)
    exchange = Exchanges.of(volumes, row_bytes, speeds)
    on_link = exchange.stored_seconds + exchange.link_seconds.sum(axis=3)  # [steps, workers, directions]
    at_servers = float(max(stored_in.sum(axis=1).mean(), stored_out.sum(axis=1).mean()))
    served = float((volumes.fetched + volumes.refreshed + volumes.evicted + volumes.pushed).sum(axis=1).mean())
    return {
        PLANNER: speeds.planner_seconds,
        READER: float(read.mean(axis=0).max()),
        WRITER: float(write.mean(axis=0).max()),
        TRAINER_LINK: float(on_link.mean(axis=0).max()),
        SERVER_LINK: at_servers / speeds.num_servers / speeds.server_bytes_per_second,
        SERVERS: served / speeds.num_servers / speeds.server_rows_per_second,
        CORES: float(_processor_seconds(volumes, speeds).mean(axis=0).max()) / speeds.cores,
    }


def _processor_seconds(volumes: Volumes, speeds: Speeds) -> Float64:
    """[steps, workers]: work on the cores of a trainer's machine, whoever does it."""
    exchanged = volumes.transfers.sum(axis=(2, 3, 4)) + volumes.reduced.sum(axis=2)
    seconds: Float64 = (
        speeds.compute_seconds * speeds.compute_threads
        + _cache_seconds(volumes, speeds)
        + (volumes.fetched + volumes.refreshed) * speeds.read_row_seconds
        + (volumes.evicted + volumes.pushed) * speeds.write_row_seconds
        + exchanged * speeds.exchange_row_seconds
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
