"""Who trains a run: one process by itself, or several workers over torch.distributed. The loop asks nobody else.

In: a model and, for several, how it is shared. Out: logits of this worker's samples, what all have agreed on after a
step, and the waits that a commit or an evaluation for everybody needs. Where one process and several differ, they
differ here: random numbers of a step, and whether rows are updated beside backward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from foresee.engine.exchange.dense import Agreed, StepSync
from foresee.engine.step import Step

SEED_STEP = 1_000_003


class Group(Protocol):
    """The workers of a run, as one of them sees them."""

    @property
    def rank(self) -> int:
        """Worker 0 evaluates and commits for all."""
        ...

    @property
    def num_workers(self) -> int: ...

    @property
    def model(self) -> nn.Module: ...

    def forward(self, step: Step) -> Tensor:
        """Logits of this worker's samples, whose backward leaves the mean gradient of all workers."""
        ...

    def agree(self, *, stop: bool, commit: bool, loss: float) -> Agreed:
        """After every step: this worker's wishes in, the same answer for all out."""
        ...

    def barrier(self) -> None:
        """Returns when all workers are here."""
        ...

    def share(self, numbers: list[float]) -> list[float]:
        """The numbers of worker 0; all wait for it."""
        ...

    def close(self) -> None:
        """No step follows."""
        ...


class Alone:
    """One process: what it wants is agreed at once."""

    rank, num_workers = 0, 1

    def __init__(self, model: nn.Module, forward: Callable[[nn.Module, Step], Tensor] | None = None) -> None:
        """`forward` calls the model for a step, where it takes something else than dense features and embeddings."""
        self.model, self._forward = model, forward or _on_samples

    def forward(self, step: Step) -> Tensor:
        return self._forward(self.model, step)

    def agree(self, *, stop: bool, commit: bool, loss: float) -> Agreed:
        return Agreed(stop=stop, commit=commit, loss=loss)

    def barrier(self) -> None:
        pass

    def share(self, numbers: list[float]) -> list[float]:
        return numbers

    def close(self) -> None:
        pass


def _on_samples(model: nn.Module, step: Step) -> Tensor:
    logits: Tensor = model(step.dense, step.embeddings)
    return logits


class TorchGroup:
    """One worker of several. Every worker makes it at the same point of its program."""

    def __init__(self, model: nn.Module, shared: nn.Module, *, seed: int) -> None:
        """`shared` is the model as all workers have it: its backward averages gradients."""
        self.model, self.rank, self.num_workers = model, dist.get_rank(), dist.get_world_size()
        self._shared, self._seed, self._sync = shared, seed, StepSync()
        self._announced = False
        """Worker 0 has said that it is time to commit, and all have not yet agreed."""

    def forward(self, step: Step) -> Tensor:
        torch.manual_seed(_seed(self._seed, step.index, self.rank))
        step.update_during_backward()
        logits: Tensor = self._shared(step.dense, step.embeddings_for(self.model))
        return logits

    def agree(self, *, stop: bool, commit: bool, loss: float) -> Agreed:
        # Clocks differ: that of worker 0 counts, and what it says is said once, as the answer is a step late.
        commit = commit and self.rank == 0
        announced, self._announced = commit and not self._announced, commit
        agreed = self._sync.agree(stop=stop, commit=announced, loss=loss)
        self._announced = self._announced and not agreed.commit
        return agreed

    def barrier(self) -> None:
        dist.barrier()

    def share(self, numbers: list[float]) -> list[float]:
        sent = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(sent, 0)
        received: list[float] = sent.tolist()
        return received

    def close(self) -> None:
        self._sync.close()


def _seed(seed: int, step: int, rank: int) -> int:
    """Random numbers of a step (dropout) follow from the step, so that a resumed run draws the same; by worker."""
    return (seed * SEED_STEP + step) * SEED_STEP + rank & (1 << 63) - 1
