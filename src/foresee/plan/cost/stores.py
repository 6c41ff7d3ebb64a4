"""Rows of a step between store, staging memory and cache: seconds they take, and processor time they cost.

Arrays are [steps, workers]. A store that several workers share is told of every step, also of one without write-backs:
others wait for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foresee.plan.cost.speeds import RowBytes, Speeds
from foresee.plan.record import Int64
from foresee.plan.volumes import Volumes

Float64 = NDArray[np.float64]


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
    return volumes.evicted * row_bytes.stored + volumes.pushed * row_bytes.value


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


def _seconds(
    asked: NDArray[np.bool_], rows: Int64, row_seconds: float, num_bytes: Int64, speeds: Speeds
) -> Float64:  # fmt: skip
    of_all_servers = speeds.num_servers * speeds.server_bytes_per_second
    bytes_per_second = min(speeds.trainer_bytes_per_second, of_all_servers)
    each: Float64 = rows * row_seconds + num_bytes / bytes_per_second
    return asked * (speeds.request_seconds + 2 * speeds.latency_seconds) + each
