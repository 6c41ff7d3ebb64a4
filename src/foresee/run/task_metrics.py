"""How good predictions of numbers and of classes are, and the figures of several tasks together.

In: what a model gives and labels, batch after batch. Out: `Figures`: root mean squared and mean absolute error of
numbers, accuracy and log loss of classes, each a frozen record; those of clicks are in `metrics.py`. With several tasks
a figure is called `task.figure`, such as `rating.rmse`. Sums are float64, memory does not grow with the samples. What
cannot be said is None, with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from foresee.arrays import Float32
from foresee.run.metrics import Figures


class Accumulator(Protocol):
    """Takes the samples of one task batch by batch."""

    def add(self, outputs: Float32, labels: Float32) -> None:
        """Counts a batch in: what the model gives for this task, [samples] or [samples, classes], and [samples]."""
        ...

    def result(self) -> Any:
        """The figures of everything added so far."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The figures of one task, or the reason why there are none."""

    words: ClassVar[Mapping[str, str]] = {}
    """What a line says of them, by name."""

    num_samples: int
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    def figure(self, name: str) -> float | None:
        """One of the figures, by its name."""
        return _number(self.as_dict(), name)

    def in_words(self) -> str:
        """The same on one line."""
        found = ((word, self.figure(name)) for name, word in self.words.items())
        said = [f"{word} {value:.4f}" for word, value in found if value is not None]
        return self.reason or "  ".join([*said, f"({self.num_samples:,} samples)"])


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberMetrics(Measured):
    """Of a regression."""

    words: ClassVar[Mapping[str, str]] = {"rmse": "RMSE", "mae": "MAE", "r2": "R²"}

    rmse: float | None
    mae: float | None
    r2: float | None
    """1 - squared error over that of always predicting the mean label: above 0 means something was learned."""
    mean_prediction: float | None
    mean_label: float | None


class NumberAccumulator:
    """Running sums."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)  # squared error, absolute error, prediction, label, squared label
        self._num_samples, self._num_not_finite = 0, 0

    def add(self, outputs: Float32, labels: Float32) -> None:
        """Counts a batch in."""
        self._num_samples += len(labels)
        self._num_not_finite += int(np.count_nonzero(~np.isfinite(outputs)))
        if not self._num_not_finite:
            given, wanted = outputs.astype(np.float64), labels.astype(np.float64)
            error = given - wanted
            self._sums += [(error**2).sum(), np.abs(error).sum(), given.sum(), wanted.sum(), (wanted**2).sum()]

    def result(self) -> NumberMetrics:
        """Of everything added so far."""
        reason = _reason(self._num_samples, self._num_not_finite)
        if reason is not None:
            nothing = dict.fromkeys(("rmse", "mae", "r2", "mean_prediction", "mean_label"))
            return NumberMetrics(num_samples=self._num_samples, reason=reason, **nothing)
        squared, absolute, prediction, label, squared_label = self._sums / self._num_samples
        variance = squared_label - label**2
        return NumberMetrics(
            num_samples=self._num_samples,
            rmse=math.sqrt(squared),
            mae=float(absolute),
            # Rounding leaves something of labels that are all the same.
            r2=float(1 - squared / variance) if variance > 1e-12 * max(1e-300, squared_label) else None,
            mean_prediction=float(prediction),
            mean_label=float(label),
            reason=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassMetrics(Measured):
    """Of a softmax over classes."""

    words: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy", "log_loss": "log loss", "normalised_entropy": "normalised entropy"
    }  # fmt: skip

    accuracy: float | None
    """Share of samples whose likeliest class was the right one."""
    log_loss: float | None
    normalised_entropy: float | None
    """Log loss over that of always predicting the shares of the classes."""


class ClassAccumulator:
    """Running sums."""

    def __init__(self, num_classes: int) -> None:
        self._of_class = np.zeros(num_classes, np.int64)
        self._loss, self._num_right, self._num_not_finite = 0.0, 0, 0

    def add(self, outputs: Float32, labels: Float32) -> None:
        """Counts a batch in."""
        classes = labels.astype(np.int64)
        self._of_class += np.bincount(classes, minlength=len(self._of_class))
        self._num_not_finite += int(np.count_nonzero(~np.isfinite(outputs)))
        if not self._num_not_finite:
            self._num_right += int(np.count_nonzero(outputs.argmax(axis=1) == classes))
            self._loss -= float(log_softmax(outputs)[np.arange(len(classes)), classes].sum())

    def result(self) -> ClassMetrics:
        """Of everything added so far."""
        num_samples = int(self._of_class.sum())
        reason = _reason(num_samples, self._num_not_finite)
        shares = self._of_class[self._of_class > 0] / max(1, num_samples)
        entropy = float(-(shares * np.log(shares)).sum())
        said = reason is None
        return ClassMetrics(
            num_samples=num_samples,
            accuracy=self._num_right / num_samples if said else None,
            log_loss=self._loss / num_samples if said else None,
            normalised_entropy=self._loss / num_samples / entropy if said and entropy > 0 else None,
            reason=reason,
        )


def log_softmax(logits: Float32) -> Any:  # [samples, classes], float64
    """Without overflow: only differences to the largest are raised to a power."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class WithMore:
    """The figures of a task, and those of metrics that somebody gave."""

    own: Figures
    more: Mapping[str, float | list[float] | None]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**self.own.as_dict(), **self.more}

    def figure(self, name: str) -> float | None:
        """One of the figures, by its name."""
        return _number(self.as_dict(), name)


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The figures of several tasks."""

    by_task: Mapping[str, Figures]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON: `task.figure`."""
        found = ((task, figures.as_dict()) for task, figures in self.by_task.items())
        return {f"{task}.{name}": value for task, content in found for name, value in content.items()}

    def figure(self, name: str) -> float | None:
        """One of the figures, as `task.figure`."""
        return _number(self.as_dict(), name)


def of_tasks(figures: Mapping[str, Figures]) -> Figures:
    """The figures of a run: of one task by their own names, of several by task."""
    return next(iter(figures.values())) if len(figures) == 1 else TaskFigures(figures)


def in_words(figures: Any, of_clicks: Callable[[Any], str]) -> str:
    """The figures of an evaluation on one line; `of_clicks` says those of a binary task."""
    if isinstance(figures, TaskFigures):
        return "  |  ".join(f"{task}: {in_words(it, of_clicks)}" for task, it in figures.by_task.items())
    if isinstance(figures, WithMore):
        more = [f"{name} {value:.4f}" for name, value in figures.more.items() if isinstance(value, float)]
        return "  ".join([in_words(figures.own, of_clicks), *more])
    return figures.in_words() if isinstance(figures, Measured) else of_clicks(figures)


def _number(content: dict[str, Any], name: str) -> float | None:
    value = content[name]
    return None if value is None else float(value)


def _reason(num_samples: int, num_not_finite: int) -> str | None:
    if not num_samples:
        return "there are no samples"
    if num_not_finite:
        return f"{num_not_finite} predictions are not finite: training diverged, try a lower learning rate"
    return None
