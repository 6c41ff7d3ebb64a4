"""What a run file says of what is learned and how it is judged: tasks, figures within groups, more metrics, the best.

In: nested keys and values. Out: frozen sections of a `RunConfig`; all sections of run files are a `Section`.
As in `config`, nothing is opened or imported here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class Section(BaseModel):
    """Unknown keys are refused, nothing is converted behind a person's back, and nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class TaskConfig(Section):
    """One thing to learn: a label of the log, with its loss."""

    name: str | None = Field(default=None, min_length=1)
    """How it is called in figures and scores. Left out: as its label."""
    label: str | None = Field(default=None, min_length=1)
    """A label of the log. Left out: the one that is called `name`, or the only one."""
    loss: Literal["binary", "mse", "huber", "softmax"] | None = None
    """binary: of a click, its log loss. mse, huber: of a number. softmax: of classes. Left out: as suits the label."""
    weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """What its loss is multiplied with before all are added up."""
    delta: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Of huber: errors beyond it count linearly."""


class RankingConfig(Section):
    """Figures within groups of samples, such as those shown to one user."""

    group: str | None = None
    """A feature whose value makes a group, such as `user`: evaluations then have GAUC, NDCG@k and recall@k."""
    at: list[int] = Field(default=[10], min_length=1)
    """The k of NDCG@k and recall@k; several if you like."""

    @field_validator("at")
    @classmethod
    def ranks(cls, value: list[int]) -> list[int]:
        if any(rank < 1 for rank in value):
            raise ValueError(f"found {value}; give whole numbers from 1 up")
        return sorted(set(value))

    @property
    def figures(self) -> list[str]:
        """The names of the figures within groups, if there are groups."""
        ranked = ["gauc", *(f"{name}@{k}" for name in ("ndcg", "recall") for k in self.at)]
        return ranked if self.group is not None else []


class MetricConfig(Section):
    """A metric of torchmetrics, or of one's own, beside the figures that evaluations have anyway."""

    name: str
    """As package.module:Class, such as torchmetrics.classification:BinaryF1Score."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Passed to the class."""
    task: str | None = None
    """The task that it judges. Left out: the only one."""
    figure: str | None = Field(default=None, min_length=1)
    """How it is called in metrics and in best.metric. Left out: the class's name, as in binary_f1_score."""

    @model_validator(mode="before")
    @classmethod
    def name_alone(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


SMALLER_IS_BETTER = ("log_loss", "normalised_entropy", "rmse", "mae")


class BestConfig(Section):
    """The best evaluation: its rows and weights are kept beside the last ones, and training may stop after it."""

    metric: str | None = None
    """A figure of the valid split: auc, log_loss, gauc, rmse, …; of several tasks, task.figure. Left out: no best."""
    mode: Literal["max", "min"] | None = None
    """Whether more or less is better. Left out: as the metric has it."""
    patience: int | None = Field(default=None, ge=1)
    """Stop after so many evaluations in a row that are not better. Left out: train all epochs."""
    min_delta: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """By how much an evaluation has to be better to count."""

    @property
    def larger_is_better(self) -> bool:
        return (
            self.mode == "max"
            if self.mode is not None
            else str(self.metric).rpartition(".")[2] not in SMALLER_IS_BETTER
        )
