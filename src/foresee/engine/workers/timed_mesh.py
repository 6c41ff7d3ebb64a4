"""A mesh whose swaps a timeline sees: when, on which lane, how many bytes to and from each peer.

In: the mesh of a run and its timeline. Out: a mesh that does the same. A run that is not recorded gets its own mesh
back, so that nothing stands between it and its peers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from torch import Tensor

from foresee.engine.recording.timeline import EXCHANGE, NOT_RECORDED, TRAIN, UPDATE, UPDATE_THREAD, Timeline
from foresee.engine.recording.timeline import Lane as TimelineLane
from foresee.engine.workers.mesh import Finish, Lane, Mesh


def timed(mesh: Mesh, timeline: Timeline) -> Mesh:
    return mesh if timeline is NOT_RECORDED else TimedMesh(mesh, timeline)


def lap_of(timeline: Timeline) -> Callable[[str], None]:
    """A lap of the thread that calls it: the one that trains, or that of updates during backward."""
    return lambda what: _updating_lane(timeline).lap(what, timeline.step)


def _updating_lane(timeline: Timeline) -> TimelineLane:
    during_backward = threading.current_thread().name.startswith(UPDATE_THREAD)
    return timeline.lane(UPDATE if during_backward else TRAIN)


class TimedMesh:
    """Swaps on the critical lane are laps of the thread that updates, those in the background of one of their own."""

    def __init__(self, mesh: Mesh, timeline: Timeline) -> None:
        self._mesh, self._timeline = mesh, timeline
        self.rank, self.num_workers = mesh.rank, mesh.num_workers

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        critical = lane is Lane.CRITICAL
        line = _updating_lane(self._timeline) if critical else self._timeline.lane(EXCHANGE)
        step, before = self._timeline.step, "update" if critical else "idle"
        line.lap(before, step)
        finish = self._mesh.start(lane, sent, sizes, expected)

        def timed_finish() -> Tensor:
            line.lap(before, step)
            received = finish()
            out, back = self._to_others(sizes, sent), self._to_others(expected, received)
            line.lap("exchange" if critical else "background", step, sum(out.values()) + sum(back.values()))
            self._timeline.swapped(out, back, critical=critical)
            return received

        return timed_finish

    def _to_others(self, sizes: list[int], buffer: Tensor) -> dict[int, int]:
        return {peer: size * buffer.element_size() for peer, size in enumerate(sizes) if peer != self.rank}
