"""What a prepared click log says about itself: features, tables, splits, parts, as `log.json` holds them.

In: a JSON text, or the pieces a writer gathered. Out: a `LogDescription`, or the JSON text. Pure: no file is touched
here. The digest covers everything a batch depends on (contents, features, tables) and nothing else: not the folder's
path, not the Parquet compression, not where the raw log came from.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, cast, get_args

from foresee.errors import DataError
from foresee.io import bounded_json as json_fields

FORMAT_NAME = "foresee-click-log"
FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)
"""Version 1 has one label of 0 or 1 and no weights; such logs are still written as version 1."""

Pooling = Literal["one", "sum", "mean"]
LabelKind = Literal["binary", "number", "class"]
VocabularyKind = Literal["frequency", "hash", "none"]
RawType = Literal["text", "digits", "digits.0", "integer", "float32", "float64", "boolean", "other"]
TRANSFORMS = ("none", "log1p", "standard")
_FINITE = 1e300


class Table(NamedTuple):
    """A named range of rows. The order of tables is the order of row ids."""

    name: str
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One categorical feature: which table its ids point into and how several of them become one vector."""

    name: str
    table: str
    num_rows: int
    """Rows of the table; every local id is below this."""
    pooling: Pooling = "one"
    """`one`: exactly one id per sample. `sum`, `mean`: a bag of any number of ids."""
    ids_max: int = 1
    """The most ids one sample of the log has in this feature."""
    separator: str | None = None
    """What stood between the values of a text cell; None: a cell was one value, or a list."""
    missing_markers: tuple[str, ...] = ()
    """Texts that counted as missing, beside the empty one."""
    raw_type: RawType | None = None
    """What raw values were. Text: `digits` if all were whole numbers, `digits.0` if all were of the form 449818.0,
    otherwise `text`. Typed cells: `integer`, `float32`, `float64`, `boolean`, `other` (dates). None: not known."""

    @property
    def multi_valued(self) -> bool:
        return self.pooling != "one"


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFeature:
    """One dense feature and what was done to the raw number: serving has to do the same."""

    name: str
    transform: Literal["none", "log1p", "standard"] = "none"
    missing: float | None = None
    """What an empty cell counted as, before the transform."""
    mean: float = 0.0
    deviation: float = 1.0
    missing_markers: tuple[str, ...] = ()
    """Texts that counted as an empty cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLabel:
    """One label of every sample."""

    name: str = "label"
    kind: LabelKind = "binary"
    """`binary`: 0 or 1. `number`: any finite number. `class`: the number of a class, from 0 up."""
    classes: tuple[str, ...] = ()
    """What each class was called in the raw log."""
    optional: bool = False
    """It may be NaN: not known."""


CLICK_LABEL = LogLabel()
"""The label of a log that does not say anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """How raw values became the local ids of a table."""

    kind: VocabularyKind
    """`frequency` and `hash` keep local id 0 for unknown, rare and missing values; `none` has no unknown row."""
    file: str | None = None
    """Parquet of (id, value, count) inside the folder; only for `frequency`."""
    min_count: int = 1
    num_buckets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One Parquet file of a split."""

    file: str
    num_samples: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The parts of one split, in sample order, and the hash of what they hold."""

    parts: tuple[Part, ...]
    content: str

    @property
    def num_samples(self) -> int:
        return sum(part.num_samples for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDescription:
    """All of `log.json`."""

    features: tuple[Feature, ...]
    tables: tuple[Table, ...]
    dense: tuple[DenseFeature, ...]
    vocabularies: dict[str, Vocabulary]
    splits: dict[str, Split]
    row_group_samples: int
    best_auc: dict[str, float] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    labels: tuple[LogLabel, ...] = (CLICK_LABEL,)
    """In the order of a batch's labels."""
    sample_weights: bool = False
    """Whether samples have weights."""

    @property
    def version(self) -> int:
        """Of the format: what an older release would misread, it refuses."""
        plain = (
            len(self.labels) == 1 and self.labels[0] == LogLabel(name=self.labels[0].name) and not self.sample_weights
        )
        return 1 if plain else FORMAT_VERSION

    @property
    def digest(self) -> str:
        """Equal digests: equal samples in equal order, split by split."""
        identity: dict[str, Any] = {
            "version": self.version,
            "features": [[feature.name, feature.table, feature.pooling] for feature in self.features],
            "tables": [list(table) for table in self.tables],
            "dense": [dense.name for dense in self.dense],
            "splits": {name: [split.num_samples, split.content] for name, split in sorted(self.splits.items())},
            "row_group_samples": self.row_group_samples,
        }
        if self.version > 1:
            identity["labels"] = [
                [label.name, label.kind, list(label.classes), *(["optional"] if label.optional else [])]
                for label in self.labels
            ]
            identity["sample_weights"] = self.sample_weights
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        body = {
            "format": FORMAT_NAME,
            "version": self.version,
            "digest": self.digest,
            "features": [asdict(feature) for feature in self.features],
            "tables": [table._asdict() for table in self.tables],
            "dense": [asdict(dense) for dense in self.dense],
            "labels": [_without_defaults(label) for label in self.labels],
            "sample_weights": self.sample_weights,
            "vocabularies": {name: asdict(vocabulary) for name, vocabulary in self.vocabularies.items()},
            "splits": {name: {"num_samples": it.num_samples, **asdict(it)} for name, it in self.splits.items()},
            "row_group_samples": self.row_group_samples,
            "best_auc": self.best_auc,
            "source": self.source,
        }
        return json.dumps(body, indent=1) + "\n"


def parse_description(text: str, where: str) -> LogDescription:
    """The description in a `log.json`; `where` names the file in errors."""
    remedy = "prepare the log again"
    try:
        body = json_fields.parse(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.lineno}: this is not JSON ({error.msg}); {remedy}.") from None
    except ValueError as error:
        raise DataError(f"{where}: this is not JSON as we write it ({error}); {remedy}.") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise DataError(f'{where}: expected "format": "{FORMAT_NAME}", found something else; {remedy}.')
    if body.get("version") not in READABLE_VERSIONS:
        raise DataError(
            f"{where}: format version {json_fields.shown(body.get('version'))} is not {FORMAT_VERSION}, the one this "
            f"release reads; {remedy}."
        )
    try:
        description = _from_body(body)
    except ValueError as error:
        raise DataError(f"{where}: a field is missing or wrong ({error}); {remedy}.") from None
    _check(description, where)
    if body.get("digest") != description.digest:
        raise DataError(f"{where}: the digest does not match the other fields, so the file was edited; {remedy}.")
    return description


def _from_body(body: dict[str, Any]) -> LogDescription:
    return LogDescription(
        features=tuple(feature_from(entry) for entry in json_fields.objects(body, "features")),
        tables=tuple(_table(entry) for entry in json_fields.objects(body, "tables")),
        dense=tuple(dense_from(entry) for entry in json_fields.objects(body, "dense")),
        vocabularies=vocabularies_from(body),
        splits={
            name: _split(json_fields.object_of(body["splits"], name)) for name in json_fields.object_of(body, "splits")
        },
        row_group_samples=json_fields.whole(body, "row_group_samples", 1),
        best_auc={
            name: json_fields.number(body["best_auc"], name, 0.0, 1.0)
            for name in json_fields.object_of(body, "best_auc")
        },
        source=json_fields.object_of(body, "source"),
        labels=labels_from(body),
        sample_weights=bool(body.get("sample_weights", False)),
    )


def labels_from(content: dict[str, Any]) -> tuple[LogLabel, ...]:
    """The labels of a document, one of clicks if it has none; ValueError for anything else."""
    return tuple(_label(it) for it in json_fields.objects({"labels": [{"name": "label"}], **content}, "labels"))


def _label(content: dict[str, Any]) -> LogLabel:
    kind = json_fields.text_of({"kind": "binary", **content}, "kind")
    if kind not in get_args(LabelKind):
        raise ValueError(f"label {json_fields.shown(kind)} is none of {', '.join(get_args(LabelKind))}")
    classes = tuple(json_fields.texts({"classes": [], **content}, "classes"))
    if (kind == "class") != (len(classes) > 1):
        raise ValueError(f"a label of kind {kind} has {len(classes)} classes")
    optional = bool(json_fields.whole({"optional": 0, **content}, "optional", high=1))
    return LogLabel(
        name=json_fields.text_of(content, "name"), kind=cast("LabelKind", kind), classes=classes, optional=optional
    )  # fmt: skip


def _without_defaults(label: LogLabel) -> dict[str, Any]:
    """Logs of releases that knew no optional labels are as they were."""
    content = {**asdict(label), "optional": 1}
    return content if label.optional else {name: content[name] for name in content if name != "optional"}


def feature_from(content: dict[str, Any]) -> Feature:
    """A feature out of JSON; ValueError for anything else."""
    pooling = json_fields.text_of({"pooling": "one", **content}, "pooling")
    if pooling not in get_args(Pooling):
        raise ValueError(f"pooling {json_fields.shown(pooling)} is none of {', '.join(get_args(Pooling))}")
    raw_type = content.get("raw_type")
    if raw_type is not None and raw_type not in get_args(RawType):
        raise ValueError(f"raw_type {json_fields.shown(raw_type)} is none of {', '.join(get_args(RawType))}")
    return Feature(
        name=json_fields.text_of(content, "name"),
        table=json_fields.text_of(content, "table"),
        num_rows=json_fields.whole(content, "num_rows", 0, json_fields.LARGE_MAX),
        pooling=cast("Pooling", pooling),
        ids_max=json_fields.whole({"ids_max": 1, **content}, "ids_max"),
        separator=None if content.get("separator") is None else json_fields.text_of(content, "separator"),
        missing_markers=_markers(content),
        raw_type=raw_type,
    )


def dense_from(content: dict[str, Any]) -> DenseFeature:
    """A dense feature out of JSON; ValueError for anything else."""
    transform = json_fields.text_of({"transform": "none", **content}, "transform")
    if transform not in TRANSFORMS:
        raise ValueError(f"transform {json_fields.shown(transform)} is none of {', '.join(TRANSFORMS)}")
    numbers = {"mean": 0.0, "deviation": 1.0, **content}
    return DenseFeature(
        name=json_fields.text_of(content, "name"),
        transform=cast("Any", transform),
        missing=None if content.get("missing") is None else json_fields.number(content, "missing", -_FINITE, _FINITE),
        mean=json_fields.number(numbers, "mean", -_FINITE, _FINITE),
        deviation=json_fields.number(numbers, "deviation", -_FINITE, _FINITE),
        missing_markers=_markers(content),
    )


def _markers(content: dict[str, Any]) -> tuple[str, ...]:
    return tuple(json_fields.texts({"missing_markers": [], **content}, "missing_markers"))


def vocabularies_from(body: dict[str, Any]) -> dict[str, Vocabulary]:
    """The vocabularies of a document; ValueError for anything else."""
    entries = json_fields.object_of(body, "vocabularies")
    return {name: _vocabulary(json_fields.object_of(entries, name)) for name in entries}


def _vocabulary(content: dict[str, Any]) -> Vocabulary:
    kind = json_fields.text_of(content, "kind")
    if kind not in get_args(VocabularyKind):
        raise ValueError(f"vocabulary {json_fields.shown(kind)} is none of {', '.join(get_args(VocabularyKind))}")
    return Vocabulary(
        kind=cast("VocabularyKind", kind),
        file=None if content.get("file") is None else json_fields.file_name(content, "file"),
        min_count=json_fields.whole({"min_count": 1, **content}, "min_count", 0, json_fields.LARGE_MAX),
        num_buckets=json_fields.whole({"num_buckets": 0, **content}, "num_buckets"),
    )


def _table(content: dict[str, Any]) -> Table:
    return Table(json_fields.text_of(content, "name"), json_fields.whole(content, "num_rows", 0, json_fields.LARGE_MAX))


def _split(content: dict[str, Any]) -> Split:
    return Split(
        parts=tuple(_part(entry) for entry in json_fields.objects(content, "parts")),
        content=json_fields.text_of(content, "content"),
    )


def _part(content: dict[str, Any]) -> Part:
    return Part(
        file=json_fields.file_name(content, "file"),
        num_samples=json_fields.whole(content, "num_samples", 0, json_fields.LARGE_MAX),
        num_bytes=json_fields.whole(content, "num_bytes", 0, json_fields.LARGE_MAX),
    )


def _check(description: LogDescription, where: str) -> None:
    sizes = dict(description.tables)
    for feature in description.features:
        if feature.pooling not in get_args(Pooling):
            known = ", ".join(get_args(Pooling))
            raise DataError(
                f"{where}: feature {feature.name}: pooling {feature.pooling!r} is none of {known}; "
                "prepare the log again."
            )
        if sizes.get(feature.table) != feature.num_rows:
            found = sizes.get(feature.table)
            raise DataError(
                f"{where}: feature {feature.name}: table {feature.table} has {found} rows, not the "
                f"{feature.num_rows} the feature names; prepare the log again."
            )


LABEL_COLUMN = "label"
PROBABILITY_COLUMN = "true_probability"
WEIGHT_COLUMN = "sample_weight"


def label_columns(labels: tuple[LogLabel, ...]) -> list[str]:
    """Parquet columns of labels: the first is called the same in every log."""
    return [LABEL_COLUMN, *(f"{LABEL_COLUMN}:{label.name}" for label in labels[1:])]


def check_names(
    features: tuple[Feature, ...], dense: tuple[DenseFeature, ...], labels: tuple[LogLabel, ...] = (CLICK_LABEL,)
) -> None:
    """Feature names become Parquet columns, so they have to differ from each other and from ours."""
    ours = [*label_columns(labels), PROBABILITY_COLUMN, WEIGHT_COLUMN]
    names = [*ours, *(entry.name for entry in dense), *(feature.name for feature in features)]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"column {name!r} would stand twice in the prepared log; rename or leave out one of them.")
