"""Scores raw samples with an exported model.

    model = load_exported("export")
    model.score([{"user": "u17", "film": "f4", "genres": "drama|comedy", "age": 31}])

In: raw samples as the raw log had them: records, a dict of columns, a data frame, Arrow. Out: predictions. Values
become ids and numbers as they did when the log was prepared: values it has not seen go to the unknown row, and what
cannot be right is refused with its column and row. A model of several tasks gives an array for each of them. Tables are
mapped, not loaded; rows that a file leaves out have their initial values, which follow from the seed. Anybody may have
made these files, so each is checked against its own length and shapes before a row is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn

from foresee.arrays import Float32, Int32
from foresee.data.samples import Ids, Samples, assemble, cut, fill_empty, offsets_of
from foresee.data.schema import (
    DenseFeature,
    Feature,
    Vocabulary,
    dense_from,
    feature_from,
    vocabularies_from,
)
from foresee.data.vocabulary import GivenIds, HashVocabulary, IdMap, transform
from foresee.engine.lookup import look_up
from foresee.engine.planned_step import Pooling
from foresee.engine.tables import dims_of
from foresee.errors import ConfigError, DataError
from foresee.io import bounded_json as json_fields
from foresee.io.urls import brought, place
from foresee.models import MODELS, LogShape
from foresee.run.by_name import build, model_dim
from foresee.run.checkpoint import load_model
from foresee.run.evaluation import EVALUATION_BATCH_SIZE, judging
from foresee.run.serving.export import EXPORT_FILE, FORMAT_NAME, FORMAT_VERSION, READABLE_VERSIONS
from foresee.run.serving.exported_tables import ExportedTable, exported_rows, exported_table
from foresee.run.serving.raw_reading import RawTable, check_ids, raw_table, read_numbers, read_values
from foresee.run.tasks import CLICKS, LOSSES, Task, Tasks
from foresee.store.halves import DTYPES, ROUNDINGS
from foresee.store.layout import SEED_MAX, WIDTH_MAX, one_of

Encode = Callable[[pa.Array], Int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportDescription:
    """What `export.json` says, checked."""

    content: dict[str, Any]
    model: str
    dim: int | dict[str, int]
    """One number, or by table."""
    options: dict[str, Any]
    features: tuple[Feature, ...]
    dense: tuple[DenseFeature, ...]
    tables: tuple[ExportedTable, ...]
    vocabularies: dict[str, Vocabulary]
    initial: dict[str, Any]
    """seed, init_scale, dtype and rounding: the values of rows that were never written follow from them."""
    tasks: Tasks


def load_exported(path: str | Path, *, import_model: bool = False) -> Exported:
    """Opens a folder that `foresee export` made, to score raw samples.

    Args:
        path: The folder, or its URL: then it is fetched to the cache folder of this machine.
        import_model: Whether a model of somebody's own, which is Python code, is imported: an export may come from
            anyone.

    Returns:
        The model with its tables and vocabularies.

    Raises:
        DataError: The folder holds no export, a damaged one, or one whose model is not to be imported.
    """
    folder = brought(place(path), "exports", marker=EXPORT_FILE)
    description = _description(folder)
    if description.model not in MODELS and not import_model:
        raise DataError(
            f"{folder / EXPORT_FILE}: its model {json_fields.shown(description.model)} is none of ours but Python code "
            "to import; if you trust it, use load_exported(path, import_model=True)"
        )
    try:
        return Exported(folder, description)
    except (ConfigError, RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{folder}: this export cannot be used ({reason}); export again") from error


class Exported:
    """A model that scores raw samples, opened with `load_exported`.

    Args:
        folder: Of the export.
        description: What its `export.json` says.
    """

    def __init__(self, folder: Path, description: ExportDescription) -> None:
        self.description = description.content
        self.features, self.dense, self.tasks = description.features, description.dense, description.tasks
        shape = LogShape(num_dense=len(self.dense), num_features=len(self.features))
        dim, num_outputs = model_dim(_feature_dims(description)), description.tasks.num_outputs
        self.model: nn.Module = build(description.model, shape, dim, num_outputs, **description.options)
        load_model(folder, self.model)
        self._rows = exported_rows(folder, description.tables, description.initial)
        sizes = {table.name: table.num_rows for table in description.tables}
        self._offsets = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
        self._vocabularies = description.vocabularies
        self._encode = {name: _encoder(folder, it, sizes[name]) for name, it in self._vocabularies.items()}
        places = {name: place for place, name in enumerate(sizes)}
        self._pooling = Pooling.of(
            (feature.pooling == "mean" for feature in self.features),
            tables=(places[feature.table] for feature in self.features),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that raw samples must have; others are not looked at."""
        names = [*(it.name for it in self.dense), *(it.name for it in self.features)]
        return tuple(dict.fromkeys(names))

    def score(self, samples: Any) -> Any:
        """Predictions: probabilities of a click, numbers, or probabilities of classes.

        Args:
            samples: Raw samples with the columns `columns`: dicts, a dict of columns, a DataFrame or a pyarrow Table.

        Returns:
            [samples], in their order, or [samples, classes]; of several tasks, a dict of these by the task's name.

        Raises:
            DataError: A column is missing, or a cell cannot be read as training read it.
        """
        by_task = self.predictions(samples)
        return by_task if len(by_task) > 1 else next(iter(by_task.values()))

    def predictions(self, samples: Any) -> dict[str, Float32]:
        """The same as a dict by the task's name, also where there is one task.

        Args:
            samples: As for `score`.

        Returns:
            [samples] or [samples, classes] of each task.

        Raises:
            DataError: As for `score`.
        """
        outputs = self.logits(samples)
        return {task.name: task.predictions(task.outputs(outputs)) for task in self.tasks.tasks}

    def logits(self, samples: Any) -> Float32:
        """What the model says before a sigmoid or softmax.

        Args:
            samples: As for `score`.

        Returns:
            [samples], in their order, or [samples, outputs] of all tasks.

        Raises:
            DataError: As for `score`.
        """
        table = raw_table(samples)
        num_outputs = self.tasks.num_outputs
        out = np.empty(table.num_rows if num_outputs == 1 else (table.num_rows, num_outputs), np.float32)
        if not table.num_rows:
            return out
        group = assemble(self._samples(table), [self._offsets[feature.table] for feature in self.features], None)
        with judging(self.model):
            # In the batches of `evaluate`, so that sums inside the model come out to the last digit as they do there.
            for begin in range(0, table.num_rows, EVALUATION_BATCH_SIZE):
                batch = cut([(group, begin, min(begin + EVALUATION_BATCH_SIZE, table.num_rows))], 0)
                embeddings = look_up(self._rows, batch, self._pooling)
                out[begin : begin + batch.num_samples] = self.model(torch.from_numpy(batch.dense), embeddings).numpy()
        return out

    def _samples(self, table: RawTable) -> Samples:
        dense = tuple(transform(read_numbers(table, feature), feature) for feature in self.dense)
        ids = tuple(self._ids(table, feature) for feature in self.features)
        return Samples(np.zeros(table.num_rows, np.float32), dense, ids)

    def _ids(self, table: RawTable, feature: Feature) -> Ids:
        encode, given = self._encode[feature.table], self._vocabularies[feature.table].kind == "none"
        values = read_values(table, feature, given_ids=given)
        if given:
            check_ids(values, table, feature)
        if not feature.multi_valued:
            return Ids(encode(values))
        lengths = np.diff(values.offsets.to_numpy()).astype(np.int64)
        ids = Ids(encode(values.values), offsets_of(lengths))
        return ids if given else fill_empty(ids, 0)


