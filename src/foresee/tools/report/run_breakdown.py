"""Where the time of a step goes, what it waits for, and what went over which link and to which disk, from a recording.

In: the points of workers. Out: seconds a step for each part of the Bagpipe paper's figure, and bytes a step for each
link between workers and store and between workers. The training thread's time is covered by its activities, so the
parts add up to the step; evaluations and commits belong to no step and are left out. The ideal step is forward,
backward and dense synchronisation alone. Bytes are those of rows and gradients, without what a wire adds; an exchange
is counted once, at its sender. Points of worker 0 have the counts of the disk, or of each server's. `waiting_for` names
the one thing that made training wait: a reader that is not ahead was held up by what it spent its time on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foresee.tools.report.run_records import Point, WorkerRecords

PARTS = {
    "embedding access": ("wait_rows", "fill", "gather", "evict"),
    "forward": ("begin", "forward"),
    "backward + dense sync": ("backward", "dense"),
    "forward + backward": ("compute",),
    "row update": ("update",),
    "cache sync": ("exchange", "background_wait"),
}
"""Activities of the training thread. A custom loop that adds no spans has its whole model in one part; whatever it
calls by names of its own is in the part OTHER."""
OTHER = "other"
BETWEEN_STEPS = ("evaluate", "commit")
IDEAL_PARTS = ("forward", "backward + dense sync", "forward + backward")
COLOURS = {
    "embedding access": "#3fa66b",
    "forward": "#7fb2e5",
    "backward + dense sync": "#3b82c4",
    "forward + backward": "#5b9bd5",
    "row update": "#c9a227",
    "cache sync": "#e07b39",
    "other": "#9aa1ab",
}
VISIBLE_SHARE = 0.002
"""A part below this share of a step is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds a step."""

    parts: dict[str, float]
    waited: float
    """Of embedding access: waiting for rows to arrive."""

    @property
    def step_seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def ideal_seconds(self) -> float:
        return sum(self.parts.get(part, 0.0) for part in IDEAL_PARTS)

    @property
    def visible_parts(self) -> dict[str, float]:
        least = VISIBLE_SHARE * self.step_seconds
        return {part: seconds for part, seconds in self.parts.items() if seconds > least}


def breakdown(points: Sequence[Point]) -> Breakdown:
    """The mean over all steps of these points."""
    num_steps = max(1, sum(point.steps for point in points))
    parts = {
        part: sum(point.train_seconds(*activities) for point in points) / num_steps
        for part, activities in PARTS.items()
    }
    if parts["forward"]:
        parts["forward + backward"] = 0.0  # of a loop that adds spans, what it did after its last one
    everything = sum(sum(point.tracks.get("train", {}).values()) for point in points)
    between = sum(point.train_seconds(*BETWEEN_STEPS) for point in points)
    parts[OTHER] = max(0.0, (everything - between) / num_steps - sum(parts.values()))
    return Breakdown(parts=parts, waited=sum(point.train_seconds("wait_rows") for point in points) / num_steps)


def step_seconds(point: Point) -> float:
    """Mean time of a step, without evaluations and commits."""
    return breakdown([point]).step_seconds


READ, WRITTEN = "read from the store", "written back"
CRITICAL, BACKGROUND = "between workers, critical", "between workers, background"
LINK_COLOURS = {READ: "#4bb3b3", WRITTEN: "#a45fb8", CRITICAL: "#e07b39", BACKGROUND: "#f0b48a"}
LINKS_MAX = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """One link, both ways for the store, one way between workers."""

    name: str
    bytes_a_step: dict[str, float]


def links_of(workers: Sequence[WorkerRecords]) -> list[LinkTraffic]:
    """All links; where they are too many to read, those of a worker together."""
    found = [link for worker in workers for link in _links_of_worker(worker, len(workers))]
    if len(found) <= LINKS_MAX:
        return found
    return [_together(f"worker {worker.worker}", _links_of_worker(worker, len(workers))) for worker in workers]


def _links_of_worker(worker: WorkerRecords, num_workers: int) -> list[LinkTraffic]:
    points, steps = worker.points, max(1, sum(point.steps for point in worker.points))
    num_servers = worker.start["num_servers"]
    own = f"worker {worker.worker}" if num_workers > 1 or num_servers else "cache"
    found = []
    for server in range(len(points[0].store_bytes) if points else 0):
        read, written = (sum(point.store_bytes[server][way] for point in points) / steps for way in range(2))
        name = f"server {server} ⇄ {own}" if num_servers else f"store ⇄ {own}"
        found.append(LinkTraffic(name=name, bytes_a_step={READ: read, WRITTEN: written}))
    for peer in range(num_workers):
        if peer != worker.worker:
            critical, background = (sum(point.peer_bytes[peer][way] for point in points) / steps for way in (0, 2))
            sent = {CRITICAL: critical, BACKGROUND: background}
            found.append(LinkTraffic(name=f"{own} → worker {peer}", bytes_a_step=sent))
    return found


def _together(name: str, links: Sequence[LinkTraffic]) -> LinkTraffic:
    kinds = {kind: sum(link.bytes_a_step.get(kind, 0.0) for link in links) for kind in LINK_COLOURS}
    return LinkTraffic(name=name, bytes_a_step=kinds)


def traffic_over_run(workers: Sequence[WorkerRecords]) -> dict[str, list[tuple[int, float]]]:
    """(step, bytes a step) of each kind, summed over the workers that have a point there."""
    sums: dict[str, dict[int, float]] = {kind: {} for kind in LINK_COLOURS}
    for worker in workers:
        for point in worker.points:
            for kind, num_bytes in bytes_by_kind(point).items():
                sums[kind][point.step] = sums[kind].get(point.step, 0.0) + num_bytes / point.steps
    return {kind: sorted(by_step.items()) for kind, by_step in sums.items()}


def bytes_by_kind(point: Point) -> dict[str, int]:
    """Everything that one worker read, wrote and sent in an interval."""
    return {
        READ: sum(one[0] for one in point.store_bytes),
        WRITTEN: sum(one[1] for one in point.store_bytes),
        CRITICAL: sum(one[0] for one in point.peer_bytes),
        BACKGROUND: sum(one[2] for one in point.peer_bytes),
    }


# Disks, and what steps wait for --------------------------------------------------------------------------------------

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
        rate = self.bytes_a_second / MEGABYTE
        return (
            f"{rate:,.{int(rate < 10)}f} MB/s in requests of {self.request_bytes / KILOBYTE:,.1f} kB, "
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
        way=", ".join(sorted({one["way"] for one in found})),
        steps=max(1, sum(point.steps for point in counted)),
        read=_direction(found, "read"),
        written=_direction(found, "written"),
        syncs=sum(one["syncs"] for one in found),
        sync_seconds=sum(one["sync_seconds"] for one in found),
    )


def num_disks(points: Sequence[Point]) -> int:
    return max((len(point.disks) for point in points), default=0)


def _direction(found: Sequence[dict[str, Any]], name: str) -> Direction:
    def total(key: str) -> Any:
        return sum(one[f"{name}_{key}"] for one in found)

    seconds = total("seconds")
    return Direction(
        num_bytes=total("bytes"),
        requests=total("requests"),
        seconds=seconds,
        processor_seconds=total("processor_seconds"),
        depth=total("in_flight_seconds") / seconds if seconds else 0.0,
    )


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
