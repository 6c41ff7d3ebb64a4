"""Where the time of a step goes, in the parts of the Bagpipe paper's figure, and what an ideal step would take.

In: the points of a worker. Out: seconds a step for each part. The training thread's time is covered by its activities,
so the parts add up to the step. Evaluations and commits belong to no step and are left out.

The ideal is forward, backward and dense synchronisation alone: all rows at hand, and their updates for free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foresee.report.run_records import Point

PARTS = {
    "embedding access": ("wait_rows", "fill", "gather", "evict"),
    "forward": ("begin", "forward"),
    "backward + dense sync": ("backward", "dense"),
    "forward + backward": ("compute",),
    "row update": ("update",),
    "cache sync": ("exchange", "background_wait"),
}
"""Activities of the training thread. A loop of one's own that does not lap has its whole model in one part; whatever it
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
        parts["forward + backward"] = 0.0  # of a loop that laps, what it did after its last lap
    everything = sum(sum(point.lanes.get("train", {}).values()) for point in points)
    between = sum(point.train_seconds(*BETWEEN_STEPS) for point in points)
    parts[OTHER] = max(0.0, (everything - between) / num_steps - sum(parts.values()))
    return Breakdown(parts=parts, waited=sum(point.train_seconds("wait_rows") for point in points) / num_steps)


def step_seconds(point: Point) -> float:
    """Mean time of a step, without evaluations and commits."""
    return breakdown([point]).step_seconds
