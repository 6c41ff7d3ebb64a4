"""What a run's disks did, and what its steps waited for: figures and sentences for the page and for the terminal.

In: points of a recording; those of worker 0 have the counts of the disk, or of each server's. Out: rates over an
interval, and `waiting_for`, which names the one thing that made training wait: the disk, the servers, write-backs that
a fetch had to wait for, or the plan. A reader that is not ahead was held up by what it spent its time on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foresee.report.run_records import Point

WAITS_SHARE = 0.03
"""Steps that wait less do not wait for anything in particular."""
MEGABYTE, KILOBYTE, MILLISECONDS = 1e6, 1e3, 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Reads, or writes, over some steps."""

    num_bytes: int
    requests: int
    seconds: float
    processor_seconds: float
    depth: float
    """Requests at once, while there was one."""

    @property
    def request_bytes(self) -> float:
        return self.num_bytes / self.requests if self.requests else 0.0

    @property
    def bytes_a_second(self) -> float:
        """While there was a request."""
        return self.num_bytes / self.seconds if self.seconds else 0.0

    @property
    def words(self) -> str:
        return (
            f"{self.bytes_a_second / MEGABYTE:,.0f} MB/s in requests of {self.request_bytes / KILOBYTE:,.1f} kB, "
            f"{self.depth:.0f} at once"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """One disk, or several together, over some steps."""

    way: str
    steps: int
    read: Direction
    written: Direction
    syncs: int
    sync_seconds: float


def disk_use(points: Sequence[Point], disk: int | None = None) -> DiskUse | None:
    """Of one disk, or of all; None if the points have none."""
    counted = [point for point in points if point.disks]
    found = [one for point in counted for one in (point.disks if disk is None else point.disks[disk : disk + 1])]
    if not found:
        return None
    return DiskUse(
        way=", ".join(sorted({one["way"] for one in found})), steps=max(1, sum(point.steps for point in counted)),
        read=_direction(found, "read"), written=_direction(found, "written"),
        syncs=sum(one["syncs"] for one in found), sync_seconds=sum(one["sync_seconds"] for one in found),
    )  # fmt: skip


def num_disks(points: Sequence[Point]) -> int:
    return max((len(point.disks) for point in points), default=0)


def _direction(found: Sequence[dict[str, Any]], name: str) -> Direction:
    def total(key: str) -> Any:
        return sum(one[f"{name}_{key}"] for one in found)

    seconds = total("seconds")
    return Direction(
        num_bytes=total("bytes"), requests=total("requests"), seconds=seconds,
        processor_seconds=total("processor_seconds"), depth=total("in_flight_seconds") / seconds if seconds else 0.0,
    )  # fmt: skip


def waiting_for(points: Sequence[Point], *, num_servers: int) -> str | None:
    """What steps wait for, in words; None if they hardly wait. The points are those of one worker."""
    everything = sum(sum(point.tracks.get("train", {}).values()) for point in points)
    waited = sum(point.train_seconds("wait_rows") for point in points)
    if waited < WAITS_SHARE * everything or not everything:
        return _slow_commits(points, everything)
    spent = {what: _seconds(points, "reader", what) for what in ("fetch", "wait_writes", "wait_plan")}
    cause, use = max(spent, key=lambda what: spent[what]), disk_use(points)
    if cause == "wait_plan":
        return "the planner: it plans and reads the log more slowly than steps are trained"
    if cause == "wait_writes":
        if use is not None and use.written.seconds + use.sync_seconds > _seconds(points, "writer", "write_back") / 2:
            return f"the disk, which writes {use.written.words}"
        return "write-backs: rows that are needed again soon after they left; a larger cache keeps them"
    of_disk = 0.0 if use is None else use.read.seconds / max(1, num_servers)
    if use is not None and of_disk > spent["fetch"] / 2:
        whose = "the disks of the servers, which read" if num_servers else "the disk, which reads"
        return f"{whose} {use.read.words}"
    if num_servers:
        return "rows from the servers: the link, or their processors"
    return "copies of rows: the processor, not the disk"


def _slow_commits(points: Sequence[Point], everything: float) -> str | None:
    committing, use = sum(point.train_seconds("commit") for point in points), disk_use(points)
    if use is None or committing < WAITS_SHARE * everything or use.sync_seconds < committing / 2:
        return None
    each = use.sync_seconds / max(1, use.syncs)
    return f"commits: the disk takes {MILLISECONDS * each:,.0f} ms to sync what was written"


def _seconds(points: Sequence[Point], track: str, what: str) -> float:
    return sum(point.tracks.get(track, {}).get(what, 0.0) for point in points)
