"""What a cluster can do, and how large a row is on a wire: what a prediction is made from, beside the plan's volumes.

Every figure is given, by a person or by who timed it. A figure that is left out costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


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
