"""Metrics that somebody gave, beside those of the tasks: objects of torchmetrics, or anything with their three methods.

In: `train.metrics` of a run file, or objects given to `train`. Out: more figures of evaluations. A metric belongs to
one task; `update` gets what the task predicts (probabilities of a click or of the classes, numbers) and its labels,
which are whole numbers for clicks and classes. Worker 0 evaluates for all, so a metric must not look for other workers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from foresee.arrays import Float32
from foresee.errors import ConfigError
from foresee.run.by_name import called, imported
from foresee.run.config import MetricConfig
from foresee.run.metrics import Figures
from foresee.run.task_metrics import WithMore
from foresee.run.tasks import Task, Tasks


@runtime_checkable
class Metric(Protocol):
    """What torchmetrics has, as far as it is needed."""

    def update(self, predictions: torch.Tensor, labels: torch.Tensor, /) -> Any:
        """Counts a batch in."""
        ...

    def compute(self) -> Any:
        """Of everything counted: a number, several, or a dict of such."""
        ...

    def reset(self) -> Any:
        """Begins anew."""
        ...


Given = Sequence[Metric] | Mapping[str, Sequence[Metric]]
"""Metrics of the only task, or of each by its name."""


@dataclass(frozen=True, slots=True)
class _One:
    figure: str
    task: Task
    metric: Metric


class GivenMetrics:
    """All that were given for a run."""

    def __init__(self, metrics: Sequence[_One] = ()) -> None:
        self._metrics = metrics

    def figures(self, tasks: Tasks) -> list[str]:
        """Their names in this run."""
        return [tasks.named(it.task, it.figure) for it in self._metrics]

    def reset(self) -> None:
        """An evaluation begins."""
        for it in self._metrics:
            it.metric.reset()

    def add(self, outputs: Float32, labels: Float32) -> None:
        """Counts a batch in."""
        for it in self._metrics:
            given, known = it.task.known(outputs, labels)
            predicted, wanted = torch.from_numpy(it.task.predictions(given).copy()), torch.from_numpy(known.copy())
            it.metric.update(predicted, wanted if "number" in it.task.kind.kinds else wanted.long())

    def added_to(self, figures: dict[str, Figures]) -> dict[str, Figures]:
        """The figures of all tasks, with these."""
        found = dict(figures)
        for name, own in figures.items():
            more = [_values(it) for it in self._metrics if it.task.name == name]
            if more:
                found[name] = WithMore(own, {key: value for part in more for key, value in part.items()})
        return found


def _values(it: _One) -> dict[str, Any]:
    value = it.metric.compute()
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    return {it.figure: _plain(value)}


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    return value if isinstance(value, list) else float(value)


def given_metrics(config: Sequence[MetricConfig], tasks: Tasks, given: Given = ()) -> GivenMetrics:
    """Those of a run file and those of a call."""
    found = [_configured(entry, tasks, f"train.metrics.{place}") for place, entry in enumerate(config)]
    by_task = given if isinstance(given, Mapping) else {None: given}
    for name, metrics in by_task.items():
        found += [_one(it, tasks, name, None, "metrics") for it in metrics]
    names = [(it.task.name, it.figure) for it in found]
    for task, figure in names:
        if names.count((task, figure)) > 1:
            raise ConfigError(f"train.metrics: {figure!r} is there twice; name one with `figure`")
    return GivenMetrics(found)


def _configured(entry: MetricConfig, tasks: Tasks, key: str) -> _One:
    kind = imported(entry.name, key)
    metric = called(kind, entry.options, f"{key}: {entry.name}")
    return _one(metric, tasks, entry.task, entry.figure, key)


def _one(metric: Any, tasks: Tasks, name: str | None, figure: str | None, key: str) -> _One:
    if not isinstance(metric, Metric):
        raise ConfigError(
            f"{key}: a {type(metric).__name__} is no metric; give something with update, compute and reset, such as "
            "torchmetrics has"
        )
    for it in metric.modules() if isinstance(metric, torch.nn.Module) else ():
        if "distributed_available_fn" in vars(it):
            vars(it)["distributed_available_fn"] = _alone
    names = [task.name for task in tasks.tasks]
    if name is None and len(names) > 1:
        raise ConfigError(f"{key}.task: say which task it judges; choose from {', '.join(names)}")
    if name is not None and name not in names:
        raise ConfigError(f"{key}.task: there is no task {name!r}; choose from {', '.join(names)}")
    task = tasks.tasks[0 if name is None else names.index(name)]
    return _One(figure or _snake(type(metric).__name__), task, metric)


def _alone() -> bool:
    """What a metric of torchmetrics is told that asks for other workers."""
    return False


def _snake(name: str) -> str:
    """BinaryF1Score → binary_f1_score."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
