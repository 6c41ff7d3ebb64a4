"""Processor time of processes, this one and others: what work costs the cores, however long it took."""

from __future__ import annotations

import time
from collections.abc import Sequence

PROCESS_CLOCK = 2
"""The kind of clock that counts the time all threads of a process ran (Linux)."""


def processor_seconds(processes: Sequence[int]) -> float:
    """Of all threads of these processes since they began."""
    return sum(time.clock_gettime(~process << 3 | PROCESS_CLOCK) for process in processes)
