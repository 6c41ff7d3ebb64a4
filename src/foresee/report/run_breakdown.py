"""Where the time of a step goes and what went over which link, from a run's recording.

In: the points of workers. Out: seconds a step for each part of the Bagpipe paper's figure, and bytes a step for each
link between workers and store and between workers. The training thread's time is covered by its activities, so the
parts add up to the step; evaluations and commits belong to no step and are left out. The ideal step is forward,
backward and dense synchronisation alone. Bytes are those of rows and gradients, without what a wire adds; an exchange
is counted once, at its sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.report.run_records import Point, WorkerRecords

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
    "embedding access": "#3fa66b", "forward": "#7fb2e5", "backward + dense sync": "#3b82c4",
    "forward + backward": "#5b9bd5", "row update": "#c9a227", "cache sync": "#e07b39", "other": "#9aa1ab",
}  # fmt: skip
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
