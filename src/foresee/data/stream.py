"""Batches of a prepared log by step: batch t is a pure function of (log, seed, epoch, t).

In: the Parquet parts of a split and the order of `order.py`. Out: `Batch`es from any step on. `RowGroups` decodes and
checks row groups by number (ids inside their tables, dense values finite), from a folder or a URL. `LogStream` decodes
only the shuffle groups that a batch lies in, says which come next, and keeps the last few, so memory depends on
`shuffle_samples` and never on the log. Several threads may read one stream (a planner ahead, a trainer behind): they
share the decoded groups.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from threading import Lock

import numpy as np
import pyarrow as pa

from foresee.arrays import Int32, Int64
from foresee.data.batch import Batch
from foresee.data.log_folder import LogFolder, Wanted
from foresee.data.order import EpochOrder, epoch_order
from foresee.data.samples import Assembled, Ids, Samples, assemble, concatenate, cut, offsets_of
from foresee.data.schema import WEIGHT_COLUMN, Feature, LogDescription, Split, label_columns
from foresee.errors import DataError, UsageError


class RowGroups:
    """Reads row groups of one split by number, 0 to len(sizes) - 1. Not for use by two threads at once."""

    def __init__(self, folder: LogFolder, split: Split, log: LogDescription) -> None:
        self._folder, self._split = folder, split
        self._features, self._dense, self._labels = log.features, log.dense, log.labels
        self._weighted = [WEIGHT_COLUMN] if log.sample_weights else []
        names = (*(entry.name for entry in log.dense), *(feature.name for feature in log.features))
        self._columns = [*label_columns(log.labels), *names, *self._weighted]
        self.sizes, self._part_starts = row_group_sizes(split, log.row_group_samples)

    def read(self, numbers: Int64) -> Samples:
        """The samples of these row groups (ascending numbers), in order."""
        wanted = self._wanted(numbers)
        self._folder.expect(wanted)
        return concatenate([self._read_part(it) for it in wanted])

    def expect(self, several: Iterable[Int64]) -> None:
        """These will be read soon, in this order."""
        self._folder.expect([wanted for numbers in several for wanted in self._wanted(numbers)])

    def _wanted(self, numbers: Int64) -> list[Wanted]:
        """The same row groups by part."""
        found, parts = [], np.searchsorted(self._part_starts, numbers, side="right") - 1
        for index in np.unique(parts).tolist():
            part, inside = self._split.parts[index], numbers[parts == index]
            share = self.sizes[inside].sum() / part.num_samples
            local = tuple((inside - self._part_starts[index]).tolist())
            found.append(Wanted(part, local, int(share * part.num_bytes)))
        return found

    def _read_part(self, wanted: Wanted) -> Samples:
        name = wanted.part.file
        try:
            # One thread: the cores belong to training, and batches are made ahead of it anyway.
            table = self._folder.parquet(wanted).read_row_groups(
                list(wanted.row_groups), columns=self._columns, use_threads=False
            )
            samples = self._decode(table)
        except (pa.ArrowException, OSError, KeyError, IndexError, ValueError, TypeError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)[:200]
            raise DataError(f"{self._folder.place}/{name}: cannot be read ({reason}); prepare the log again.") from None
        first = self._part_starts[self._split.parts.index(wanted.part)]
        self._check(samples, name, int(self.sizes[first + np.array(wanted.row_groups)].sum()))
        return samples

    def _decode(self, table: pa.Table) -> Samples:
        labels = [table.column(name).to_numpy() for name in label_columns(self._labels)]
        weights = [table.column(name).to_numpy() for name in self._weighted]
        dense = tuple(table.column(entry.name).to_numpy() for entry in self._dense)
        ids = tuple(_decode_ids(table.column(feature.name), feature) for feature in self._features)
        together = labels[0] if len(labels) == 1 else np.stack(labels, axis=1)
        return Samples(together, dense, ids, weights=weights[0] if weights else None)

    def _check(self, samples: Samples, name: str, num_expected: int) -> None:
        where = f"{self._folder.place}/{name}"
        if samples.num_samples != num_expected:
            raise DataError(
                f"{where}: expected {num_expected} samples in the row groups read, found "
                f"{samples.num_samples}; prepare the log again."
            )
        self._check_labels(samples, where)
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

    def _check_labels(self, samples: Samples, where: str) -> None:
        for label, column in zip(self._labels, samples.labels.reshape(samples.num_samples, -1).T, strict=True):
            wrong = ~np.isfinite(column)
            if label.kind == "class":
                wrong |= (column < 0) | (column >= len(label.classes)) | (column != np.floor(column))
            if label.optional:
                wrong &= ~np.isnan(column)
            if wrong.any():
                raise DataError(
                    f"{where}: label {label.name}: found {column[np.argmax(wrong)]:g}, which is none; prepare the log "
                    "again."
                )
        if samples.weights is not None and not (np.isfinite(samples.weights) & (samples.weights >= 0)).all():
            raise DataError(f"{where}: a sample weight is negative, NaN or infinite; prepare the log again.")


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


GROUPS_KEPT = 3
GROUPS_AHEAD = 2
"""That are fetched, where that takes time, while this one is used."""
ORDER_VERSION = 1
"""Raised when `order.py` gives another order for the same seed: old plans must not match new batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Which samples, in which order, in batches of which size."""

    batch_size: int
    seed: int = 0
    epochs: int = 1
    split: str = "train"
    shuffle: bool = True
    drop_last: bool = True
    """Leave out the samples at the end of an epoch that do not fill a batch."""
    shuffle_samples: int = 131_072
    """Samples that are decoded and mixed together. More mixes better and takes more memory."""

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("seed", 0), ("epochs", 1), ("shuffle_samples", 1)):
            value = getattr(self, name)
            if value < least:
                raise DataError(f"{name}={value} is too small; give {least} or more.")


class LogStream:
    """The batches of one split of a log. A `BatchStream`."""

    def __init__(
        self,
        row_groups: RowGroups,
        *,
        log_digest: str,
        num_rows: int,
        table_offsets: Sequence[int],
        options: StreamOptions,
    ) -> None:
        self.options = options
        self.num_rows = num_rows
        self._row_groups = row_groups
        self._log_digest = log_digest
        self._table_offsets = table_offsets
        self._samples_per_epoch = int(row_groups.sizes.sum())
        self._lock, self._reading = Lock(), Lock()
        """Of what is kept here; of the row groups, which one thread reads at a time."""
        self._orders: OrderedDict[int, EpochOrder] = OrderedDict()
        self._groups: OrderedDict[tuple[int, int], Assembled] = OrderedDict()
        if self.num_steps == 0:
            num = self._samples_per_epoch
            raise DataError(
                f"the {options.split} split has {num} samples, fewer than one batch of {options.batch_size}; "
                f"lower train.batch_size to at most {num} (--set train.batch_size={num}), or in Python keep the last "
                "batch with drop_last=False."
            )

    @property
    def steps_per_epoch(self) -> int:
        full, rest = divmod(self._samples_per_epoch, self.options.batch_size)
        return full + (rest > 0 and not self.options.drop_last)

    @property
    def num_steps(self) -> int:
        return self.steps_per_epoch * self.options.epochs

    @property
    def num_samples(self) -> int:
        """Samples of all steps together, counted once per epoch."""
        full = self.steps_per_epoch * self.options.batch_size
        return min(self._samples_per_epoch, full) * self.options.epochs

    @property
    def digest(self) -> str:
        identity = {"log": self._log_digest, "order": ORDER_VERSION, **asdict(self.options)}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    @property
    def order_digest(self) -> str:
        """Of log and order, however many epochs there are: more of them only add steps."""
        identity = {"log": self._log_digest, "order": ORDER_VERSION, **asdict(self.options), "epochs": None}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def batches(self, first_step: int = 0) -> Iterator[Batch]:
        """All batches from `first_step` on."""
        if not 0 <= first_step <= self.num_steps:
            raise UsageError(f"step {first_step} is not one of the stream's {self.num_steps} steps.")
        for step in range(first_step, self.num_steps):
            yield self.batch(step)

    def batch(self, step: int) -> Batch:
        """The batch of one step; any step may be asked for, in any order."""
        if not 0 <= step < self.num_steps:
            raise UsageError(f"step {step} is not one of the stream's {self.num_steps} steps.")
        epoch, within = divmod(step, self.steps_per_epoch)
        start = within * self.options.batch_size
        stop = min(start + self.options.batch_size, self._samples_per_epoch)
        order = self._order(epoch)
        pieces = [(self._group(order, piece.group), piece.start, piece.stop) for piece in order.pieces(start, stop)]
        return cut(pieces, step)

    def _order(self, epoch: int) -> EpochOrder:
        with self._lock:
            if epoch not in self._orders:
                options = self.options
                self._orders[epoch] = epoch_order(
                    self._row_groups.sizes,
                    shuffle_samples=options.shuffle_samples,
                    seed=options.seed,
                    epoch=epoch,
                    shuffle=options.shuffle,
                )
                if len(self._orders) > 2:
                    self._orders.popitem(last=False)
            return self._orders[epoch]

    def _group(self, order: EpochOrder, group: int) -> Assembled:
        """Whoever finds a group decoded does not wait for another thread that reads one, maybe over a network."""
        key = (order.epoch, group)
        if (found := self._decoded(key)) is not None:
            return found
        with self._reading:
            if (found := self._decoded(key)) is not None:  # by the other thread, meanwhile
                return found
            with self._lock:
                if len(self._groups) == GROUPS_KEPT:
                    self._groups.popitem(last=False)  # before decoding: never more than GROUPS_KEPT at once
            samples = self._row_groups.read(order.row_groups[group])
            self._row_groups.expect(self._next_groups(order, group))
            made = assemble(samples, self._table_offsets, order.within(group))
            with self._lock:
                self._groups[key] = made
            return made

    def _decoded(self, key: tuple[int, int]) -> Assembled | None:
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
            return self._groups.get(key)

    def _next_groups(self, order: EpochOrder, group: int) -> Sequence[Int64]:
        """Row groups of the shuffle groups after this one; after the last of an epoch comes the next epoch."""
        after = order.row_groups[group + 1 : group + 1 + GROUPS_AHEAD]
        return after if after or order.epoch + 1 == self.options.epochs else self._order(order.epoch + 1).row_groups[:1]