def _description(folder: Path) -> ExportDescription:
    file = folder / EXPORT_FILE
    try:
        content = json_fields.parse(file.read_bytes())
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
    model = json_fields.object_of(content, "model")
    initial = json_fields.object_of({"initial": {"seed": 0, "init_scale": 0.0}, **content}, "initial")
    description = ExportDescription(
        content=content,
        model=json_fields.text_of(model, "name"),
        dim=_dim(model),
        options=json_fields.object_of(model, "options"),
        features=tuple(feature_from(entry) for entry in json_fields.objects(content, "features")),
        dense=tuple(dense_from(entry) for entry in json_fields.objects(content, "dense")),
        tables=tuple(exported_table(entry) for entry in json_fields.objects(content, "tables")),
        vocabularies=vocabularies_from(content),
        initial={
            "seed": json_fields.whole(initial, "seed", -SEED_MAX, SEED_MAX),
            "init_scale": json_fields.number(initial, "init_scale", -1e30, 1e30),
            "dtype": one_of(initial, "dtype", DTYPES),
            "rounding": one_of(initial, "rounding", ROUNDINGS),
        },
        tasks=_tasks(content),
    )
    tables = {table.name for table in description.tables}
    if not tables:
        raise ValueError("its tables are none")
    if undescribed := {feature.table for feature in description.features} - (tables & description.vocabularies.keys()):
        raise ValueError(f"table {json_fields.shown(min(undescribed))} of a feature is not described")
    if description.vocabularies.keys() - tables:
        raise ValueError("it has a vocabulary of no table")
    return description


def _dim(model: dict[str, Any]) -> int | dict[str, int]:
    by_table = model.get("dim")
    if isinstance(by_table, dict):
        return {name: json_fields.whole(by_table, name, 1, WIDTH_MAX) for name in by_table}
    return json_fields.whole(model, "dim", 1, WIDTH_MAX)


def _feature_dims(description: ExportDescription) -> list[int]:
    """The width of the embeddings of each feature."""
    names = [table.name for table in description.tables]
    dims = dict(zip(names, dims_of(names, description.dim), strict=True))
    return [dims[feature.table] for feature in description.features]


def _tasks(content: dict[str, Any]) -> Tasks:
    """What the model predicts; clicks, if the export does not say."""
    tasks: list[Task] = []
    for entry in json_fields.objects({"tasks": [], **content}, "tasks"):
        loss, classes = json_fields.text_of(entry, "loss"), tuple(json_fields.texts(entry, "classes"))
        if loss not in LOSSES or (loss == "softmax") != (len(classes) > 1):
            raise ValueError(f"a task has the loss {json_fields.shown(loss)} and {len(classes)} classes")
        first = sum(task.num_outputs for task in tasks)
        tasks.append(Task(name=json_fields.text_of(entry, "name"), loss=loss, classes=classes, first_output=first))
    return Tasks(tuple(tasks)) if tasks else CLICKS


def _encoder(folder: Path, vocabulary: Vocabulary, num_rows: int) -> Encode:
    """From raw values to local ids, as the log was prepared."""
    if vocabulary.kind == "none":
        return GivenIds(num_rows).ids
    if vocabulary.kind == "hash":
        return HashVocabulary(vocabulary.num_buckets).ids
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
    return id_map.ids
