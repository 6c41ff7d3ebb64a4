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

FORMAT_NAME = "foresee-click-log"
FORMAT_VERSION = 1

Pooling = Literal["one", "sum", "mean"]
VocabularyKind = Literal["frequency", "hash", "none"]


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

    @property
    def digest(self) -> str:
        """Equal digests: equal samples in equal order, split by split."""
        identity = {
            "version": FORMAT_VERSION,
            "features": [[feature.name, feature.table, feature.pooling] for feature in self.features],
            "tables": [list(table) for table in self.tables],
            "dense": [dense.name for dense in self.dense],
            "splits": {name: [split.num_samples, split.content] for name, split in sorted(self.splits.items())},
            "row_group_samples": self.row_group_samples,
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        body = {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "digest": self.digest,
            "features": [asdict(feature) for feature in self.features],
            "tables": [table._asdict() for table in self.tables],
            "dense": [asdict(dense) for dense in self.dense],
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
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}:{error.lineno}: this is not JSON ({error.msg}); {remedy}.") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT_NAME:
        raise DataError(f'{where}: expected "format": "{FORMAT_NAME}", found something else; {remedy}.')
    if body.get("version") != FORMAT_VERSION:
        raise DataError(
            f"{where}: format version {body.get('version')} is not {FORMAT_VERSION}, the one this release "
            f"reads; {remedy}."
        )
    try:
        description = _from_body(body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{where}: a field is missing or wrong ({error!r}); {remedy}.") from None
    _check(description, where)
    if body.get("digest") != description.digest:
        raise DataError(f"{where}: the digest does not match the other fields, so the file was edited; {remedy}.")
    return description


def _from_body(body: dict[str, Any]) -> LogDescription:
    return LogDescription(
        features=tuple(Feature(**entry) for entry in body["features"]),
        tables=tuple(Table(str(entry["name"]), int(entry["num_rows"])) for entry in body["tables"]),
        dense=tuple(DenseFeature(**entry) for entry in body["dense"]),
        vocabularies={name: Vocabulary(**entry) for name, entry in body["vocabularies"].items()},
        splits={
            name: Split(parts=tuple(Part(**part) for part in entry["parts"]), content=entry["content"])
            for name, entry in body["splits"].items()
        },
        row_group_samples=int(body["row_group_samples"]),
        best_auc={name: float(value) for name, value in body["best_auc"].items()},
        source=cast("dict[str, Any]", body["source"]),
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


def check_names(features: tuple[Feature, ...], dense: tuple[DenseFeature, ...]) -> None:
    """Feature names become Parquet columns, so they have to differ from each other and from ours."""
    names = ["label", "true_probability", *(entry.name for entry in dense), *(feature.name for feature in features)]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"column {name!r} would stand twice in the prepared log; rename or leave out one of them.")
