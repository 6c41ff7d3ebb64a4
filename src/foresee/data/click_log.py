"""A prepared click log: the folder that `prepare`, `synthetic` and `tiny` write, or a URL that has the same files.

In: its path or URL. Out: what the log holds (features, tables, splits) and streams of its batches. Opening reads
`log.json` and looks at file sizes only; samples are read when batches are asked for. Never writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from foresee.data.batch import Pooling
from foresee.data.log_folder import check_parts, folder_of
from foresee.data.samples import Samples
from foresee.data.schema import DenseFeature, Feature, LogDescription, LogLabel, Table, Vocabulary, parse_description
from foresee.data.stream import LogStream, RowGroups, StreamOptions
from foresee.data.writer import DESCRIPTION_FILE, hash_contents
from foresee.errors import DataError, UsageError
from foresee.io.urls import place


class ClickLog:
    """A prepared log, opened with `ClickLog.open`. Row ids are global: the offset of the table + the local id.

    Args:
        path: The folder, or its URL.
        description: What its `log.json` says.
    """

    def __init__(self, path: Path | str, description: LogDescription) -> None:
        self.folder = folder_of(path)
        """Its files."""
        self.place = place(path)
        """Its folder, or its URL."""
        self.description = description
        starts = accumulate((table.num_rows for table in description.tables), initial=0)
        self.table_offsets: dict[str, int] = dict(zip((table.name for table in self.tables), starts, strict=False))
        """The first row id of every table."""

    @classmethod
    def open(cls, path: str | Path) -> ClickLog:
        """Opens a prepared log; `foresee prepare` makes one.

        Args:
            path: The folder that `foresee prepare` wrote, or a URL such as s3://bucket/logs/1, to which it was copied.

        Returns:
            The log. Samples are read when batches are asked for.

        Raises:
            DataError: There is no log, it is of another release, or a part of it is missing or has another length.
        """
        folder = folder_of(path)
        file = f"{folder.place}/{DESCRIPTION_FILE}"
        try:
            content = folder.text(DESCRIPTION_FILE)
            text = None if content is None else content.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{file}: cannot be read ({error}); check its permissions or prepare again.") from None
        if text is None:
            raise DataError(
                f"{folder.place}: no prepared log is here ({DESCRIPTION_FILE} is missing); make one with "
                "`foresee prepare` or give another path."
            )
        log = cls(path, parse_description(text, file))
        check_parts(folder, [part for split in log.description.splits.values() for part in split.parts])
        return log

    @property
    def path(self) -> Path:
        """Its folder.

        Raises:
            UsageError: It is at a URL.
        """
        if isinstance(self.place, Path):
            return self.place
        raise UsageError(f"{self.folder.place} is no folder of this machine; use `place`.")

    @property
    def features(self) -> tuple[Feature, ...]:
        """Categorical features in the order of a batch's bags."""
        return self.description.features

    @property
    def dense(self) -> tuple[DenseFeature, ...]:
        """Dense features in the order of a batch's columns."""
        return self.description.dense

    @property
    def labels(self) -> tuple[LogLabel, ...]:
        """In the order of a batch's labels; one of them is the ordinary case."""
        return self.description.labels

    @property
    def dense_names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.description.dense)

    @property
    def tables(self) -> tuple[Table, ...]:
        """(name, num_rows) of every table, in row-id order."""
        return self.description.tables

    @property
    def mean_features(self) -> tuple[bool, ...]:
        """For each categorical feature: is its bag averaged (True) or summed (False)?"""
        return tuple(feature.pooling == "mean" for feature in self.features)

    @property
    def feature_tables(self) -> tuple[int, ...]:
        """For each categorical feature: which of the tables it looks up."""
        places = {table.name: place for place, table in enumerate(self.tables)}
        return tuple(places[feature.table] for feature in self.features)

    @property
    def pooling(self) -> Pooling:
        """What becomes of the bags of each feature."""
        return Pooling.of(self.mean_features, tables=self.feature_tables)

    @property
    def multi_valued(self) -> bool:
        """Does any feature hold bags? If not, batches have no `bag_offsets`."""
        return any(feature.multi_valued for feature in self.features)

    @property
    def num_rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def num_features(self) -> int:
        return len(self.features)

    @property
    def num_dense(self) -> int:
        return len(self.description.dense)

    @property
    def split_sizes(self) -> dict[str, int]:
        """Samples of every split that is not empty."""
        return {name: split.num_samples for name, split in self.description.splits.items()}

    @property
    def best_auc(self) -> dict[str, float]:
        """Per split: the AUC of someone who knows the planted model. Empty unless the log is synthetic."""
        return self.description.best_auc

    @property
    def digest(self) -> str:
        return self.description.digest

    @property
    def vocabularies(self) -> dict[str, Vocabulary]:
        """Per table: how raw values became ids."""
        return self.description.vocabularies

    def vocabulary(self, table: str) -> Any:
        """How the raw values of one table became ids.

        Args:
            table: Its name.

        Returns:
            A pyarrow Table (id, value, count); None if values were hashed, or were ids already.

        Raises:
            UsageError: There is no such table.
            DataError: The vocabulary's file cannot be read.
        """
        if table not in self.vocabularies:
            raise UsageError(f"the log has no table {table!r}; it has {', '.join(self.vocabularies)}.")
        file = self.vocabularies[table].file
        if file is None:
            return None
        try:
            return self.folder.table(file)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0][:200]
            raise DataError(f"{self.folder.place}/{file}: cannot be read ({reason}); prepare the log again.") from None

    def batches(
        self,
        *,
        batch_size: int,
        seed: int = 0,
        epochs: int = 1,
        split: str = "train",
        shuffle: bool = True,
        drop_last: bool = True,
        shuffle_samples: int = 131_072,
    ) -> LogStream:
        """A stream of batches. To evaluate: split="valid", shuffle=False, drop_last=False.

        Args:
            batch_size: Samples of a batch.
            seed: Of the order; the same seed gives the same batches.
            epochs: How often the split is read, each time in another order.
            split: train, valid or test.
            shuffle: Whether samples are shuffled; if not, they come as they are stored.
            drop_last: Whether the samples of an epoch that do not fill a batch are left out.
            shuffle_samples: How many samples are shuffled together; they are in memory meanwhile.

        Returns:
            A `BatchStream`, which can be read from any step on.

        Raises:
            DataError: The log has no such split, or too few samples for a batch.
        """
        options = StreamOptions(
            batch_size=batch_size,
            seed=seed,
            epochs=epochs,
            split=split,
            shuffle=shuffle,
            drop_last=drop_last,
            shuffle_samples=shuffle_samples,
        )
        return LogStream(
            self._row_groups(split),
            log_digest=self.digest,
            num_rows=self.num_rows,
            table_offsets=[self.table_offsets[feature.table] for feature in self.features],
            options=options,
        )

    def samples(self, split: str = "train") -> Iterator[Samples]:
        """The split as it is stored, row group by row group.

        Args:
            split: train, valid or test.

        Yields:
            The samples of one row group.
        """
        row_groups = self._row_groups(split)
        for number in range(len(row_groups.sizes)):
            yield row_groups.read(np.array([number]))

    def check(self) -> None:
        """Reads everything and compares it with the digest.

        Raises:
            DataError: A part was changed.
        """
        for name, split in self.description.splits.items():
            content = hashlib.blake2b(digest_size=32)
            for samples in self.samples(name):
                hash_contents(content, samples)
            if content.hexdigest() != split.content:
                raise DataError(
                    f"{self.folder.place}: the {name} split is not what was written; prepare the log again."
                )

    def _row_groups(self, split: str) -> RowGroups:
        if split not in self.description.splits:
            has = ", ".join(self.description.splits) or "none"
            raise DataError(
                f"{self.folder.place}: the log has no {split!r} split (it has: {has}); "
                "name one of these or prepare again with a larger share for it."
            )
        return RowGroups(folder_of(self.place), self.description.splits[split], self.description)
