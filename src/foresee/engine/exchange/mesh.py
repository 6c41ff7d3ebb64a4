"""How workers reach each other: one all-to-all at a time on each of two lanes.

The plan gives both sides all sizes. The lanes are separate, so that what is urgent never queues behind what is not.
`TorchMesh` is torch.distributed; `foresee.testing.thread_mesh` connects workers that are threads of a test.

A mesh whose swaps a timeline sees: when, on which lane, how many bytes to and from each peer.

In: the mesh of a run and its timeline. Out: a mesh that does the same. A run that is not recorded gets its own mesh
back, so that nothing stands between it and its peers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from foresee.engine.recording.timeline import EXCHANGE, NOT_RECORDED, Timeline, updating_track


class Lane(IntEnum):
    """Two ways to every peer."""

    CRITICAL = 0
    BACKGROUND = 1


Finish = Callable[[], Tensor]
"""Waits, and gives the parts of all workers in one flat buffer, in worker order."""


class Mesh(Protocol):
    """The workers of a run, as one of them sees them."""

    @property
    def rank(self) -> int: ...

    @property
    def num_workers(self) -> int: ...

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        """Begins to send each worker its part of a flat buffer; what is returned waits for the parts of all workers.

        Every worker calls it the same number of times on each lane; on one lane, never before the last one is finished.
        """
        ...


class TorchMesh:
    """The default process group's workers. Every worker makes it at the same point of its program."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.num_workers = dist.get_world_size()
        self._groups = [dist.new_group() for _ in Lane]

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        received = torch.empty(sum(expected))
        under_way = dist.all_to_all_single(received, sent, expected, sizes, group=self._groups[lane], async_op=True)

        def finish() -> Tensor:
            under_way.wait()
            return received

        return finish


def timed(mesh: Mesh, timeline: Timeline) -> Mesh:
    return mesh if timeline is NOT_RECORDED else TimedMesh(mesh, timeline)


def span_of(timeline: Timeline) -> Callable[[str], None]:
    """A span of the thread that calls it: the one that trains, or that of updates during backward."""
    return lambda what: updating_track(timeline).span(what, timeline.step)


class TimedMesh:
    """Swaps on the critical lane are spans of the thread that updates, those in the background of one of their own."""

    def __init__(self, mesh: Mesh, timeline: Timeline) -> None:
        self._mesh, self._timeline = mesh, timeline
        self.rank, self.num_workers = mesh.rank, mesh.num_workers

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        critical = lane is Lane.CRITICAL
        line = updating_track(self._timeline) if critical else self._timeline.track(EXCHANGE)
        step, before = self._timeline.step, "update" if critical else "idle"
        line.span(before, step)
        finish = self._mesh.start(lane, sent, sizes, expected)

        def timed_finish() -> Tensor:
            line.span(before, step)
            received = finish()
            out, back = self._to_others(sizes, sent), self._to_others(expected, received)
            line.span("exchange" if critical else "background", step, sum(out.values()) + sum(back.values()))
            self._timeline.swapped(out, back, critical=critical)
            return received

        return timed_finish

    def _to_others(self, sizes: list[int], buffer: Tensor) -> dict[int, int]:
        return {peer: size * buffer.element_size() for peer, size in enumerate(sizes) if peer != self.rank}
