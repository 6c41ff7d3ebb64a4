"""How good a model is on a split: rows straight from the store, batch by batch, in bounded memory.

In: a model, tables, a log and the name of a split. Out: the figures of its tasks. Reads only, and needs no plan: every
row of a batch is asked for once. While a run is under way, `Run.flush()` first brings the store up to date with the
cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresee.arrays import Float32, Int64
from foresee.data.batch import Batch
from foresee.data.click_log import ClickLog
from foresee.engine.kernels import ONE_THREAD, Threads
from foresee.engine.lookup import look_up
from foresee.engine.planned_step import Pooling
from foresee.errors import ConfigError, DataError
from foresee.run.config import RankingConfig
from foresee.run.given_metrics import GivenMetrics
from foresee.run.metrics import Figures, Metrics
from foresee.run.ranking_metrics import RankingAccumulator
from foresee.run.task_metrics import of_tasks
from foresee.run.tasks import Task, TaskAccumulator, Tasks, tasks_of
from foresee.store.contract import Store

EVALUATION_BATCH_SIZE = 4096


def evaluate(
    model: nn.Module,
    store: Store,
    log: ClickLog,
    *,
    split: str = "valid",
    batch_size: int = EVALUATION_BATCH_SIZE,
    samples_max: int | None = None,
    ranking: RankingConfig | None = None,
    device: torch.device | None = None,
    num_threads: int = 1,
    tasks: Tasks | None = None,
    given: GivenMetrics | None = None,
) -> Any:
    """Figures of the split, or of its first samples. Leaves the model's mode and torch's generator as they were.

    ranking: a feature that makes groups, for the figures within them, of the first task of clicks.
    tasks: what the model gives; without them, a number for each label of the log.
    given: more metrics.
    Returns `Metrics` for a log of clicks.
    """
    tasks = tasks or tasks_of([], log)
    device = device or torch.device("cpu")
    stream = log.batches(batch_size=batch_size, split=split, shuffle=False, drop_last=False)
    pooling = log.pooling
    accumulator, groups = TaskAccumulator(tasks), _Groups(log, ranking or RankingConfig(), tasks)
    given = given or GivenMetrics()
    given.reset()
    num_seen = 0
    with judging(model), Threads(num_threads) as threads:
        for batch in stream.batches():
            outputs = score(model, store, batch, pooling, device=device, threads=threads).float().cpu().numpy()
            accumulator.add(outputs, batch.labels)
            groups.add(batch, outputs)
            given.add(outputs, batch.labels)
            num_seen += batch.num_samples
            if samples_max is not None and num_seen >= samples_max:
                break
        return of_tasks(given.added_to(groups.added_to(accumulator.result())))


class _Groups:
    """Samples by the id of one of their features, if a configuration names one."""

    def __init__(self, log: ClickLog, config: RankingConfig, tasks: Tasks) -> None:
        self._name = config.group
        self._accumulator: RankingAccumulator | None = None
        if config.group is not None:
            self._position, self._task = group_position(log, config.group), ranked_task(tasks)
            self._accumulator = RankingAccumulator(config.group, config.at)

    def add(self, batch: Batch, outputs: Float32) -> None:
        if self._accumulator is not None:
            ids, labels = self._ids(batch), self._task.labels(batch.labels)
            known = ~np.isnan(labels)  # all of them, but of an optional label
            self._accumulator.add(ids[known], self._task.outputs(outputs)[known], labels[known])

    def added_to(self, figures: dict[str, Figures]) -> dict[str, Figures]:
        """The figures of all tasks, with those within groups."""
        if self._accumulator is None:
            return figures
        of_clicks = figures[self._task.name]
        assert isinstance(of_clicks, Metrics)
        return {**figures, self._task.name: replace(of_clicks, ranking=self._accumulator.result())}

    def _ids(self, batch: Batch) -> Int64:  # [samples]
        bags = np.arange(batch.num_samples) * batch.num_features + self._position
        if batch.bag_offsets is None:
            return batch.rows[bags]
        sizes = batch.bag_offsets[bags + 1] - batch.bag_offsets[bags]
        if (sizes != 1).any():
            raise DataError(
                f"train.ranking.group: sample {int(np.argmax(sizes != 1))} of an evaluation has {sizes.max()} ids of "
                f"{self._name!r}, and a group is one id; choose a feature with one"
            )
        return batch.rows[batch.bag_offsets[bags]]


def ranked_task(tasks: Tasks) -> Task:
    """The task whose samples are ranked: the first of clicks."""
    found = next((task for task in tasks.tasks if task.loss == "binary"), None)
    if found is None:
        raise ConfigError("train.ranking.group: clicks are ranked, and no task has the loss binary; leave the key out")
    return found


def group_position(log: ClickLog, name: str) -> int:
    """Which of a sample's features makes the groups."""
    names = [feature.name for feature in log.features]
    if name not in names:
        raise ConfigError(
            f"train.ranking.group: {log.folder.place} has no feature {name!r}; choose from {', '.join(names)}"
        )
    return names.index(name)


def score(
    model: nn.Module, store: Store, batch: Batch, pooling: Pooling, *, device: torch.device,
    threads: Threads = ONE_THREAD,
) -> Tensor:  # fmt: skip
    """What the model gives for a batch: logits [samples], or [samples, outputs]. Call it inside `judging`."""
    embeddings = look_up(store, batch, pooling, threads)
    dense = torch.from_numpy(batch.dense)
    logits: Tensor = model(dense.to(device), on_device(embeddings, device))
    return logits


def on_device(embeddings: Any, device: torch.device) -> Any:
    """Embeddings of one width, or of several: one tensor, or one for each feature."""
    return embeddings.to(device) if isinstance(embeddings, Tensor) else [it.to(device) for it in embeddings]


@contextmanager
def judging(model: nn.Module) -> Iterator[None]:
    """The model as it will serve: no dropout, no gradients; afterwards everything is as before."""
    was_training = model.training
    model.eval()
    try:
        # A model that draws random numbers even now must not change what training draws next.
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        model.train(was_training)
