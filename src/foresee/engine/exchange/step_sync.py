"""What workers tell each other after every step: whether one was asked to stop, whether it is time to commit, the loss.

In: each worker's own. Out: the same `Agreed` on all workers, so that all do the same things after the same step. The
answer is that of the step before: it travels while the next step computes, and nobody waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from foresee.engine.exchange.mesh import collective


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed:
    """What all workers know of the step before."""

    stop: bool = False
    commit: bool = False
    loss: float | None = None
    """Mean over the samples of all workers; None before there was a step."""


class StepSync:
    """Every worker makes it at the same point of its program and calls `agree` after every step."""

    def __init__(self) -> None:
        with collective():
            self._group = dist.new_group()
        self._numbers = torch.zeros(3, dtype=torch.float64)
        self._travelling: Any = None

    def agree(self, *, stop: bool, commit: bool, loss: float) -> Agreed:
        """Takes part in the exchange of this step; returns what came of the one before."""
        agreed = self._receive()
        self._numbers = torch.tensor([float(stop), float(commit), loss], dtype=torch.float64)
        with collective():
            self._travelling = dist.all_reduce(self._numbers, group=self._group, async_op=True)
        return agreed

    def close(self) -> None:
        """Waits for the last exchange."""
        self._receive()

    def _receive(self) -> Agreed:
        if self._travelling is None:
            return Agreed()
        with collective():
            self._travelling.wait()
        self._travelling = None
        stop, commit, loss = self._numbers.tolist()
        return Agreed(stop=stop > 0, commit=commit > 0, loss=loss / dist.get_world_size())
