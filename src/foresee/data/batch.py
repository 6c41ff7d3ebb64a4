"""One global batch, as the training loop sees it, the stream it comes from, and the vectors that a model gets of it.

A sample has dense features, one bag of row ids for each categorical feature, a label or several, and maybe a weight.
Row ids are global (table offset + local id). `bag_offsets` is None when every bag holds exactly one id: the common
case, and the fast one. `Pooling` says how many vectors a bag becomes: one, the sum or mean of its rows, or one for each
id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from foresee.arrays import Bool, Float32, Int32, Int64


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step."""

    step: int
    dense: Float32  # [samples, dense features]
    labels: Float32  # [samples]; [samples, labels] of a log with several
    rows: Int64  # [lookups]: sample by sample, feature by feature, id by id
    bag_offsets: Int32 | None  # [samples * features + 1]: where each bag starts in `rows`
    num_features: int
    sample_weights: Float32 | None = field(default=None, kw_only=True)  # [samples]; None: all count the same

    @property
    def num_samples(self) -> int:
        return len(self.labels)

    @property
    def sample_offsets(self) -> Int32:  # [samples + 1]
        """Where each sample starts in `rows`."""
        if self.bag_offsets is None:
            return np.arange(0, len(self.rows) + 1, max(1, self.num_features), dtype=np.int32)
        return self.bag_offsets[:: self.num_features]

    def without_rows(self) -> Batch:
        """The batch as training needs it once it is planned: the record knows where its rows are."""
        return replace(self, rows=np.empty(0, np.int64))

    def part(self, samples: Int32) -> Batch:
        """The batch of some of the samples, in this order."""
        bags = (samples[:, None].astype(np.int64) * self.num_features + np.arange(self.num_features)).reshape(-1)
        if self.bag_offsets is None:
            rows, bag_offsets = (self.rows[bags] if len(self.rows) else self.rows), None
        else:
            sizes = np.diff(self.bag_offsets)[bags]
            bag_offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
            within = np.arange(bag_offsets[-1]) - np.repeat(bag_offsets[:-1], sizes)
            rows = self.rows[np.repeat(self.bag_offsets[bags], sizes) + within] if len(self.rows) else self.rows
        weights = None if self.sample_weights is None else self.sample_weights[samples]
        return Batch(
            self.step, self.dense[samples], self.labels[samples], rows, bag_offsets, self.num_features,
            sample_weights=weights,
        )  # fmt: skip

    def of_features(self, features: Int64) -> tuple[Batch, Int64]:
        """The same samples with some of the features, and which lookups those are."""
        bags = (np.arange(self.num_samples)[:, None] * self.num_features + features).reshape(-1)
        if self.bag_offsets is None:
            lookups, bag_offsets = bags, None
        else:
            starts, sizes = self.bag_offsets[bags], np.diff(self.bag_offsets)[bags]
            bag_offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
            lookups = np.repeat(starts - bag_offsets[:-1], sizes) + np.arange(bag_offsets[-1])
        rows = self.rows[lookups] if len(self.rows) else self.rows
        return Batch(self.step, self.dense, self.labels, rows, bag_offsets, len(features)), lookups


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors that a model gets of a batch, sample by sample, feature by feature, id by id."""

    offsets: Int32 | None  # [vectors + 1]: the lookups that each is made of; None: one lookup each
    mean: Bool  # [vectors], or [features] to be repeated: which are averaged
    of_bag: Int64 | None  # [bags + 1]: where the vectors of each bag begin; None: one each


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooling:
    """What becomes of the bags of each feature."""

    mean: Bool  # [features]: averaged; the others are summed
    apart: Bool | None = None  # [features]: a vector for each id, to be pooled by whoever gets them; None: no feature
    tables: Int64 | None = None  # [features]: the table of each, in the order of rows; None: nobody has to know

    @classmethod
    def of(
        cls, mean_features: Iterable[bool], apart_features: Iterable[bool] = (), tables: Iterable[int] | None = None
    ) -> Pooling:
        """From one flag for each feature, and its table where tables have several widths."""
        apart = np.array(list(apart_features), np.bool_)
        return cls(
            mean=np.array(list(mean_features), np.bool_), apart=apart if apart.any() else None,
            tables=None if tables is None else np.array(list(tables), np.int64),
        )  # fmt: skip

    def of_features(self, features: Int64) -> Pooling:
        """That of some of the features."""
        given: dict[str, Any] = {it.name: getattr(self, it.name) for it in fields(self)}
        chosen: dict[str, Any] = {name: None if it is None else it[features] for name, it in given.items()}
        return Pooling(**chosen)

    def vectors(self, batch: Batch) -> Vectors:
        """Which lookups each vector is made of."""
        if self.apart is None or batch.bag_offsets is None:
            return Vectors(batch.bag_offsets, self.mean, None)
        sizes = np.diff(batch.bag_offsets).astype(np.int64)
        apart = np.tile(self.apart, batch.num_samples)
        vectors = np.where(apart, sizes, 1)
        of_bag = np.concatenate([[0], np.cumsum(vectors)])
        within = np.arange(of_bag[-1]) - np.repeat(of_bag[:-1], vectors)
        starts = np.repeat(batch.bag_offsets[:-1], vectors) + within  # of a pooled bag there is one, at its start
        offsets = np.append(starts, batch.bag_offsets[-1]).astype(np.int32)
        mean = np.repeat(np.tile(self.mean, batch.num_samples) & ~apart, vectors)
        return Vectors(offsets, mean, of_bag)


class BatchStream(Protocol):
    """Batches by step. Batch t is a pure function of (log, seed, epoch, t): any t can be asked for first."""

    @property
    def num_steps(self) -> int: ...

    @property
    def num_rows(self) -> int:
        """Every row id is below this."""
        ...

    @property
    def digest(self) -> str:
        """Identity of the stream: equal digests give equal batches."""
        ...

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        """All batches from `first_step` on."""
        ...
