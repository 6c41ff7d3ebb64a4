"""The parts of a step as seconds: rows between store, staging memory and cache, and what trainers send each other.

In: the volumes of a plan, and what a cluster can do (`Speeds`: each figure is given, by a person or by who timed it;
one left out costs nothing). Out: seconds on links, seconds of fixed costs and processor time, by kind, as arrays
[steps, workers]. A store that several workers share is told of every step, also of one without write-backs: others wait
for it. What shares the link with what is the business of `playing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Float64, Int64
from foresee.plan.count import BACKGROUND, CRITICAL, Volumes
from foresee.plan.record import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBytes:
    """Bytes of a row on a wire."""

    stored: int
    """Between store and worker, or when its owner changes: values, state, version."""
    value: int
    """A copy for one step: values alone."""
    gradient: int
    """Of one step, or an update that is added at the store: float32, whatever values are."""

    def of(self, kind: int) -> int:
        """Bytes of a transfer between workers."""
        return {Kind.MOVE: self.stored, Kind.VALUE: self.value, Kind.GRAD: self.gradient}[Kind(kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """What a cluster can do. Times of work done by a processor are those of one core."""

    compute_seconds: float
    """Forward, backward, dense and row optimisers of one worker's share of a step, its rows at hand."""
    compute_after_rows_share: float = 0.0
    """How much of that follows the gradients of rows, which travel meanwhile: the rest of backward, dense optimiser."""
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
    served_row_seconds: float = 0.0
    """What a row read or written takes of a trainer's cores beside that: servers on them, packets on their way."""
    cache_row_seconds: float = 0.0
    """A row copied between staging memory and cache, by the training loop."""
    exchange_seconds: float = 0.0
    """One all-to-all of nothing between two workers."""
    exchange_link_share: float = 1.0
    """What an exchange gets of a link, each way, while both ends send: acknowledgements wait behind what is sent."""
    exchange_row_seconds: float = 0.0
    """A row packed, unpacked or summed, by whoever updates."""
    dense_bytes: float = 0.0
    """Gradients of the dense weights, summed over all workers in every step."""
    dense_hidden_share: float = 0.0


