"""Scores raw samples with an exported model.

    model = load_exported("export")
    model.score([{"user": "u17", "film": "f4", "genres": ["drama", "comedy"], "age": 31}])

In: dicts of raw values, as the raw log had them. Out: probabilities. Values become ids and numbers as they did when the
log was prepared: unknown values go to the unknown row. Tables are mapped, not loaded.
"""

from __future__ import annotations

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
from foresee.engine.export import EXPORT_FILE, FORMAT_NAME, FORMAT_VERSION, READABLE_VERSIONS
from foresee.engine.exported_tables import ExportedRows, ExportedTable, exported_table
from foresee.engine.metrics import sigmoid
from foresee.engine.model_loading import build
from foresee.engine.work import Pooling
from foresee.errors import ConfigError, DataError
from foresee.models import MODELS, LogShape
from foresee.store.layouts import SEED_MAX, WIDTH_MAX

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
Encode = Callable[[list[Any]], Int32]


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
    seed: int
    init_scale: float
    """Of which the values of rows that were never written follow."""


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
        self._rows = ExportedRows(
            folder, description.tables, seed=description.seed, init_scale=description.init_scale
        )
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


def _description(folder: Path) -> ExportDescription:
    file = folder / EXPORT_FILE
    try:
        content = documents.parse(file.read_bytes())
    except OSError:
        raise DataError(f"{folder} holds no exported model ({EXPORT_FILE} is missing); use `foresee export`") from None
    except ValueError as error:
        raise DataError(f"{file}: this is not JSON ({error}); export again") from None
    found = (content.get("format"), content.get("version")) if isinstance(content, dict) else None
    if found not in [(FORMAT_NAME, version) for version in READABLE_VERSIONS]:
        raise DataError(f"{file}: this release reads {FORMAT_NAME} {FORMAT_VERSION}, the file is another; export again")
    try:
        return _parsed(content)
    except ValueError as error:
        raise DataError(f"{file}: a field is missing or wrong ({error}); export again") from None


def _parsed(content: dict[str, Any]) -> ExportDescription:
    model = documents.object_of(content, "model")
    initial = documents.object_of({"initial": {"seed": 0, "init_scale": 0.0}, **content}, "initial")
    description = ExportDescription(
        content=content,
        model=documents.text_of(model, "name"),
        dim=documents.whole(model, "dim", 1, WIDTH_MAX),
        options=documents.object_of(model, "options"),
        features=tuple(feature_from(entry) for entry in documents.objects(content, "features")),
        dense=tuple(dense_from(entry) for entry in documents.objects(content, "dense")),
        tables=tuple(exported_table(entry) for entry in documents.objects(content, "tables")),
        vocabularies=vocabularies_from(content),
        seed=documents.whole(initial, "seed", -SEED_MAX, SEED_MAX),
        init_scale=documents.number(initial, "init_scale", -1e30, 1e30),
    )
    tables = {table.name for table in description.tables}
    if not tables or len({table.width for table in description.tables}) > 1:
        raise ValueError("its tables are none, or of several widths")
    if strangers := {feature.table for feature in description.features} - (tables & description.vocabularies.keys()):
        raise ValueError(f"table {documents.shown(min(strangers))} of a feature is not described")
    if description.vocabularies.keys() - tables:
        raise ValueError("it has a vocabulary of no table")
    return description


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
