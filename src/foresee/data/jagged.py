"""Ids as people have them, made into bags of rows for a plan; embeddings by feature name, as TorchRec gives them.

In, for one batch, one of
    a KeyedJaggedTensor       keys(), values(), lengths() or offsets(): feature by feature, sample by sample
    a dict of features        ids [samples], ids [samples, ids a bag], or (ids, offsets) as nn.EmbeddingBag takes them,
                              with a third array for weights, or a JaggedTensor
    a tensor or array         [samples, features], one id each, in the order of the features
Out: global rows, sample by sample, feature by feature, and where each bag starts. Ids outside their table are refused
by feature and sample. The way back, like a `KeyedTensor`: [samples, width] of the embeddings for each feature, or a
`JaggedEmbeddings` with a vector for each id, so that gradients reach them. Knows TorchRec's names, never imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from foresee.arrays import Float32, Int32, Int64
from foresee.data.batch import Batch, Pooling
from foresee.errors import DataError

SUM, MEAN, MAX, NONE = "sum", "mean", "max", "none"


class Lookup(Protocol):
    """The part of a feature that finds its rows."""

    @property
    def key(self) -> str: ...

    @property
    def first_row(self) -> int: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def padding_idx(self) -> int | None:
        """An id that stands for none."""
        ...


class BagSpecs(Protocol):
    """What batches need to know of `foresee.EmbeddingBags`: features, table sizes, and how vectors are pooled."""

    @property
    def features(self) -> tuple[Lookup, ...]: ...

    @property
    def num_rows(self) -> int: ...

    @property
    def pooling(self) -> Pooling: ...

    @property
    def tables(self) -> Any: ...

    @property
    def is_weighted(self) -> bool: ...

    def check_tables(self, tables: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Bags:
    """The lookups of one batch."""

    step: int
    rows: Int64  # [lookups]
    bag_offsets: Int32 | None  # [samples * features + 1]
    num_samples: int
    num_features: int
    weights: Float32 | None = None  # [lookups]

    def batch(self, dense: Any, labels: Any) -> Batch:
        """With its dense features and labels; none of them is a batch without columns, and labels of 0."""
        columns = np.zeros((self.num_samples, 0), np.float32) if dense is None else _floats(dense)
        targets = np.zeros(self.num_samples, np.float32) if labels is None else _floats(labels)
        for name, values in (("dense features", columns), ("labels", targets)):
            if len(values) != self.num_samples:
                raise DataError(
                    f"step {self.step}: the ids are of {self.num_samples} samples, the {name} of {len(values)}; "
                    "give the same samples in both"
                )
        return Batch(self.step, columns, targets, self.rows, self.bag_offsets, self.num_features)


def bags_of(ids: Any, features: Sequence[Lookup], *, step: int, weighted: bool = False) -> Bags:
    """The bags of one batch; `weighted`: every id comes with a weight."""
    if is_keyed_jagged(ids):
        columns = _of_keyed_jagged(ids, features, step)
    elif isinstance(ids, Mapping):
        columns = [_of_cell(_entry(ids, feature.key, step), feature.key, step) for feature in features]
    else:
        columns = _of_matrix(_ints(ids, step), features, step)
    columns = [column.without(feature.padding_idx) for column, feature in zip(columns, features, strict=True)]
    num_samples = len(columns[0].lengths)
    for feature, column in zip(features, columns, strict=True):
        _check(feature, column, num_samples, step)
        _check_weights(feature, column, weighted, step)
    return _assembled(columns, features, num_samples, step)


def is_keyed_jagged(ids: Any) -> bool:
    """Has it the methods of a KeyedJaggedTensor?"""
    return all(callable(getattr(ids, name, None)) for name in ("keys", "values", "lengths"))


@dataclass(frozen=True, slots=True)
class _Column:
    """One feature: its ids, sample after sample, and how many each sample has."""

    ids: Int64
    lengths: Int64
    weights: Float32 | None = None

    def without(self, padding_idx: int | None) -> _Column:
        """The same without an id that stands for none."""
        kept = self.ids != padding_idx
        if padding_idx is None or kept.all():
            return self
        ends = np.concatenate([[0], np.cumsum(kept)])[np.cumsum(self.lengths)]
        weights = None if self.weights is None else self.weights[kept]
        return _Column(self.ids[kept], np.diff(ends, prepend=0), weights)


def _of_keyed_jagged(ids: Any, features: Sequence[Lookup], step: int) -> list[_Column]:
    given = getattr(ids, "weights_or_none", None)
    weights = _floats(given()) if callable(given) and given() is not None else None
    variable = getattr(ids, "variable_stride_per_key", None)
    if callable(variable) and variable():
        raise DataError(
            f"step {step}: this KeyedJaggedTensor has another number of samples for each key (variable stride); give "
            "every key the same samples"
        )
    keys, values, lengths = list(ids.keys()), _ints(ids.values(), step), _ints(ids.lengths(), step)
    if not keys or len(lengths) % len(keys):
        raise DataError(
            f"step {step}: a KeyedJaggedTensor of {len(keys)} keys has {len(lengths)} lengths; "
            "give every key as many samples"
        )
    by_key = lengths.reshape(len(keys), -1)  # [keys, samples]
    ends = np.cumsum(by_key.sum(axis=1))
    if int(ends[-1]) != len(values):
        raise DataError(f"step {step}: lengths sum to {ends[-1]}, but there are {len(values)} values; give both whole")
    columns = {}
    for key, own, end in zip(keys, by_key, ends, strict=True):
        part = slice(int(end - own.sum()), int(end))
        columns[key] = _Column(values[part], own, None if weights is None else weights[part])
    return [_entry(columns, feature.key, step) for feature in features]


def _of_cell(cell: Any, key: str, step: int) -> _Column:
    if isinstance(cell, tuple | list) and len(cell) in (2, 3) and hasattr(cell[0], "shape"):
        ids, offsets = _ints(cell[0], step), _ints(cell[1], step)
        if len(offsets) and (offsets[0] != 0 or (np.diff(offsets) < 0).any() or offsets[-1] > len(ids)):
            raise DataError(f"step {step}: offsets of {key!r} do not ascend from 0 to {len(ids)}; give bag starts")
        return _Column(ids, np.diff(offsets, append=len(ids)), _floats(cell[2]) if len(cell) == 3 else None)
    if all(callable(getattr(cell, name, None)) for name in ("values", "lengths")):  # a JaggedTensor
        given = getattr(cell, "weights_or_none", lambda: None)()
        return _Column(
            _ints(cell.values(), step), _ints(cell.lengths(), step), None if given is None else _floats(given)
        )
    ids = _ints(cell, step)
    if ids.ndim == 1:
        return _Column(ids, np.ones(len(ids), np.int64))
    if ids.ndim != 2:
        raise DataError(f"step {step}: ids of {key!r} have shape {ids.shape}; give [samples] or [samples, ids a bag]")
    return _Column(ids.reshape(-1), np.full(len(ids), ids.shape[1], np.int64))


def _of_matrix(ids: Int64, features: Sequence[Lookup], step: int) -> list[_Column]:
    if ids.ndim != 2 or ids.shape[1] != len(features):
        raise DataError(
            f"step {step}: ids have shape {ids.shape}; give [samples, {len(features)}], one id for each feature, or a "
            "KeyedJaggedTensor or dict of features"
        )
    ones = np.ones(len(ids), np.int64)
    return [_Column(column, ones) for column in ids.T]


def _check(feature: Lookup, column: _Column, num_samples: int, step: int) -> None:
    if len(column.lengths) != num_samples:
        raise DataError(
            f"step {step}: feature {feature.key!r} has {len(column.lengths)} samples, others {num_samples}; "
            "give every feature the same samples"
        )
    wrong = (column.ids < 0) | (column.ids >= feature.num_rows)
    if wrong.any():
        position = int(np.argmax(wrong))
        sample = int(np.searchsorted(np.cumsum(column.lengths), position, side="right"))
        raise DataError(
            f"step {step}, sample {sample}: {feature.key!r} has id {column.ids[position]}, its table rows 0 to "
            f"{feature.num_rows - 1}; give num_embeddings the largest id and one, or map ids before"
        )


def _check_weights(feature: Lookup, column: _Column, weighted: bool, step: int) -> None:
    if weighted != (column.weights is not None):
        raise DataError(
            f"step {step}: ids of {feature.key!r} come "
            + ("without weights; give (ids, offsets, weights) or a KeyedJaggedTensor that has them" if weighted else
               "with weights; say EmbeddingBags(configs, is_weighted=True), or give none")
        )  # fmt: skip
    if column.weights is not None and len(column.weights) != len(column.ids):
        raise DataError(
            f"step {step}: feature {feature.key!r} has {len(column.ids)} ids and {len(column.weights)} weights; "
            "give one for each"
        )


def _places(begins: Int64, sizes: Int64) -> Int64:
    """begins[0], begins[0] + 1, ... of each run in turn."""
    ends = np.cumsum(sizes)
    places: Int64 = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - sizes), sizes)
    return places


def _assembled(columns: Sequence[_Column], features: Sequence[Lookup], num_samples: int, step: int) -> Bags:
    """Columns become samples: bag after bag in the order of samples, and within a sample in that of features."""
    num_features = len(features)
    lengths = np.stack([column.lengths for column in columns], axis=1)  # [samples, features]
    shifted = [column.ids + feature.first_row for column, feature in zip(columns, features, strict=True)]
    weights = None
    if columns[0].weights is not None:
        weights = np.concatenate([column.weights for column in columns if column.weights is not None])
    if (lengths == 1).all():
        if weights is not None:
            weights = weights.reshape(num_features, num_samples).T.reshape(-1).copy()
        return Bags(step, np.stack(shifted, axis=1).reshape(-1), None, num_samples, num_features, weights)
    by_column = np.concatenate(shifted)
    starts = np.cumsum(lengths.T.reshape(-1)) - lengths.T.reshape(-1)  # where each bag starts in `by_column`
    starts, sizes = starts.reshape(num_features, num_samples).T.reshape(-1), lengths.reshape(-1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = _places(starts, sizes)
    weights = None if weights is None else weights[places]
    return Bags(step, by_column[places], offsets.astype(np.int32), num_samples, num_features, weights)


def _entry(columns: Mapping[str, Any], key: str, step: int) -> Any:
    if key not in columns:
        raise DataError(f"step {step}: this batch has no feature {key!r}; it has {', '.join(map(str, columns))}")
    return columns[key]


def _ints(values: Any, step: int) -> Int64:
    array = np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    if array.dtype.kind not in "iu":
        raise DataError(f"step {step}: ids are {array.dtype}; give whole numbers")
    return array.astype(np.int64, copy=False)


def _floats(values: Any) -> Float32:
    array = np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    return np.ascontiguousarray(array, np.float32)
