"""Writes a prepared log: samples in, a folder of Parquet parts and their description out, whole or not at all.

`LogWriter` cuts what it is given into row groups of a fixed number of samples, so that a reader can reach sample i of
a split by arithmetic. It keeps at most one row group of each split in memory and hashes contents as they pass, so
that a log's digest does not depend on compression or the Parquet library.

`new_folder(out)` gives a temporary sibling to build in and moves it to `out` in one rename; an error, even an
interrupt, removes it, and what a killed process left goes at the next start. An existing target is refused unless it
is empty, or a prepared log that the person asked to replace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foresee.data.samples import Ids, Samples, concatenate
from foresee.data.schema import (
    CLICK_LABEL,
    PROBABILITY_COLUMN,
    WEIGHT_COLUMN,
    DenseFeature,
    Feature,
    LogDescription,
    LogLabel,
    Part,
    RawType,
    Split,
    Table,
    Vocabulary,
    check_names,
    label_columns,
)
from foresee.io.files import Files

DESCRIPTION_FILE = "log.json"

ROW_GROUP_SAMPLES = 8192

ROW_GROUPS_PER_PART = 32
"""A reader parses a part's whole footer to get at one row group: few row groups keep that cheap."""


class LogWriter:
    """Writes the parts of all splits into one folder. Use as a context manager, then call `finish`."""

    def __init__(
        self,
        folder: Path,
        features: tuple[Feature, ...],
        dense: tuple[DenseFeature, ...],
        *,
        row_group_samples: int = ROW_GROUP_SAMPLES,
        with_probability: bool = False,
        labels: tuple[LogLabel, ...] = (CLICK_LABEL,),
        with_weights: bool = False,
    ) -> None:
        check_names(features, dense, labels)
        self._labels, self._with_weights = labels, with_weights
        self._folder = folder
        self._features, self._dense = features, dense
        self._row_group_samples = row_group_samples
        self._schema = parquet_schema(
            features, dense, with_probability=with_probability, labels=labels, with_weights=with_weights
        )
        self._splits: dict[str, _SplitWriter] = {}
        self._ids_max = [0 if feature.multi_valued else 1 for feature in features]

    def append(self, split: str, samples: Samples) -> None:
        """Add samples to the end of a split."""
        for index, ids in enumerate(samples.ids):
            if ids.offsets is not None and len(ids.offsets) > 1:
                self._ids_max[index] = max(self._ids_max[index], int(np.diff(ids.offsets).max()))
        if split not in self._splits:
            self._splits[split] = _SplitWriter(self._folder, split, self._schema, self._row_group_samples)
        self._splits[split].append(samples)

    def finish(
        self,
        *,
        tables: tuple[Table, ...],
        vocabularies: dict[str, Vocabulary],
        best_auc: dict[str, float] | None = None,
        source: dict[str, Any],
        raw_types: Sequence[RawType | None] | None = None,
    ) -> LogDescription:
        """Close all parts and write `log.json`, the last file: a folder without it is not a log."""
        seen = zip(self._features, self._ids_max, raw_types or [None] * len(self._features), strict=True)
        features = tuple(replace(it, ids_max=most, raw_type=raw_type) for it, most, raw_type in seen)
        description = LogDescription(
            features=features,
            tables=tables,
            dense=self._dense,
            vocabularies=vocabularies,
            splits={name: writer.finish() for name, writer in self._splits.items()},
            row_group_samples=self._row_group_samples,
            best_auc=best_auc or {},
            source=source,
            labels=self._labels,
            sample_weights=self._with_weights,
        )
        Files().publish(self._folder / DESCRIPTION_FILE, description.to_json().encode())
        return description

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._splits.values():
            writer.close()