def read_seconds(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Float64:
    """A request to every server at once, and its reply."""
    asked, rows = _reads(volumes), _rows_read(volumes)
    return _seconds(asked, rows, speeds.read_row_seconds, bytes_read(volumes, row_bytes), speeds)


def write_seconds(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Float64:
    asked, rows = _writes(volumes), _rows_written(volumes)
    return _seconds(asked, rows, speeds.write_row_seconds, bytes_written(volumes, row_bytes), speeds)


def bytes_read(volumes: Volumes, row_bytes: RowBytes) -> Int64:
    return _rows_read(volumes) * row_bytes.stored


def bytes_written(volumes: Volumes, row_bytes: RowBytes) -> Int64:
    return volumes.evicted * row_bytes.stored + volumes.pushed * row_bytes.gradient


def cache_seconds(volumes: Volumes, speeds: Speeds) -> Float64:
    rows = _rows_read(volumes) + _rows_written(volumes)
    return rows.astype(np.float64) * speeds.cache_row_seconds


def read_processor_seconds(volumes: Volumes, speeds: Speeds) -> Float64:
    return _reads(volumes) * speeds.request_seconds + _rows_read(volumes) * (
        speeds.read_row_seconds + speeds.served_row_seconds
    )


def write_processor_seconds(volumes: Volumes, speeds: Speeds) -> Float64:
    return _writes(volumes) * speeds.request_seconds + _rows_written(volumes) * (
        speeds.write_row_seconds + speeds.served_row_seconds
    )


def _reads(volumes: Volumes) -> NDArray[np.bool_]:
    return _rows_read(volumes) > 0


def _writes(volumes: Volumes) -> NDArray[np.bool_]:
    return (_rows_written(volumes) > 0) | (volumes.num_workers > 1)


def _rows_read(volumes: Volumes) -> Int64:
    return volumes.fetched + volumes.refreshed


def _rows_written(volumes: Volumes) -> Int64:
    return volumes.evicted + volumes.pushed


def _seconds(asked: NDArray[np.bool_], rows: Int64, row_seconds: float, num_bytes: Int64, speeds: Speeds) -> Float64:
    of_all_servers = speeds.num_servers * speeds.server_bytes_per_second
    bytes_per_second = min(speeds.trainer_bytes_per_second, of_all_servers)
    each: Float64 = rows * row_seconds + num_bytes / bytes_per_second
    return asked * (speeds.request_seconds + 2 * speeds.latency_seconds) + each


GRADIENTS, ROWS, LATER = 0, 1, 2
"""The exchanges of a step: two on the critical path, one in the background."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanges:
    """Those of all steps. The sum of dense gradients is apart, but for what of it is hidden behind backward."""

    link_seconds: Float64  # [steps, workers, directions, exchanges]
    """How long they are on the link, which is not busy all of that time: `exchange_link_share` says how much."""
    packed_seconds: Float64  # [steps, workers, exchanges]
    """Rows packed, unpacked and summed: work of a processor."""
    fixed_seconds: Float64  # [steps, exchanges]
    """Latency, messages, and the slowest worker's packing, whatever the link carries."""
    stored_seconds: Float64  # [steps, workers, directions]
    """Fetches and write-backs on the trainer's link."""

    @classmethod
    def of(cls, volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Exchanges:
        workers, each = volumes.num_workers, speeds.exchange_seconds * (volumes.num_workers - 1)
        rows, num_bytes = _by_exchange(volumes, row_bytes, speeds)
        packed = rows.sum(axis=2) * speeds.exchange_row_seconds
        swapped = (each + speeds.latency_seconds) if volumes.transfers.any() else 0.0
        rounds = np.zeros((volumes.num_steps, 3))
        rounds[:, GRADIENTS] = volumes.reduced[..., CRITICAL].max(axis=1) > 0
        rounds[:, LATER] = volumes.reduced[..., BACKGROUND].max(axis=1) > 0
        fixed = packed.max(axis=1) + swapped + rounds * 2 * (workers - 1) * speeds.latency_seconds
        stored = np.stack([bytes_written(volumes, row_bytes), bytes_read(volumes, row_bytes)], axis=-1)
        return cls(
            link_seconds=num_bytes / speeds.exchange_link_share / speeds.trainer_bytes_per_second,
            packed_seconds=packed,
            fixed_seconds=fixed if workers > 1 else np.zeros((volumes.num_steps, 3)),
            stored_seconds=stored / speeds.trainer_bytes_per_second,
        )


def dense_seconds(num_workers: int, speeds: Speeds) -> float:
    """A ring all-reduce of the dense gradients, as far as it is not hidden, on a link of its own."""
    if num_workers == 1 or speeds.dense_bytes == 0:
        return 0.0
    return dense_link_seconds(num_workers, speeds) + 2 * (num_workers - 1) * speeds.latency_seconds


def dense_link_seconds(num_workers: int, speeds: Speeds) -> float:
    """What of it is on a trainer's link, each way."""
    sent = _ring(num_workers) * speeds.dense_bytes * (1.0 - speeds.dense_hidden_share)
    return sent / speeds.trainer_bytes_per_second


def transfer_bytes(volumes: Volumes, row_bytes: RowBytes) -> Int64:
    """[steps, workers, directions, urgencies]: what goes from worker to worker."""
    bytes_of = np.array([row_bytes.of(kind) for kind in Kind], np.int64)
    num_bytes: Int64 = (volumes.transfers * bytes_of[:, None]).sum(axis=3)
    return num_bytes


def _ring(num_workers: int) -> float:
    """How often each worker sends a vector that is summed over all of them."""
    return 2.0 * (num_workers - 1) / num_workers


def _by_exchange(volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> tuple[Float64, Float64]:
    """Rows and bytes [steps, workers, directions, exchanges]; sums over all workers go round a ring, with gradients."""
    bytes_of = np.array([row_bytes.of(kind) for kind in Kind], np.float64)
    rows = np.stack(
        [
            volumes.transfers[..., Kind.GRAD, CRITICAL],
            volumes.transfers[..., [Kind.VALUE, Kind.MOVE], CRITICAL].sum(axis=-1),
            volumes.transfers[..., BACKGROUND].sum(axis=-1),
        ],
        axis=-1,
    ).astype(np.float64)
    num_bytes = np.stack(
        [
            volumes.transfers[..., Kind.GRAD, CRITICAL] * float(row_bytes.gradient),
            (volumes.transfers[..., CRITICAL] * bytes_of)[..., [Kind.VALUE, Kind.MOVE]].sum(axis=-1),
            (volumes.transfers[..., BACKGROUND] * bytes_of).sum(axis=-1),
        ],
        axis=-1,
    )
    ring = _ring(volumes.num_workers)
    for exchange, urgency in ((GRADIENTS, CRITICAL), (LATER, BACKGROUND)):
        reduced = volumes.reduced[..., urgency, None]  # [steps, workers, one]
        rows[..., exchange] += reduced / 2
        num_bytes[..., exchange] += ring * reduced * row_bytes.gradient
    num_bytes[..., LATER] += ring * speeds.dense_bytes * speeds.dense_hidden_share
    return rows, num_bytes
