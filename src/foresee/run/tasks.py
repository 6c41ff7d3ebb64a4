"""What a run learns: one task for each label, with its loss, its part of the model's outputs, and its figures.

In: the `tasks` of a run file and the labels of a log. Out: `Tasks`, from which everybody takes what differs between a
click, a number and a class: how many outputs the model needs, the loss of a step, how outputs become predictions, which
figures an evaluation has. A loss is one line of `LOSSES`. Without a word in the run file every label of the log is a
task with weight 1; a log with one label of 0 and 1 is the ordinary case.

The loss of a run is the sum over tasks of weight · mean over samples (sample weight · loss of the sample). The mean is
over the number of samples, as in `torch.nn.functional`, and not over the sum of their weights: so parts of a batch add
up to the whole, however workers share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from foresee.arrays import Float32
from foresee.data.click_log import ClickLog
from foresee.data.schema import LabelKind, LogLabel
from foresee.errors import ConfigError
from foresee.run.config import TaskConfig
from foresee.run.metrics import Figures, MetricsAccumulator, sigmoid
from foresee.run.task_metrics import Accumulator, ClassAccumulator, NumberAccumulator, log_softmax


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A way to learn a label."""

    kinds: tuple[LabelKind, ...]
    """Labels that it can learn."""
    function: Callable[[Tensor, Tensor, float, str], Tensor]
    """Of outputs, labels, `delta` and torch's word for what is made of the samples' losses."""
    predict: Callable[[Float32], Any]
    """Of outputs: probabilities, numbers."""
    accumulator: Callable[[int], Accumulator]
    """Of figures, for so many outputs."""
    figures: tuple[str, ...]
    """Those that evaluations can be compared by; the first is shown in progress."""


def _numbers(outputs: Float32) -> Float32:
    return outputs


