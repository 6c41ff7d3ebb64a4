"""One global batch, as the training loop sees it, and the stream it comes from.

A sample has dense features, one bag of row ids for each categorical feature, and a label. Row ids are global (table
offset + local id). `bag_offsets` is None when every bag holds exactly one id: the common case, and the fast one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from foresee.base.arrays import Float32, Int32, Int64


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one step."""

    step: int
    dense: Float32  # [samples, dense features]
    labels: Float32  # [samples]
    rows: Int64  # [lookups]: sample by sample, feature by feature, id by id
    bag_offsets: Int32 | None  # [samples * features + 1]: where each bag starts in `rows`
    num_features: int

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
        return Batch(self.step, self.dense[samples], self.labels[samples], rows, bag_offsets, self.num_features)


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
