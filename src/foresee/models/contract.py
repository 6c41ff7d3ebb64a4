"""What a model is: (dense [samples, dense features], embeddings [samples, features, row width]) -> logits [samples].

With the option `num_outputs` above 1 the result is [samples, num_outputs]: some numbers for each of several tasks.

In: the shape of a log (a ClickLog, or `LogShape` where there is none) and the embedding width `dim`. Where tables have
several widths, `dim` is that of each feature and embeddings are a list with a tensor for each. Out: the protocol
that every model here follows and the two checks they share. A row may have more columns than `dim`, for first-order
weights or a second embedding: `row_width(dim)` says how many, so whoever makes the tables can ask before the model
exists. A model must never know where rows come from, and must never use one sample's input for another's logit.

Weights are drawn from torch's global generator when a model is constructed: `torch.manual_seed(seed)` just before
gives the same weights every time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

Vectors = Tensor | Sequence[Tensor]
"""[samples, features, row width]; where tables have several widths, for each feature [samples, its row width]."""
Embeddings = Vectors | Callable[[], Vectors]
"""Embeddings, or a function that waits for them and gives them: rows of a step may come while a model has begun."""
Dims = int | Sequence[int]
"""Embedding width: one number, or that of each feature where tables have several."""


class Shape(Protocol):
    """The part of a log that a model needs to know."""

    @property
    def num_dense(self) -> int: ...

    @property
    def num_features(self) -> int:
        """Categorical features; each gives one pooled row per sample."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogShape:
    """A Shape without a log."""

    num_dense: int
    num_features: int


class Model(Protocol):
    """A model as the engine sees it. Any nn.Module with this call will do; `row_width` is optional and means `dim`."""

    def __call__(self, dense: Tensor, embeddings: Tensor) -> Tensor: ...


def accepts_deferred_embeddings(model: nn.Module) -> bool:
    """Whether it takes a function for its embeddings and calls it once it needs them; a model says so itself."""
    if not hasattr(model, "accepts_deferred_embeddings") and hasattr(model, "begins_without_rows"):
        warnings.warn(
            f"{type(model).__name__}.begins_without_rows is now called accepts_deferred_embeddings; rename it, the old "
            "name goes with the next release",
            DeprecationWarning,
            stacklevel=2,
        )
        return bool(model.begins_without_rows)
    return bool(getattr(model, "accepts_deferred_embeddings", False))


def checked_shape(shape: Shape, dim: Dims) -> LogShape:
    """The shape alone, so that a model does not hold on to a log; sizes no model can be made of are refused."""
    if shape.num_features < 1:
        raise ValueError(f"num_features is {shape.num_features}: a model needs at least one categorical feature")
    if shape.num_dense < 0:
        raise ValueError(f"num_dense is {shape.num_dense}: give zero or more dense features")
    several = list(dim) if isinstance(dim, Sequence) else [dim]
    for width in several:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"dim is {dim!r}: give the embedding width as a whole number of at least 1")
    if isinstance(dim, Sequence) and len(several) != shape.num_features:
        raise ValueError(f"dim has {len(several)} widths: give one for each of the {shape.num_features} features")
    return LogShape(num_dense=shape.num_dense, num_features=shape.num_features)


def checked_outputs(num_outputs: object) -> int:
    """The number itself, or a sentence. It may come from a file."""
    if isinstance(num_outputs, bool) or not isinstance(num_outputs, int) or num_outputs < 1:
        raise ValueError(f"num_outputs is {num_outputs!r}: give a whole number of at least 1")
    return num_outputs


def feature_dims(shape: Shape, dim: Dims) -> tuple[int, ...]:
    """The embedding width of each feature."""
    return (dim,) * shape.num_features if isinstance(dim, int) else tuple(dim)


def check_input(dense: Tensor, embeddings: Vectors, shape: Shape, dim: Dims, row_width: Callable[[int], int]) -> None:
    """Refuse tensors of another shape than the model was made for; matrix products would fail less clearly or not."""
    if isinstance(dim, int) and isinstance(embeddings, Tensor):
        _check_tensor(dense, embeddings, shape, row_width(dim))
        return
    check_dense(dense, shape, len(dense))
    found = [tuple(it.shape) for it in ([embeddings] if isinstance(embeddings, Tensor) else embeddings)]
    wanted = [(len(dense), row_width(width)) for width in feature_dims(shape, dim)]
    if found != wanted:
        raise ValueError(
            f"embeddings have shapes {found}, this model takes {wanted}: make each table row_width of its dim wide"
        )


def _check_tensor(dense: Tensor, embeddings: Tensor, shape: Shape, row_width: int) -> None:
    check_dense(dense, shape, embeddings.shape[0])
    if tuple(embeddings.shape[1:]) != (shape.num_features, row_width):
        raise ValueError(
            f"embeddings have shape {tuple(embeddings.shape)}, "
            f"this model takes {(len(embeddings), shape.num_features, row_width)}: make the tables row_width(dim) wide"
        )


def check_dense(dense: Tensor, shape: Shape, num_samples: int) -> None:
    """The half that can be checked before there are embeddings."""
    if tuple(dense.shape) != (num_samples, shape.num_dense):
        raise ValueError(f"dense has shape {tuple(dense.shape)}, this model takes {(num_samples, shape.num_dense)}")
