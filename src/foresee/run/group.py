"""Who trains a run: one process by itself, or several workers over torch.distributed. The loop asks nobody else.

In: a model and, for several, how it is shared. Out: logits of this worker's samples, what all have agreed on after a
step, and the waits that a commit or an evaluation for everybody needs. Where one process and several differ, they
differ here: random numbers of a step, and whether rows are updated beside backward.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from foresee.arrays import Float32
from foresee.engine.exchange.dense import Agreed, StepSync, of_all_workers, sum_of_all_workers
from foresee.engine.step import Step
from foresee.models.contract import accepts_deferred_embeddings

SEED_STEP = 1_000_003


FLOAT32, BF16 = "float32", "bf16"


def computing(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """In which the model computes: as it is, or with matrix products in bfloat16, by torch.autocast."""
    return torch.autocast(device.type, torch.bfloat16) if precision == BF16 else nullcontext()


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

    def agree(self, *, stop: bool, commit: bool, show: bool, loss: float) -> Agreed:
        """After every step: this worker's wishes in, the same answer for all out."""
        ...

    def sum(self, numbers: list[float]) -> list[float]:
        """Over all workers; all call it at the same point."""
        ...

    def join(self, rows: Float32) -> Float32:
        """The rows of all workers, one worker's after the other's; all call it at the same point."""
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

    def __init__(
        self, model: nn.Module, forward: Callable[[nn.Module, Step], Tensor] | None = None, precision: str = FLOAT32
    ) -> None:
        """`forward` calls the model for a step, where it takes something else than dense features and embeddings."""
        self.model, self._forward, self._precision = model, forward or _on_samples, precision

    def forward(self, step: Step) -> Tensor:
        with computing(self._precision, step.dense.device):
            return self._forward(self.model, step)

    def agree(self, *, stop: bool, commit: bool, show: bool, loss: float) -> Agreed:
        return Agreed(stop=stop, commit=commit, show=show, loss=loss)

    def sum(self, numbers: list[float]) -> list[float]:
        return numbers

    def join(self, rows: Float32) -> Float32:
        return rows

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

    def __init__(
        self, model: nn.Module, shared: nn.Module, *, seed: int, precision: str = FLOAT32, overlap: bool = True
    ) -> None:
        """`shared` is the model as all workers have it: its backward averages gradients.

        overlap: rows are updated beside backward; nobody looks at their gradient in between.
        """
        self._precision, self._overlap = precision, overlap
        self.model, self.rank, self.num_workers = model, dist.get_rank(), dist.get_world_size()
        self._shared, self._seed, self._sync = shared, seed, StepSync()
        self._commit, self._show = _Announcement(), _Announcement()

    def forward(self, step: Step) -> Tensor:
        torch.manual_seed(_seed(self._seed, step.index, self.rank))
        if self._overlap:
            step.update_during_backward()
        with computing(self._precision, step.dense.device):
            deferred = accepts_deferred_embeddings(self.model)
            embeddings = step.await_embeddings if deferred else step.embeddings
            logits: Tensor = self._shared(step.dense, embeddings)
        return logits

    def agree(self, *, stop: bool, commit: bool, show: bool, loss: float) -> Agreed:
        first = self.rank == 0  # clocks differ: that of worker 0 counts
        agreed = self._sync.agree(
            stop=stop, commit=self._commit.say(first and commit), show=self._show.say(first and show), loss=loss
        )
        self._commit.heard(agreed.commit)
        self._show.heard(agreed.show)
        return agreed

    def sum(self, numbers: list[float]) -> list[float]:
        return sum_of_all_workers(numbers)

    def join(self, rows: Float32) -> Float32:
        return np.concatenate(of_all_workers(rows))

    def barrier(self) -> None:
        dist.barrier()

    def share(self, numbers: list[float]) -> list[float]:
        sent = torch.tensor(numbers, dtype=torch.float64)
        dist.broadcast(sent, 0)
        received: list[float] = sent.tolist()
        return received

    def close(self) -> None:
        self._sync.close()


class _Announcement:
    """A wish of worker 0 that is said once, as the answer is a step late."""

    def __init__(self) -> None:
        self._said = False

    def say(self, wish: bool) -> bool:
        said, self._said = wish and not self._said, wish
        return said

    def heard(self, agreed: bool) -> None:
        self._said = self._said and not agreed


def _seed(seed: int, step: int, rank: int) -> int:
    """Random numbers of a step (dropout) follow from the step, so that a resumed run draws the same; by worker."""
    return (seed * SEED_STEP + step) * SEED_STEP + rank & (1 << 63) - 1
