"""A run of samples held column by column: what a log's row groups decode to and what a writer takes.

Local ids (int32, per feature), dense values, labels. Arrays in, arrays out; nothing here knows files or tables. A
multi-valued feature has `offsets`: sample i owns values[offsets[i]:offsets[i + 1]]; a single-valued one has None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foresee.data.batch import Float32, Int32, Int64


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

    labels: Float32  # [samples]
    dense: tuple[Float32, ...]  # one [samples] per dense feature
    ids: tuple[Ids, ...]  # one per categorical feature
    true_probability: Float32 | None = None  # [samples]; only synthetic logs know it

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> Samples:
        return Samples(
            self.labels[start:stop],
            tuple(column[start:stop] for column in self.dense),
            tuple(ids.slice(start, stop) for ids in self.ids),
            None if self.true_probability is None else self.true_probability[start:stop],
        )


def concatenate(pieces: Sequence[Samples]) -> Samples:
    """All samples of `pieces`, in order."""
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    probabilities = [piece.true_probability for piece in pieces if piece.true_probability is not None]
    return Samples(
        np.concatenate([piece.labels for piece in pieces]),
        tuple(np.concatenate([piece.dense[i] for piece in pieces]) for i in range(len(first.dense))),
        tuple(_concatenate_ids([piece.ids[i] for piece in pieces]) for i in range(len(first.ids))),
        np.concatenate(probabilities) if probabilities else None,
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
