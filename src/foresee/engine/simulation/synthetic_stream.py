"""Batches of a synthetic log of any size, without a file: Criteo's 26 tables scaled, and as often as the rows need.

In: how many rows. Out: a stream of row ids; dense features and labels are not there, as nothing is trained. A table has
at most 2^31 - 1 rows, so a log of more than about 7 * 10^9 rows has more tables and features, as large models have.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from foresee.data.batch import Batch
from foresee.data.synthetic import CRITEO_TABLE_SIZES, criteo_table_sizes, synthetic_rows
from foresee.errors import DataError
from foresee.store.contract import Table

TABLE_ROWS_MAX = (1 << 31) - 1
ROWS_MIN, ROWS_MAX = 10_000, 10**12


class SyntheticStream:
    """A `BatchStream` of as many steps as are asked for."""

    def __init__(self, num_rows: float, *, batch_size: int, num_steps: int, seed: int = 0) -> None:
        if not ROWS_MIN <= num_rows <= ROWS_MAX:
            raise DataError(f"a synthetic log of {num_rows:g} rows cannot be made; give {ROWS_MIN:,} to {ROWS_MAX:,}")
        copies = 1
        while max(criteo_table_sizes(num_rows / copies / sum(CRITEO_TABLE_SIZES))) > TABLE_ROWS_MAX:
            copies += 1
        self.table_sizes = criteo_table_sizes(num_rows / copies / sum(CRITEO_TABLE_SIZES)) * copies
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.seed = seed

    @property
    def num_rows(self) -> int:
        return sum(self.table_sizes)

    @property
    def tables(self) -> list[Table]:
        return [Table(f"C{number + 1}", size) for number, size in enumerate(self.table_sizes)]

    @property
    def digest(self) -> str:
        identity = (self.table_sizes, self.batch_size, self.num_steps, self.seed)
        return hashlib.sha256(repr(identity).encode()).hexdigest()

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        nothing, labels = np.empty((self.batch_size, 0), np.float32), np.zeros(self.batch_size, np.float32)
        drawn = synthetic_rows(
            batch_size=self.batch_size, num_batches=self.num_steps - first_step, seed=self.seed,
            table_sizes=self.table_sizes, first_batch=first_step,
        )  # fmt: skip
        for step, rows in enumerate(drawn, start=first_step):
            yield Batch(step, nothing, labels, rows.reshape(-1), None, len(self.table_sizes))
