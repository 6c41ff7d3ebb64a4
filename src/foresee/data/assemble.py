"""Columns of local ids in, rows of global ids out: sample by sample, feature by feature, id by id.

The transposition is the one loop over all lookups on the way from disk to a batch, so it is compiled and releases the
GIL. It applies the shuffle on the way: samples come out in the order of `order`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from foresee.data.batch import Batch, Float32, Int32, Int64
from foresee.data.samples import Samples


@dataclass(frozen=True, slots=True)
class Assembled:
    """A shuffle group, ready to be cut into batches."""

    dense: Float32  # [samples, dense features]
    labels: Float32  # [samples]
    rows: Int64  # [lookups]
    bag_offsets: Int64 | None  # [samples * features + 1]
    num_features: int


def assemble(samples: Samples, table_offsets: Sequence[int], order: Int64 | None) -> Assembled:
    """Global rows of `samples`, in `order`; `table_offsets` has the first row id of each feature's table."""
    if order is None:
        order = np.arange(samples.num_samples)
    num_features = len(samples.ids)
    dense = np.empty((len(order), len(samples.dense)), np.float32)
    for index, column in enumerate(samples.dense):
        dense[:, index] = column[order]
    if all(ids.offsets is None for ids in samples.ids):
        rows = np.empty((len(order), num_features), np.int64)
        for index, ids in enumerate(samples.ids):
            _fill_single(rows, index, ids.values, order, table_offsets[index])
        return Assembled(dense, samples.labels[order], rows.reshape(-1), None, num_features)
    bag_offsets = _bag_offsets(samples, order)
    flat = np.empty(int(bag_offsets[-1]), np.int64)
    for index, ids in enumerate(samples.ids):
        starts = np.arange(samples.num_samples + 1) if ids.offsets is None else ids.offsets
        _fill_bags(flat, bag_offsets, index, num_features, ids.values, starts, order, table_offsets[index])
    return Assembled(dense, samples.labels[order], flat, bag_offsets, num_features)


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
    return Batch(step, dense, labels, np.concatenate(rows), _batch_offsets(lengths), num_features)


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
