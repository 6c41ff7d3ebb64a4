"""Everything of a run that is not a row: the model, its optimiser, its schedule, and what was the best so far.

In: a configuration and a model. Out: one object that duties keep and a resumed run brings back, the same for one
process and for a worker of several.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from foresee.config import RunConfig
from foresee.engine import checkpoint
from foresee.engine.best import Best
from foresee.engine.state_tree import Stateful
from foresee.engine.torch_names import Schedule, dense_optimizer


@dataclass(frozen=True, slots=True)
class DenseHalf:
    """What a checkpoint of a run holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    best: Best

    @classmethod
    def of(cls, config: RunConfig, model: nn.Module, num_steps: int) -> DenseHalf:
        """As the configuration says, at step 0 of a run of `num_steps` steps."""
        optimizer = dense_optimizer(config.train.optimizer, model)
        schedule = Schedule(config.train.schedule, optimizer, steps_per_epoch=num_steps // config.train.epochs)
        return cls(model, optimizer, schedule, Best(config.train.best))

    def save(self, folder: Path, step: int, *, num_shards: int = 1) -> None:
        """Makes it durable."""
        checkpoint.save(folder, step, self.model, self.optimizer, others=self._others(), num_shards=num_shards)

    def load(self, folder: Path, step: int) -> None:
        """Brings it back; what a checkpoint of before did not keep begins anew."""
        kept = checkpoint.kept_names(folder, step)
        others = {name: it for name, it in self._others().items() if name in kept}
        checkpoint.load(folder, step, self.model, self.optimizer, others=others)

    def _others(self) -> dict[str, Stateful]:
        return {"schedule": self.schedule, "best": self.best}
