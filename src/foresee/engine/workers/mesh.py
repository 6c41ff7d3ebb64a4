"""How workers reach each other: one all-to-all at a time on each of two lanes.

The plan gives both sides all sizes. The lanes are separate, so that what is urgent never queues behind what is not.
`TorchMesh` is torch.distributed; `foresee.testing.thread_mesh` connects workers that are threads of a test.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor


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
