"""Scores raw samples with an exported model.

    model = load_exported("export")
    model.score([{"user": "u17", "film": "f4", "genres": ["drama", "comedy"], "age": 31}])

In: dicts of raw values, as the raw log had them. Out: probabilities. Values become ids and numbers as they did when the
log was prepared: unknown values go to the unknown row. Tables are mapped, not loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import nn

from foresee import documents
from foresee.data.assemble import assemble, cut
from foresee.data.hashing import IdMap
from foresee.data.samples import Ids, Samples, fill_empty, offsets_of
from foresee.data.schema import (
    DenseFeature,
    Feature,
    Vocabulary,
    dense_from,
    feature_from,
    vocabularies_from,
)
from foresee.data.statistics import transform
from foresee.data.vocabulary import HashVocabulary
from foresee.engine.checkpoint import load_model
from foresee.engine.evaluation import judging, look_up
from foresee.engine.export import EXPORT_FILE, FORMAT_NAME, FORMAT_VERSION
from foresee.engine.metrics import sigmoid
from foresee.engine.model_loading import build
from foresee.engine.work import Pooling
from foresee.errors import ConfigError, DataError, UsageError
from foresee.models import MODELS, LogShape
from foresee.store.contract import Int64, Layout, Rows, Table
from foresee.store.layouts import WIDTH_MAX

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Encode = Callable[[list[Any]], Int32]
HEADER_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTable:
    """One table file."""

    name: str
    file: str
    num_rows: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDescription:
    """What `export.json` says, checked."""

    content: dict[str, Any]
    model: str
    dim: int
    options: dict[str, Any]
    features: tuple[Feature, ...]
    dense: tuple[DenseFeature, ...]
    tables: tuple[ExportedTable, ...]
    vocabularies: dict[str, Vocabulary]


def load_exported(path: str | Path, *, import_model: bool = False) -> Exported:
    """Opens a folder that `foresee export` made.

    A model of somebody's own is Python code, which is imported only with `import_model`: an export may come from
    anyone.
    """
    folder = Path(path)
    description = _description(folder)
    if description.model not in MODELS and not import_model:
        raise DataError(
            f"{folder / EXPORT_FILE}: its model {documents.shown(description.model)} is none of ours but Python code "
            "to import; if you trust it, use load_exported(path, import_model=True)"
        )
    try:
        return Exported(folder, description)
    except (ConfigError, RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{folder}: this export cannot be used ({reason}); export again") from error


class Exported:
    """A model that scores raw samples."""

    def __init__(self, folder: Path, description: ExportDescription) -> None:
        self.description = description.content
        self.features, self.dense = description.features, description.dense
        shape = LogShape(num_dense=len(self.dense), num_features=len(self.features))
        self.model: nn.Module = build(description.model, shape, description.dim, **description.options)
        load_model(folder, self.model)
        self._rows = ExportedRows(folder, description.tables)
        sizes = {table.name: table.num_rows for table in description.tables}
        self._offsets = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._vocabularies = description.vocabularies
        self._encode = {name: _encoder(folder, it, sizes[name]) for name, it in self._vocabularies.items()}
        self._pooling = Pooling.of(feature.pooling == "mean" for feature in self.features)

    def score(self, samples: Sequence[Mapping[str, Any]]) -> Float32:  # [samples]
        """Probabilities of a click."""
        return sigmoid(self.logits(samples)).astype(np.float32)

    def logits(self, samples: Sequence[Mapping[str, Any]]) -> Float32:  # [samples]
        """What the model says before the sigmoid."""
        if not samples:
            return np.empty(0, np.float32)
        offsets = [self._offsets[feature.table] for feature in self.features]
        batch = cut([(assemble(self._samples(samples), offsets, None), 0, len(samples))], 0)
        with judging(self.model):
            logits = self.model(torch.from_numpy(batch.dense), look_up(self._rows, batch, self._pooling))
        return np.asarray(logits.numpy(), np.float32)

    def _samples(self, samples: Sequence[Mapping[str, Any]]) -> Samples:
        dense = tuple(transform(_numbers(samples, feature), feature) for feature in self.dense)
        ids = tuple(self._ids(samples, feature) for feature in self.features)
        return Samples(np.zeros(len(samples), np.float32), dense, ids)

    def _ids(self, samples: Sequence[Mapping[str, Any]], feature: Feature) -> Ids:
        encode, cells = self._encode[feature.table], _cells(samples, feature.name)
        if not feature.multi_valued:
            return Ids(encode(cells))
        bags = [[] if bag is None else list(bag) for bag in cells]
        lengths = np.array([len(bag) for bag in bags], np.int64)
        ids = Ids(encode([value for bag in bags for value in bag]), offsets_of(lengths))
        return ids if self._vocabularies[feature.table].kind == "none" else fill_empty(ids, 0)


class ExportedRows:
    """The exported tables as a store that can only be read."""

    def __init__(self, folder: Path, tables: tuple[ExportedTable, ...]) -> None:
        self._maps = [map_table(folder / table.file, (table.num_rows, table.width)) for table in tables]
        self._starts = np.array(list(accumulate((len(values) for values in self._maps), initial=0)))
        self.layout = Layout(
            tables=tuple(Table(table.name, table.num_rows) for table in tables),
            width=tables[0].width,
            state_width=0,
            optimizer="sgd",
        )
        self.committed_step = 0

    def read(self, rows: Int64, out: Rows) -> None:
        """Rows by global id, which ascend."""
        bounds = np.searchsorted(rows, self._starts)
        for values, start, begin, end in zip(self._maps, self._starts[:-1], bounds[:-1], bounds[1:], strict=True):
            out.values[begin:end] = values[rows[begin:end] - start]

    def write(self, rows: Int64, source: Rows) -> None:
        raise UsageError("exported tables can only be read; train the run they came from instead")

    def commit(self, step: int) -> None:
        raise UsageError("exported tables can only be read; train the run they came from instead")

    def close(self) -> None:
        self._maps = []


def map_table(path: Path, shape: tuple[int, int]) -> Float32:  # [rows, width]
    """The values of a table file, mapped, if they are of this shape and all there."""
    try:
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > HEADER_BYTES_MAX:
                raise ValueError(f"a header of {length:,} bytes")
            entry = documents.object_of(documents.parse_object(file.read(length)), "values")
            num_bytes = os.fstat(file.fileno()).st_size
        if (entry.get("dtype"), entry.get("shape")) != ("F32", list(shape)):
            raise ValueError(f"it does not hold {shape[0]:,} rows of width {shape[1]}")
        if num_bytes != 8 + length + 4 * shape[0] * shape[1]:
            raise ValueError(f"it has {num_bytes:,} bytes where {8 + length + 4 * shape[0] * shape[1]:,} are expected")
        values: Float32 = np.memmap(path, "<f4", "r", 8 + length, shape) if shape[0] else np.empty(shape, np.float32)
    except (OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: this is not an exported table, or it is damaged ({error}); export again") from None
    return values


def _description(folder: Path) -> ExportDescription:
    file = folder / EXPORT_FILE
    try:
        content = documents.parse(file.read_bytes())
    except OSError:
        raise DataError(f"{folder} holds no exported model ({EXPORT_FILE} is missing); use `foresee export`") from None
    except ValueError as error:
        raise DataError(f"{file}: this is not JSON ({error}); export again") from None
    found = (content.get("format"), content.get("version")) if isinstance(content, dict) else None
    if found != (FORMAT_NAME, FORMAT_VERSION):
        raise DataError(f"{file}: this release reads {FORMAT_NAME} {FORMAT_VERSION}, the file is another; export again")
    try:
        return _parsed(content)
    except ValueError as error:
        raise DataError(f"{file}: a field is missing or wrong ({error}); export again") from None


def _parsed(content: dict[str, Any]) -> ExportDescription:
    model = documents.object_of(content, "model")
    description = ExportDescription(
        content=content,
        model=documents.text_of(model, "name"),
        dim=documents.whole(model, "dim", 1, WIDTH_MAX),
        options=documents.object_of(model, "options"),
        features=tuple(feature_from(entry) for entry in documents.objects(content, "features")),
        dense=tuple(dense_from(entry) for entry in documents.objects(content, "dense")),
        tables=tuple(_table(entry) for entry in documents.objects(content, "tables")),
        vocabularies=vocabularies_from(content),
    )
    tables = {table.name for table in description.tables}
    if not tables or len({table.width for table in description.tables}) > 1:
        raise ValueError("its tables are none, or of several widths")
    if strangers := {feature.table for feature in description.features} - (tables & description.vocabularies.keys()):
        raise ValueError(f"table {documents.shown(min(strangers))} of a feature is not described")
    if description.vocabularies.keys() - tables:
        raise ValueError("it has a vocabulary of no table")
    return description


def _table(content: dict[str, Any]) -> ExportedTable:
    return ExportedTable(
        name=documents.text_of(content, "name"),
        file=documents.file_name(content, "file"),
        num_rows=documents.whole(content, "num_rows", 0, documents.LARGE_MAX),
        width=documents.whole(content, "width", 1, WIDTH_MAX),
    )


def _encoder(folder: Path, vocabulary: Vocabulary, num_rows: int) -> Encode:
    """From raw values to local ids, as the log was prepared."""
    if vocabulary.kind == "none":
        return lambda values: _given(values, num_rows)
    if vocabulary.kind == "hash":
        return lambda values: HashVocabulary(vocabulary.num_buckets).ids(_strings(values))
    if vocabulary.file is None:
        raise ValueError("a vocabulary by frequency has no file")
    try:
        table = pq.read_table(folder / vocabulary.file)
        table.validate(full=True)
        known = table.column("value").combine_chunks()
        if len(known) > num_rows:
            raise ValueError(f"it has {len(known):,} values for {num_rows:,} rows")
        id_map = IdMap(pa.concat_arrays([pa.array([], pa.large_string()), known.slice(1).cast(pa.large_string())]))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{folder / vocabulary.file}: this is no vocabulary ({reason}); export again") from None
    return lambda values: id_map.ids(_strings(values))


def _strings(values: list[Any]) -> Any:
    return pa.array(["" if value is None else str(value) for value in values], pa.large_string())


def _given(values: list[Any], num_rows: int) -> Int32:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < num_rows:
            raise DataError(f"{value!r} is no id of this table; give a whole number from 0 to {num_rows - 1}")
    return np.array(values, np.int32)


def _cells(samples: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    for index, sample in enumerate(samples):
        if name not in sample:
            raise DataError(f"sample {index} has no {name!r}; give it, or None where the value is not known")
    return [sample[name] for sample in samples]


def _numbers(samples: Sequence[Mapping[str, Any]], feature: DenseFeature) -> NDArray[np.float64]:
    cells = _cells(samples, feature.name)
    for index, cell in enumerate(cells):
        if cell is None and feature.missing is None:
            raise DataError(f"sample {index}: {feature.name!r} must be a number; the log had no rule for missing ones")
    numbers = np.array([feature.missing if cell is None else cell for cell in cells], np.float64)
    if not np.isfinite(numbers).all():
        raise DataError(f"sample {int(np.argmin(np.isfinite(numbers)))}: {feature.name!r} is not a finite number")
    return numbers