class _SplitWriter:
    def __init__(self, folder: Path, name: str, schema: pa.Schema, row_group_samples: int) -> None:
        self._folder, self._name, self._schema = folder, name, schema
        self._row_group_samples = row_group_samples
        self._pending: list[Samples] = []
        self._num_pending = 0
        self._parts: list[Part] = []
        self._file: pq.ParquetWriter | None = None
        self._row_groups_in_part = 0
        self._samples_in_part = 0
        self._content = hashlib.blake2b(digest_size=32)

    def append(self, samples: Samples) -> None:
        self._pending.append(samples)
        self._num_pending += samples.num_samples
        if self._num_pending < self._row_group_samples:
            return
        everything = concatenate(self._pending)
        full = self._num_pending // self._row_group_samples * self._row_group_samples
        for start in range(0, full, self._row_group_samples):
            self._write(everything.slice(start, start + self._row_group_samples))
        self._num_pending -= full
        self._pending = [everything.slice(full, full + self._num_pending)] if self._num_pending else []

    def finish(self) -> Split:
        if self._num_pending:
            self._write(concatenate(self._pending))
            self._pending, self._num_pending = [], 0
        self._end_part()
        return Split(parts=tuple(self._parts), content=self._content.hexdigest())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, row_group: Samples) -> None:
        if self._file is None:
            self._file = pq.ParquetWriter(
                self._path(),
                self._schema,
                compression="lz4",
                use_dictionary=False,
                write_statistics=False,
                column_encoding=_encodings(self._schema),
            )
        hash_contents(self._content, row_group)
        table = pa.Table.from_arrays(to_arrow(row_group), schema=self._schema)
        self._file.write_table(table, row_group_size=row_group.num_samples)
        self._row_groups_in_part += 1
        self._samples_in_part += row_group.num_samples
        if self._row_groups_in_part == ROW_GROUPS_PER_PART:
            self._end_part()

    def _path(self) -> Path:
        return self._folder / f"{self._name}-{len(self._parts):05d}.parquet"

    def _end_part(self) -> None:
        if self._file is None:
            return
        self.close()
        path = self._path()
        self._parts.append(Part(file=path.name, num_samples=self._samples_in_part, num_bytes=path.stat().st_size))
        self._row_groups_in_part = self._samples_in_part = 0


def parquet_schema(
    features: tuple[Feature, ...], dense: tuple[DenseFeature, ...], *, with_probability: bool,
    labels: tuple[LogLabel, ...] = (CLICK_LABEL,), with_weights: bool = False,
) -> pa.Schema:  # fmt: skip
    """Columns of every part: labels, dense features, categorical features, weights, the planted truth."""
    fields = [pa.field(name, pa.float32(), nullable=False) for name in label_columns(labels)]
    fields += [pa.field(entry.name, pa.float32(), nullable=False) for entry in dense]
    for feature in features:
        kind = pa.list_(pa.field("id", pa.int32(), nullable=False)) if feature.multi_valued else pa.int32()
        fields.append(pa.field(feature.name, kind, nullable=False))
    if with_weights:
        fields.append(pa.field(WEIGHT_COLUMN, pa.float32(), nullable=False))
    if with_probability:
        fields.append(pa.field(PROBABILITY_COLUMN, pa.float32(), nullable=False))
    return pa.schema(fields)


def _encodings(schema: pa.Schema) -> dict[str, str]:
    # Ids are small numbers in four bytes: with equal bytes side by side lz4 squeezes out the zeros and decodes as fast
    # as plain values are read. Dictionaries and zstd make files as small but take several times as long to decode.
    return {field.name: "BYTE_STREAM_SPLIT" for field in schema if pa.types.is_int32(field.type)}


def to_arrow(samples: Samples) -> list[pa.Array]:
    """Columns in the order of `parquet_schema`."""
    labels = samples.labels.reshape(samples.num_samples, -1)
    columns = [pa.array(column) for column in (*labels.T, *samples.dense)]
    columns += [_ids_to_arrow(ids) for ids in samples.ids]
    if samples.weights is not None:
        columns.append(pa.array(samples.weights))
    if samples.true_probability is not None:
        columns.append(pa.array(samples.true_probability))
    return columns


def _ids_to_arrow(ids: Ids) -> pa.Array:
    if ids.offsets is None:
        return pa.array(ids.values)
    kind = pa.list_(pa.field("id", pa.int32(), nullable=False))
    return pa.ListArray.from_arrays(pa.array(ids.offsets.astype(np.int32)), pa.array(ids.values), type=kind)


def hash_contents(content: hashlib.blake2b, row_group: Samples) -> None:
    """Feed one row group into the hash of its split: all that batches are made of, byte for byte."""
    content.update(np.int64(row_group.num_samples).tobytes())
    weights = () if row_group.weights is None else (row_group.weights,)
    for column in (row_group.labels, *weights, *row_group.dense):
        content.update(np.ascontiguousarray(column, "<f4").data)
    for ids in row_group.ids:
        if ids.offsets is not None:
            content.update(np.diff(ids.offsets).astype("<i8").data)
        content.update(np.ascontiguousarray(ids.values, "<i4").data)
