"""Raw values to local ids: by frequency, by hashing, or as they are.

In: arrays of strings, chunk by chunk. Out: int32 ids. By frequency the hottest value gets id 1, ties go by value, and
id 0 is the unknown row: rare, unseen and missing values. Memory grows with the number of distinct values and never
with the log. Empty strings are missing values everywhere here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from foresee.data.batch import Int32
from foresee.data.hashing import IdMap, hash_strings
from foresee.data.schema import Vocabulary

MERGE_ROWS_MIN = 1 << 18


class Encoder(Protocol):
    """What turns the values of one table into local ids."""

    @property
    def num_rows(self) -> int: ...

    def ids(self, values: pa.Array) -> Int32: ...

    def save(self, folder: Path, index: int) -> Vocabulary: ...


class Counter:
    """How often each value of one table occurs."""

    def __init__(self) -> None:
        self._counted = pa.table({"value": pa.array([], pa.large_string()), "count": pa.array([], pa.int64())})
        self._pending: list[pa.Table] = []
        self._num_pending = 0
        self.num_missing = 0

    def add(self, values: pa.Array) -> None:
        counts = values.value_counts()
        table = pa.table({"value": counts.field("values"), "count": counts.field("counts")})
        present = table.filter(pc.not_equal(table.column("value"), ""))
        self.num_missing += len(values) - (pc.sum(present.column("count")).as_py() or 0)
        self._pending.append(present)
        self._num_pending += len(present)
        # Merging costs as much as the vocabulary has rows, so it waits until that many new ones have come in.
        if self._num_pending > max(MERGE_ROWS_MIN, len(self._counted)):
            self._merge()

    def _merge(self) -> None:
        if self._pending:
            together = pa.concat_tables([self._counted, *self._pending])
            grouped = together.group_by("value", use_threads=False).aggregate([("count", "sum")])
            self._counted = grouped.rename_columns({"count_sum": "count"})
            self._pending, self._num_pending = [], 0

    def vocabulary(self, min_count: int) -> FrequencyVocabulary:
        """Values that occur at least `min_count` times, hot ones first."""
        self._merge()
        kept = self._counted.filter(pc.greater_equal(self._counted.column("count"), min_count))
        every = pc.sum(self._counted.column("count")).as_py() or 0
        ordered = kept.sort_by([("count", "descending"), ("value", "ascending")]).combine_chunks()
        num_unknown = every + self.num_missing - (pc.sum(ordered.column("count")).as_py() or 0)
        return FrequencyVocabulary(ordered, min_count, num_unknown)


class FrequencyVocabulary:
    """Local id 1 is the hottest value, 0 the unknown row."""

    def __init__(self, ordered: pa.Table, min_count: int, num_unknown: int) -> None:
        self._values = pa.concat_arrays([pa.array([], pa.large_string()), *ordered.column("value").chunks])
        self._counts = ordered.column("count").to_numpy()
        self._min_count, self._num_unknown = min_count, num_unknown
        self._map = IdMap(self._values)

    @property
    def num_rows(self) -> int:
        return len(self._values) + 1

    def ids(self, values: pa.Array) -> Int32:
        return self._map.ids(values)

    def save(self, folder: Path, index: int) -> Vocabulary:
        """Write (id, value, count) of every row; the unknown row has no value."""
        file = f"vocabulary-{index:03d}.parquet"
        columns = {
            "id": np.arange(self.num_rows, dtype=np.int32),
            "value": pa.concat_arrays([pa.array([None], pa.large_string()), self._values]),
            "count": np.concatenate([[self._num_unknown], self._counts]).astype(np.int64),
        }
        pq.write_table(pa.table(columns), folder / file, compression="zstd")
        return Vocabulary(kind="frequency", file=file, min_count=self._min_count)


class HashVocabulary:
    """Local id 1 + hash % num_buckets; missing values get the unknown row 0."""

    def __init__(self, num_buckets: int) -> None:
        self._num_buckets = num_buckets

    @property
    def num_rows(self) -> int:
        return self._num_buckets + 1

    def ids(self, values: pa.Array) -> Int32:
        ids = (hash_strings(values) % np.uint64(self._num_buckets)).astype(np.int32) + np.int32(1)
        missing = pc.equal(values, "").to_numpy(zero_copy_only=False)
        return np.where(missing, np.int32(0), ids)

    def save(self, folder: Path, index: int) -> Vocabulary:
        return Vocabulary(kind="hash", num_buckets=self._num_buckets)


class GivenIds:
    """Values are local ids already; conversion has checked that they are in range."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows

    def ids(self, values: pa.Array) -> Int32:
        return np.asarray(values.cast(pa.int32()).to_numpy(zero_copy_only=False), np.int32)

    def save(self, folder: Path, index: int) -> Vocabulary:
        return Vocabulary(kind="none")
