"""What went over which link of a run: between workers and the store, and between workers.

In: the points of all workers. Out: bytes a step for each link, and over the run for all links together. Bytes are those
of rows and gradients; what a wire adds is not counted. A swap is counted once, where it was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.report.run_records import Point, WorkerRecords

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
