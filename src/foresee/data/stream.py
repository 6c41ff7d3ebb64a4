"""Batches of a prepared log by step: batch t is a pure function of (log, seed, epoch, t).

In: a log's row groups and the order of `order.py`. Out: `Batch`es from any step on. Decodes only the shuffle groups
that a batch lies in and keeps the last few of them, so memory depends on `shuffle_samples` and never on the log.
Several threads may read one stream (a planner ahead, a trainer behind): they share the decoded groups.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from threading import Lock

from foresee.data.batch import Batch
from foresee.data.order import EpochOrder, epoch_order
from foresee.data.row_groups import RowGroups
from foresee.data.samples import Assembled, assemble, cut
from foresee.errors import DataError, UsageError

GROUPS_KEPT = 3
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
        self._lock = Lock()
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
        with self._lock:
            order = self._order(epoch)
            pieces = [(self._group(order, piece.group), piece.start, piece.stop) for piece in order.pieces(start, stop)]
        return cut(pieces, step)

    def _order(self, epoch: int) -> EpochOrder:
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
        key = (order.epoch, group)
        if key in self._groups:
            self._groups.move_to_end(key)
            return self._groups[key]
        if len(self._groups) == GROUPS_KEPT:
            self._groups.popitem(last=False)  # before decoding: never more than GROUPS_KEPT at once
        samples = self._row_groups.read(order.row_groups[group])
        self._groups[key] = assemble(samples, self._table_offsets, order.within(group))
        return self._groups[key]