LOSSES: dict[str, Loss] = {
    "binary": Loss(
        kinds=("binary",),
        function=lambda out, labels, _, how: functional.binary_cross_entropy_with_logits(out, labels, reduction=how),
        predict=lambda out: sigmoid(out).astype(np.float32),
        accumulator=lambda _: MetricsAccumulator(),
        figures=("auc", "log_loss", "normalised_entropy"),
    ),
    "mse": Loss(
        kinds=("number", "binary"),
        function=lambda out, labels, _, how: functional.mse_loss(out, labels, reduction=how),
        predict=_numbers,
        accumulator=lambda _: NumberAccumulator(),
        figures=("rmse", "mae", "r2"),
    ),
    "huber": Loss(
        kinds=("number", "binary"),
        function=lambda out, labels, delta, how: functional.huber_loss(out, labels, reduction=how, delta=delta),
        predict=_numbers,
        accumulator=lambda _: NumberAccumulator(),
        figures=("rmse", "mae", "r2"),
    ),
    "softmax": Loss(
        kinds=("class",),
        function=lambda out, labels, _, how: functional.cross_entropy(out, labels.long(), reduction=how),
        predict=lambda out: np.exp(log_softmax(out)).astype(np.float32),
        accumulator=ClassAccumulator,
        figures=("accuracy", "log_loss", "normalised_entropy"),
    ),
}
USUAL: dict[LabelKind, str] = {"binary": "binary", "number": "mse", "class": "softmax"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One label, and how it is learned."""

    name: str
    label: int = 0
    """Which of the log's labels."""
    loss: str = "binary"
    weight: float = 1.0
    delta: float = 1.0
    classes: tuple[str, ...] = ()
    first_output: int = 0
    optional: bool = False
    """Labels may be NaN: not known, and then nothing is learned from them."""

    @property
    def kind(self) -> Loss:
        return LOSSES[self.loss]

    @property
    def num_outputs(self) -> int:
        return max(1, len(self.classes))

    def outputs(self, given: Any) -> Any:
        """This task's part of what the model gives: [samples], or [samples, classes]."""
        if given.ndim == 1:
            return given
        if self.classes:
            return given[:, self.first_output : self.first_output + self.num_outputs]
        return given[:, self.first_output]

    def labels(self, given: Any) -> Any:
        """This task's labels, [samples]."""
        return given if given.ndim == 1 else given[:, self.label]

    def mean(self, outputs: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The loss of samples, without the weight of the task; where a label is not known, 0."""
        if self.optional:
            known = ~labels.isnan()
            weights = known.float() if weights is None else weights * known
            labels = labels.where(known, 0.0)
        if weights is None:  # torch's own mean: its gradient is rounded elsewhere than that of a mean of losses
            return self.kind.function(outputs, labels, self.delta, "mean")
        return (self.kind.function(outputs, labels, self.delta, "none") * weights).mean()

    def known(self, outputs: Float32, labels: Float32) -> tuple[Any, Any]:
        """Of all tasks' outputs and labels its own, of the samples whose label is known."""
        own, wanted = self.outputs(outputs), self.labels(labels)
        if not self.optional:
            return own, wanted
        known = ~np.isnan(wanted)
        return own[known], wanted[known]

    def predictions(self, outputs: Float32) -> Any:
        """Probabilities of a click, numbers, or probabilities of the classes."""
        return self.kind.predict(outputs)


@dataclass(frozen=True, slots=True)
class Tasks:
    """All that a run learns."""

    tasks: tuple[Task, ...]

    @property
    def num_outputs(self) -> int:
        """Of the model, for each sample."""
        return sum(task.num_outputs for task in self.tasks)

    @property
    def figures(self) -> list[str]:
        """The names of all that evaluations can be compared by."""
        return [self.named(task, figure) for task in self.tasks for figure in task.kind.figures]

    def named(self, task: Task, figure: str) -> str:
        """A figure's name in this run."""
        return figure if len(self.tasks) == 1 else f"{task.name}.{figure}"

    def loss(self, outputs: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        """The mean over samples, all tasks added up; refuses outputs of another shape."""
        self._check(outputs, labels)
        outputs = outputs.float()
        total: Tensor | None = None
        for task in self.tasks:
            mean = task.weight * task.mean(task.outputs(outputs), task.labels(labels), weights)
            total = mean if total is None else total + mean
        assert total is not None
        return total

    @property
    def shown(self) -> list[str]:
        """The names of the figures that progress shows: one of each task."""
        return [self.named(task, task.kind.figures[0]) for task in self.tasks]

    def measured(self, outputs: Float32, labels: Float32) -> dict[str, float | None]:
        """The figure of each task that progress shows."""
        found = TaskAccumulator(self)
        found.add(outputs, labels)
        values = (found.result()[task.name].figure(task.kind.figures[0]) for task in self.tasks)
        return dict(zip(self.shown, values, strict=True))

    def _check(self, outputs: Tensor, labels: Tensor) -> None:
        wanted = (len(labels),) if self.num_outputs == 1 else (len(labels), self.num_outputs)
        if tuple(outputs.shape) != wanted:
            each = "one logit" if self.num_outputs == 1 else f"{self.num_outputs} numbers"
            shape = "[samples]" if self.num_outputs == 1 else f"[samples, {self.num_outputs}]"
            raise ConfigError(
                f"model.name: the model gives logits of shape {tuple(outputs.shape)} for {len(labels)} samples; "
                f"it must give {each} for each sample, {shape}"
            )


CLICKS = Tasks((Task(name="label"),))
"""A logit and a label of 0 or 1 for each sample."""


class TaskAccumulator:
    """The figures of all tasks, batch by batch."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks.tasks
        self._found = {task.name: task.kind.accumulator(task.num_outputs) for task in self._tasks}

    def add(self, outputs: Float32, labels: Float32) -> None:
        """Counts a batch in."""
        for task in self._tasks:
            self._found[task.name].add(*task.known(outputs, labels))

    def result(self) -> dict[str, Figures]:
        """By task."""
        return {name: found.result() for name, found in self._found.items()}


def tasks_of(config: Sequence[TaskConfig], log: ClickLog) -> Tasks:
    """The tasks of a run on a log; refuses what cannot be learned from its labels."""
    return make_tasks(config, log.labels, str(log.folder.place))


def make_tasks(config: Sequence[TaskConfig], labels: Sequence[LogLabel], where: str) -> Tasks:
    """The same, of labels."""
    places = {label.name: place for place, label in enumerate(labels)}
    given = config or [TaskConfig(label=label.name) for label in labels]
    tasks: list[Task] = []
    for place, entry in enumerate(given):
        label = _label(entry, labels, f"tasks.{place}", where)
        loss = entry.loss or USUAL[label.kind]
        if label.kind not in LOSSES[loss].kinds:
            fits = [name for name, it in LOSSES.items() if label.kind in it.kinds]
            raise ConfigError(
                f"tasks.{place}.loss: {loss} cannot learn the label {label.name!r} of {where}, a label of kind "
                f"{label.kind}; use {' or '.join(fits)}, or prepare the log with another kind of label"
            )
        first = sum(task.num_outputs for task in tasks)
        task = Task(
            name=entry.name or label.name, label=places[label.name], loss=loss, weight=entry.weight, delta=entry.delta,
            classes=label.classes, first_output=first, optional=label.optional,
        )  # fmt: skip
        if task.name in [it.name for it in tasks]:
            raise ConfigError(f"tasks.{place}.name: {task.name!r} is there already; give each task a name of its own")
        tasks.append(task)
    return Tasks(tuple(tasks))


def _label(entry: TaskConfig, labels: Sequence[LogLabel], key: str, where: str) -> LogLabel:
    wanted = entry.label or entry.name
    if wanted is None and len(labels) == 1:
        return labels[0]
    found = next((label for label in labels if label.name == wanted), None)
    if found is None and entry.label is None and len(labels) == 1:
        return labels[0]  # a name for the only one
    if found is None:
        names = ", ".join(label.name for label in labels)
        raise ConfigError(f"{key}.label: {where} has no label {wanted!r}; choose from {names}, or prepare it again")
    return found
