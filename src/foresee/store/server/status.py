"""The state of a server as text for a person.

In: the answer to the `status` action. Out: a few lines. A monitor reads the JSON itself.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def memory_bytes() -> int:
    """Memory of this process that is in use now; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def status_text(status: dict[str, Any]) -> str:
    """A few lines about one server."""
    megabytes = 1 / 1e6
    workers = ", ".join(f"worker {worker}: {step}" for worker, step in enumerate(status["watermarks"]))
    lines = (
        f"{status['address']}  shard {status['shard']} of {status['num_shards']}, {status['num_rows']:,} rows of "
        f"{status['row_bytes']} bytes, committed step {status['committed_step']}",
        f"  up {status['uptime_seconds']:,.0f} s, memory {status['memory_bytes'] * megabytes:,.0f} MB, "
        f"{status['connections']} connections, {status['bytes_in_flight'] * megabytes:,.1f} MB in flight",
        f"  {status['requests']:,} requests ({status['refused']:,} refused), "
        f"{status['rows_read']:,} rows read ({status['bytes_read'] * megabytes:,.0f} MB), "
        f"{status['rows_written']:,} written ({status['bytes_written'] * megabytes:,.0f} MB)",
        f"  {status['parked_now']} reads parked now, {status['parked_total']:,} in all; "
        + (f"run {status['run']}, applied up to step: {workers}" if status["run"] else "no run"),
    )
    return "\n".join(lines)
