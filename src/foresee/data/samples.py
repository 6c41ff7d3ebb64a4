"""A run of samples held column by column: what a log's row groups decode to and what a writer takes.

Local ids (int32, per feature), dense values, labels. Arrays in, arrays out; nothing here knows files or tables. A
multi-valued feature has `offsets`: sample i owns values[offsets[i]:offsets[i + 1]]; a single-valued one has None.

Columns of local ids in, rows of global ids out: sample by sample, feature by feature, id by id.

The transposition is the one loop over all lookups on the way from disk to a batch, so it is compiled and releases the
GIL. It applies the shuffle on the way: samples come out in the order of `order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from foresee.arrays import Float32, Int32, Int64
from foresee.data.batch import Batch


@dataclass(frozen=True, slots=True)
class Ids:
    """The local ids of one feature."""

    values: Int32  # [ids]
    offsets: Int64 | None = None  # [samples + 1]; None: one id per sample

    @property
    def num_samples(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    def slice(self, start: int, stop: int) -> Ids:
        if self.offsets is None:
            return Ids(self.values[start:stop])
        offsets = self.offsets[start : stop + 1]
        return Ids(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


@dataclass(frozen=True, slots=True)
class Samples:
    """Some samples, one array per column."""

    labels: Float32  # [samples]; [samples, labels] of a log with several
    dense: tuple[Float32, ...]  # one [samples] per dense feature
    ids: tuple[Ids, ...]  # one per categorical feature
    true_probability: Float32 | None = None  # [samples]; only synthetic logs know it
    weights: Float32 | None = None  # [samples]; None: all count the same

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Samples:
        return Samples(
            self.labels[start:stop],
            tuple(column[start:stop] for column in self.dense),
            tuple(ids.slice(start, stop) for ids in self.ids),
            None if self.true_probability is None else self.true_probability[start:stop],
            None if self.weights is None else self.weights[start:stop],
        )


def concatenate(pieces: Sequence[Samples]) -> Samples:
    """All samples of `pieces`, in order."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    probabilities = [piece.true_probability for piece in pieces if piece.true_probability is not None]
    weights = [piece.weights for piece in pieces if piece.weights is not None]
    return Samples(
        np.concatenate([piece.labels for piece in pieces]),
        tuple(np.concatenate([piece.dense[i] for piece in pieces]) for i in range(len(first.dense))),
        tuple(_concatenate_ids([piece.ids[i] for piece in pieces]) for i in range(len(first.ids))),
        np.concatenate(probabilities) if probabilities else None,
        np.concatenate(weights) if weights else None,
    )


def _concatenate_ids(pieces: list[Ids]) -> Ids:
    values = np.concatenate([piece.values for piece in pieces])
    if pieces[0].offsets is None:
        return Ids(values)
    lengths = np.concatenate([np.diff(piece.offsets) for piece in pieces if piece.offsets is not None])
    return Ids(values, offsets_of(lengths))


