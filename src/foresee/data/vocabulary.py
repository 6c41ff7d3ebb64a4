"""Raw values to local ids and raw numbers to float32: vocabularies, hashes and dense transforms of a prepared log.

In: arrays of strings or numbers, chunk by chunk. Out: int32 ids, and what `log.json` says about each column. By
frequency the hottest value gets id 1, ties go by value, and id 0 is the unknown row: rare, unseen and missing values.
Memory grows with the number of distinct values and never with the log. Empty strings are missing values everywhere.

The hash is FNV-1a over the UTF-8 bytes, then splitmix64's finaliser. It is part of the format and may never change: a
hashed table is only usable by someone who computes the same hash.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba import njit

from foresee.arrays import Float32, Float64, Int32, UInt64
from foresee.data.columns import Dense
from foresee.data.schema import DenseFeature, Vocabulary
from foresee.io.hashing import mix


def hash_strings(values: pa.Array, salt: int = 0) -> UInt64:
    """One hash per string of a `large_string` array without nulls."""
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64, len(values) + 1, offset=8 * values.offset)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    return _hash(offsets, data, np.uint64(salt))  # type: ignore[no-any-return]


class IdMap:
    """Maps the hashes of a vocabulary to ids 1, 2, ...; everything else to 0."""

    def __init__(self, values: pa.Array) -> None:
        size = 1 << max(4, int(len(values) * 2).bit_length())
        # Two values with one hash would share a row. Among 10^8 values that happens once in 4,000 vocabularies;
        # another salt then separates them.
        for salt in range(16):
            self._salt = salt
            self._hashes = np.zeros(size, np.uint64)
            self._ids = np.zeros(size, np.int32)
            if _insert(self._hashes, self._ids, hash_strings(values, salt)):
                return
        raise AssertionError("sixteen salts cannot all collide")

    def ids(self, values: pa.Array) -> Int32:
        return _find(self._hashes, self._ids, hash_strings(values, self._salt))  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _hash(offsets: Any, data: Any, salt: np.uint64) -> UInt64:
    out = np.empty(len(offsets) - 1, np.uint64)
    for index in range(len(out)):
        value = np.uint64(0xCBF29CE484222325) ^ salt
        for position in range(offsets[index], offsets[index + 1]):
            value = (value ^ np.uint64(data[position])) * np.uint64(0x100000001B3)
        out[index] = mix(value)
    return out


@njit(nogil=True, cache=True)
def _insert(hashes: UInt64, ids: Int32, new: UInt64) -> bool:
    mask = np.uint64(len(hashes) - 1)
    for index in range(len(new)):
        place = new[index] & mask
        while ids[place] != 0:
            if hashes[place] == new[index]:
                return False
            place = (place + np.uint64(1)) & mask
        hashes[place] = new[index]
        ids[place] = index + 1
    return True


@njit(nogil=True, cache=True)
def _find(hashes: UInt64, ids: Int32, wanted: UInt64) -> Int32:
    mask = np.uint64(len(hashes) - 1)
    out = np.zeros(len(wanted), np.int32)
    for index in range(len(wanted)):
        place = wanted[index] & mask
        while ids[place] != 0:
            if hashes[place] == wanted[index]:
                out[index] = ids[place]
                break
            place = (place + np.uint64(1)) & mask
    return out


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


class DenseStatistics:
    """Mean and variance of one column, merged chunk by chunk (Chan, Golub and LeVeque), so that they stay exact."""

    def __init__(self, column: Dense) -> None:
        self._column = column
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, values: Float64) -> None:
        if self._column.transform != "standard" or not len(values):
            return
        mean, total = float(values.mean()), self._count + len(values)
        apart = mean - self._mean
        self._squares += float(((values - mean) ** 2).sum()) + apart * apart * self._count * len(values) / total
        self._mean += apart * len(values) / total
        self._count = total

    def feature(self) -> DenseFeature:
        """The column as the prepared log describes it. A constant column gets deviation 1."""
        deviation = math.sqrt(self._squares / self._count) if self._count else 1.0
        return DenseFeature(
            name=self._column.name,
            transform=self._column.transform,
            missing=self._column.missing,
            mean=self._mean,
            deviation=deviation or 1.0,
            missing_markers=self._column.missing_markers,
        )


def transform(values: Float64, feature: DenseFeature) -> Float32:
    """Raw numbers as a model sees them."""
    if feature.transform == "log1p":
        values = np.log1p(np.maximum(values, 0.0))
    elif feature.transform == "standard":
        values = (values - feature.mean) / feature.deviation
    return values.astype(np.float32)
