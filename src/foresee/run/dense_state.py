"""Everything of a run that is not a row, and its best: model, optimiser, schedule, and which evaluation was the best.

In: a configuration and a model. Out: one object that callbacks checkpoint and a resumed run restores, the same for one
process and for a worker of several. `Best` decides from the metrics of each evaluation, in step order, which was the
best and when to stop looking for a better one; it is part of every checkpoint, so a resumed run decides as one that
never stopped. An evaluation without a figure (None) is no better than any.

`BestFolder` keeps rows and weights of the best in `RUN/best/tables` and `RUN/best/checkpoints`, committed in two phases
like the run's own. Only rows that changed since the best before are copied, in pieces. The run commits right after, and
its checkpoint names the step of the best: a run killed in between finds the best that it knows of, here or before.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foresee.engine.cache import BatchesInFlight
from foresee.errors import StoreError
from foresee.run import checkpoint
from foresee.run.by_name import Schedule, dense_optimizer
from foresee.run.config import AnyRun, BestConfig
from foresee.run.folder import RunFolder
from foresee.run.metrics import Figures
from foresee.run.state_tree import Stateful
from foresee.store.contract import Store, scan
from foresee.store.disk import DiskStore
from foresee.store.disk.reader import DiskReader
from foresee.store.layout import Layout
from foresee.store.row_groups import groups_of, open_groups


class Best:
    """The best evaluation of a run. Without a metric nothing is ever better."""

    def __init__(self, config: BestConfig) -> None:
        self._config = config
        self.step = 0
        """Steps that were done at the best evaluation; 0 before there was one."""
        self.value = math.nan
        self.num_since = 0
        """Evaluations after it."""

    @property
    def exhausted(self) -> bool:
        """There were as many evaluations without a better one as patience allows."""
        patience = self._config.patience
        return patience is not None and self.num_since >= patience

    def look(self, step: int, metrics: Figures) -> bool:
        """Takes an evaluation in; True if it is the best so far."""
        if self._config.metric is None:
            return False
        value = metrics.figure(self._config.metric)
        if value is not None and (not self.step or self._gain(value) > self._config.min_delta):
            self.step, self.value, self.num_since = step, value, 0
            return True
        self.num_since += 1
        return False

    def _gain(self, value: float) -> float:
        return value - self.value if self._config.larger_is_better else self.value - value

    def words(self) -> str:
        """The best so far, for a person."""
        return f"{self._config.metric} {self.value:.4f} after step {self.step:,}"

    def numbers(self) -> list[float]:
        """For other workers, which do not evaluate."""
        return [float(self.step), self.value, float(self.num_since)]

    def take(self, numbers: list[float]) -> None:
        """What another worker's `numbers` say."""
        self.step, self.value, self.num_since = int(numbers[0]), numbers[1], int(numbers[2])

    def state_dict(self) -> dict[str, Any]:
        """What was compared, and how far that has come."""
        config = self._config
        return {
            "metric": config.metric, "larger_is_better": config.larger_is_better, "step": self.step,
            "value": self.value, "num_since": self.num_since,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there; with another metric than before, looks for the best anew."""
        same = (state_dict["metric"], state_dict["larger_is_better"])
        if same == (self._config.metric, self._config.larger_is_better):
            self.take([state_dict["step"], float(state_dict["value"]), state_dict["num_since"]])


@dataclass(frozen=True, slots=True)
class DenseHalf:
    """What a checkpoint of a run holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    best: Best
    in_flight: BatchesInFlight | None = None
    """What steps to come have read, where they may miss updates."""

    @classmethod
    def of(cls, config: AnyRun, model: nn.Module, num_steps: int) -> DenseHalf:
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
        others: dict[str, Stateful] = {"schedule": self.schedule, "best": self.best}
        return others if self.in_flight is None else {**others, "in_flight": self.in_flight}


class BestFolder:
    """Keeps the best of a run."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def keep(self, step: int, store: Store, half: DenseHalf, *, before: int) -> None:
        """The state after `step` steps is the best; `before`: the step of the one before it, 0 if there was none."""
        with self._opened(store.layout, before) as best:
            for source, target in zip(groups_of(store), groups_of(best), strict=True):
                _copy_changed(source, target)
            best.prepare(step)
            half.save(self._folder.best_checkpoints, step)
            best.settle(step)
        checkpoint.prune(self._folder.best_checkpoints)

    @contextmanager
    def _opened(self, layout: Layout, step: int) -> Iterator[Any]:
        if not step:
            shutil.rmtree(self._folder.best, ignore_errors=True)
        best = open_groups(layout, self._folder.best_tables, DiskStore.open_or_create)
        try:
            if any(step not in part.openable for part in best.parts):
                raise StoreError(
                    f"{self._folder.best} does not have the best of this run, that of step {step}; restore it from a "
                    "copy, or go on without it: leave train.best.metric out"
                )
            best.open_at(step)
            checkpoint.forget_after(self._folder.best_checkpoints, step)
            yield best
        finally:
            best.close()


def keep_rows(store: Store, folder: Path, step: int) -> None:
    """Copy the rows of a store that ends with its process into tables on disk, as the commit of `step`.

    Args:
        store: Holds the rows after `step` steps.
        folder: Made anew; tables of an earlier run that are there are removed.
        step: Must have a checkpoint of the dense half, without which nobody can open the copy.

    Raises:
        StoreError: The folder cannot be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    kept = open_groups(store.layout, folder, DiskStore.open_or_create)
    try:
        for source, target in zip(groups_of(store), groups_of(kept), strict=True):
            _copy_changed(source, target)
        kept.prepare(step)
        kept.settle(step)
    finally:
        kept.close()


def open_best(folder: RunFolder, layout: Layout) -> Any:
    """The best rows for reading, at the newest step of which rows and weights are there."""
    if not folder.best_tables.is_dir():
        raise StoreError(
            f"{folder.path} keeps no best: none was evaluated yet, or train.best.metric was not given; "
            "leave --best out for the last commit"
        )
    best = open_groups(layout, folder.best_tables, DiskReader.open)
    try:
        checkpoint.open_newest(best, folder.best_checkpoints)
    except BaseException:
        best.close()
        raise
    return best


def _copy_changed(source: Store, target: DiskStore) -> None:
    """Rows that were updated after the step that the target is at: a version is 1 + the last step that did."""
    for ids, rows in scan(source, written_only=True):
        changed = rows.versions > target.committed_step
        if changed.any():
            target.write(ids[changed], rows.part(changed))