def offsets_of(lengths: Int64) -> Int64:
    """Where each bag starts, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def select(samples: Samples, mask: NDArray[np.bool_]) -> Samples:
    """The samples where `mask` is true."""
    if mask.all():
        return samples
    return Samples(
        samples.labels[mask],
        tuple(column[mask] for column in samples.dense),
        tuple(_select_ids(ids, mask) for ids in samples.ids),
        None if samples.true_probability is None else samples.true_probability[mask],
        None if samples.weights is None else samples.weights[mask],
    )


def _select_ids(ids: Ids, mask: NDArray[np.bool_]) -> Ids:
    if ids.offsets is None:
        return Ids(ids.values[mask])
    lengths = np.diff(ids.offsets)
    return Ids(ids.values[np.repeat(mask, lengths)], offsets_of(lengths[mask]))


def fill_empty(ids: Ids, value: int) -> Ids:
    """Every empty bag gets one `value`."""
    if ids.offsets is None:
        return ids
    lengths = np.diff(ids.offsets)
    empty = lengths == 0
    if not empty.any():
        return ids
    return Ids(np.insert(ids.values, ids.offsets[:-1][empty], value), offsets_of(np.where(empty, 1, lengths)))


@dataclass(frozen=True, slots=True)
class Assembled:
    """A shuffle group, ready to be cut into batches."""

    dense: Float32  # [samples, dense features]
    labels: Float32  # [samples], or [samples, labels]
    rows: Int64  # [lookups]
    bag_offsets: Int64 | None  # [samples * features + 1]
    num_features: int
    weights: Float32 | None  # [samples]


def assemble(samples: Samples, table_offsets: Sequence[int], order: Int64 | None) -> Assembled:
    """Global rows of `samples`, in `order`; `table_offsets` has the first row id of each feature's table."""
    if order is None:
        order = np.arange(samples.num_samples)
    num_features = len(samples.ids)
    labels, weights = samples.labels[order], None if samples.weights is None else samples.weights[order]
    dense = np.empty((len(order), len(samples.dense)), np.float32)
    for index, column in enumerate(samples.dense):
        dense[:, index] = column[order]
    if all(ids.offsets is None for ids in samples.ids):
        rows = np.empty((len(order), num_features), np.int64)
        for index, ids in enumerate(samples.ids):
            _fill_single(rows, index, ids.values, order, table_offsets[index])
        return Assembled(dense, labels, rows.reshape(-1), None, num_features, weights)
    bag_offsets = _bag_offsets(samples, order)
    flat = np.empty(int(bag_offsets[-1]), np.int64)
    for index, ids in enumerate(samples.ids):
        starts = np.arange(samples.num_samples + 1) if ids.offsets is None else ids.offsets
        _fill_bags(flat, bag_offsets, index, num_features, ids.values, starts, order, table_offsets[index])
    return Assembled(dense, labels, flat, bag_offsets, num_features, weights)


def cut(pieces: Sequence[tuple[Assembled, int, int]], step: int) -> Batch:
    """One batch out of samples start..stop-1 of each piece. Always a copy: a batch must not keep its group alive."""
    num_features = pieces[0][0].num_features
    dense = np.concatenate([group.dense[start:stop] for group, start, stop in pieces])
    labels = np.concatenate([group.labels[start:stop] for group, start, stop in pieces])
    rows, lengths = [], []
    for group, start, stop in pieces:
        first, last = start * num_features, stop * num_features
        if group.bag_offsets is None:
            rows.append(group.rows[first:last])
        else:
            bags = group.bag_offsets[first : last + 1]
            rows.append(group.rows[bags[0] : bags[-1]])
            lengths.append(np.diff(bags))
    weights = [group.weights[start:stop] for group, start, stop in pieces if group.weights is not None]
    return Batch(
        step, dense, labels, np.concatenate(rows), _batch_offsets(lengths), num_features,
        sample_weights=np.concatenate(weights) if weights else None,
    )  # fmt: skip


def _batch_offsets(lengths: list[Int64]) -> Int32 | None:
    if not lengths:
        return None
    offsets = np.zeros(sum(map(len, lengths)) + 1, np.int32)
    np.cumsum(np.concatenate(lengths), out=offsets[1:])
    return offsets


def _bag_offsets(samples: Samples, order: Int64) -> Int64:
    lengths = np.ones((len(order), len(samples.ids)), np.int64)
    for index, ids in enumerate(samples.ids):
        if ids.offsets is not None:
            lengths[:, index] = np.diff(ids.offsets)[order]
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths.reshape(-1), out=offsets[1:])
    return offsets


@njit(nogil=True, cache=True)
def _fill_single(rows: Int64, index: int, values: Int32, order: Int64, table_offset: int) -> None:
    for sample in range(len(order)):
        rows[sample, index] = values[order[sample]] + table_offset


@njit(nogil=True, cache=True)
def _fill_bags(
    flat: Int64,
    bag_offsets: Int64,
    index: int,
    num_features: int,
    values: Int32,
    starts: Int64,
    order: Int64,
    table_offset: int,
) -> None:
    for sample in range(len(order)):
        place = bag_offsets[sample * num_features + index]
        source = order[sample]
        for position in range(starts[source], starts[source + 1]):
            flat[place] = values[position] + table_offset
            place += 1
