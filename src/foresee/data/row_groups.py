"""Row groups of one split, decoded on demand.

In: row-group numbers of a split. Out: their samples, column by column, checked (ids inside their tables, dense values
finite). Keeps a few open files and nothing else; a log of any length costs the same memory.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from foresee.base.arrays import Int32, Int64
from foresee.data.samples import Ids, Samples, concatenate, offsets_of
from foresee.data.schema import DenseFeature, Feature, Split
from foresee.data.writer import LABEL_COLUMN
from foresee.errors import DataError

OPEN_FILES_MAX = 16


class RowGroups:
    """Reads row groups of one split by number, 0 to len(sizes) - 1. Not for use by two threads at once."""

    def __init__(
        self,
        folder: Path,
        split: Split,
        row_group_samples: int,
        features: tuple[Feature, ...],
        dense: tuple[DenseFeature, ...],
    ) -> None:
        self._folder, self._split, self._features, self._dense = folder, split, features, dense
        self._columns = [LABEL_COLUMN, *(entry.name for entry in dense), *(feature.name for feature in features)]
        self._files: OrderedDict[int, pq.ParquetFile] = OrderedDict()
        self.sizes, self._part_starts = row_group_sizes(split, row_group_samples)

    def read(self, numbers: Int64) -> Samples:
        """The samples of these row groups (ascending numbers), in order."""
        parts = np.searchsorted(self._part_starts, numbers, side="right") - 1
        return concatenate([self._read_part(int(part), numbers[parts == part]) for part in np.unique(parts)])

    def _read_part(self, part: int, numbers: Int64) -> Samples:
        name = self._split.parts[part].file
        local = (numbers - self._part_starts[part]).tolist()
        try:
            # One thread: the cores belong to training, and batches are made ahead of it anyway.
            table = self._file(part).read_row_groups(local, columns=self._columns, use_threads=False)
            samples = self._decode(table)
        except (pa.ArrowException, OSError, KeyError, IndexError, ValueError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise DataError(f"{self._folder / name}: cannot be read ({reason}); prepare the log again.") from None
        self._check(samples, name, int(self.sizes[numbers].sum()))
        return samples

    def _decode(self, table: pa.Table) -> Samples:
        labels = table.column(LABEL_COLUMN).to_numpy()
        dense = tuple(table.column(entry.name).to_numpy() for entry in self._dense)
        ids = tuple(_decode_ids(table.column(feature.name), feature) for feature in self._features)
        return Samples(labels, dense, ids)

    def _check(self, samples: Samples, name: str, num_expected: int) -> None:
        where = self._folder / name
        if samples.num_samples != num_expected:
            raise DataError(
                f"{where}: expected {num_expected} samples in the row groups read, found "
                f"{samples.num_samples}; prepare the log again."
            )
        for entry, column in zip(self._dense, samples.dense, strict=True):
            if not np.isfinite(column).all():
                raise DataError(f"{where}: column {entry.name}: a value is NaN or infinite; prepare the log again.")
        for feature, ids in zip(self._features, samples.ids, strict=True):
            low, high = (int(ids.values.min()), int(ids.values.max())) if len(ids.values) else (0, 0)
            if low < 0 or high >= feature.num_rows:
                found = low if low < 0 else high
                raise DataError(
                    f"{where}: column {feature.name}: id {found} is outside table {feature.table} of "
                    f"{feature.num_rows} rows; prepare the log again."
                )

    def _file(self, part: int) -> pq.ParquetFile:
        if part in self._files:
            self._files.move_to_end(part)
            return self._files[part]
        if len(self._files) == OPEN_FILES_MAX:
            self._files.popitem(last=False)[1].close()
        self._files[part] = pq.ParquetFile(self._folder / self._split.parts[part].file)
        return self._files[part]


def row_group_sizes(split: Split, row_group_samples: int) -> tuple[Int64, Int64]:
    """Samples of every row group of the split, and the number of the first row group of every part."""
    sizes: list[int] = []
    starts = []
    for part in split.parts:
        starts.append(len(sizes))
        full, rest = divmod(part.num_samples, row_group_samples)
        sizes += [row_group_samples] * full + [rest] * (rest > 0)
    return np.array(sizes, np.int64), np.array(starts, np.int64)


def _decode_ids(column: pa.ChunkedArray, feature: Feature) -> Ids:
    if not feature.multi_valued:
        return Ids(column.to_numpy())
    pieces = [Ids(_flat(chunk), chunk.offsets.to_numpy().astype(np.int64)) for chunk in column.chunks]
    lengths = [np.diff(piece.offsets) for piece in pieces if piece.offsets is not None]
    return Ids(np.concatenate([piece.values for piece in pieces]), offsets_of(np.concatenate(lengths)))


def _flat(chunk: pa.ListArray) -> Int32:
    # flatten() honours slicing, unlike .values
    return chunk.flatten().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
