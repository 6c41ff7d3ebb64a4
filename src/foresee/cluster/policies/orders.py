"""Orders that need nothing but the live jobs: first come, shortest, least served.

In: the time and the live jobs. Out: ids, most urgent first. Every function is the whole policy.
Never: state, capacity or randomness; equal jobs keep their order of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foresee.cluster.simulation import Live

# Tiresias: a job sinks to the next queue once it has had this much GPU time.
QUEUE_GPU_SECONDS = (3_600.0, 14_400.0)
# ... and comes back to the first when it has waited this many times longer than it was served.
STARVED_AFTER = 8.0


def fifo(now: float, live: Sequence[Live]) -> list[str]:
    """First come, first served, later jobs filling what is left."""
    return _sorted(live, lambda entry: entry.job.arrival_seconds)


def srtf(now: float, live: Sequence[Live]) -> list[str]:
    """Shortest remaining time first."""
    return _sorted(live, lambda entry: entry.remaining_seconds)


def srsf(now: float, live: Sequence[Live]) -> list[str]:
    """Shortest remaining service first: time times GPUs."""
    return _sorted(live, lambda entry: entry.remaining_seconds * entry.gpus)


def longest_first(now: float, live: Sequence[Live]) -> list[str]:
    """Longest remaining time first: best for the makespan, worst for everybody else."""
    return _sorted(live, lambda entry: -entry.remaining_seconds)


def las(now: float, live: Sequence[Live]) -> list[str]:
    """Least attained service in queues (Tiresias): needs no estimate at all."""
    return _sorted(live, lambda entry: (_queue(entry), entry.job.arrival_seconds))


def _queue(entry: Live) -> int:
    if entry.served_seconds and entry.waited_seconds > STARVED_AFTER * entry.served_seconds:
        return 0
    attained = entry.gpus * entry.served_seconds
    return sum(attained >= threshold for threshold in QUEUE_GPU_SECONDS)


def _sorted(live: Sequence[Live], key: Callable[[Live], float | tuple[float, ...]]) -> list[str]:
    return [entry.id for entry in sorted(live, key=key)]
