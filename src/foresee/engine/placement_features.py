"""Which features are worth the time that placement takes to look at them, measured on the beginning of a log.

In: a stream and the header of a plan for several workers. Out: for each position of a lookup in a sample (with one id a
feature: for each feature), best first, what routing can save there and how long placement takes with it and all before
it. Nothing is planned with it here: the choice is a parameter of the plan, which stays a function of its inputs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from foresee.data.batch import BatchStream
from foresee.engine.planning import first_steps
from foresee.engine.work import touches_of
from foresee.plan.record import Header, Int32
from foresee.plan.workers.ownership import Ownership
from foresee.plan.workers.placement import LocationAware, Placement, Scene, location_aware
from foresee.plan.workers.positions import rank_positions

TIMED_STEPS = 4
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Choice:
    """One position, in the order of what it saves."""

    position: int
    saved: float
    """Transfers a step that routing by it can save at best, critical ones counting more."""
    seconds: float
    """Placement's time a step with this position and all before it."""


def measure(
    stream: BatchStream, header: Header, *, num_steps: int, advance: Callable[[], None] = lambda: None
) -> list[Choice]:
    scenes = _scenes(stream, header, num_steps, advance)
    ranked = rank_positions(scenes)
    # Time is linear in the number of positions: two points give the line.
    timed = scenes[-TIMED_STEPS:]
    one = _seconds(LocationAware(positions=(ranked[0][0],)), timed)
    every = _seconds(location_aware, timed)
    slope = max(0.0, every - one) / max(1, len(ranked) - 1)
    return [Choice(position, saved, one + slope * place) for place, (position, saved) in enumerate(ranked)]


def _scenes(stream: BatchStream, header: Header, num_steps: int, advance: Callable[[], None]) -> list[Scene]:
    """What placement sees in the first steps, as they come out if it looks at everything."""
    scenes: list[Scene] = []

    def watched(scene: Scene) -> Int32:
        scenes.append(scene)
        advance()
        return location_aware(scene)

    beginning = first_steps(stream, num_steps)
    planner = Ownership(replace(header, num_steps=beginning.num_steps), watched)
    for batch in beginning.batches(header.first_step):
        planner.push(touches_of(batch))
    planner.finish()
    return scenes


def _seconds(place: Placement, scenes: list[Scene]) -> float:
    place(scenes[0])  # compiles

    def once() -> float:
        begun = time.perf_counter()
        for scene in scenes:
            place(scene)
        return (time.perf_counter() - begun) / len(scenes)

    return statistics.median(once() for _ in range(REPEATS))
