"""What each worker's samples touch, for the planners that are there to be compared with.

In: the touches of a step and a placement. Out: for each worker a `Share`. Rows are numbered in order of first touch, so
that those planners can keep arrays over all rows of the trace: their memory grows with the trace, which our own must
not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foresee.plan.record import Int32, Int64, Touches
from foresee.plan.row_table import NO_SLOT, RowTable, checksum_of


class Numbering:
    """Numbers for rows: 0 for the first one touched, then 1, ..."""

    def __init__(self, num_rows: int) -> None:
        self.rows = np.empty(0, np.int64)
        """The row of each number."""
        self._table = RowTable(num_rows=num_rows, fresh_version=0)

    def number(self, rows: Int64, step: int) -> Int64:
        """The number of each row; new rows get new ones."""
        batch = self._table.deduplicate(rows, stamp=step)
        numbers = self._table.slots_of(batch.rows)
        fresh = np.flatnonzero(numbers == NO_SLOT)
        numbers[fresh] = np.arange(len(self.rows), len(self.rows) + len(fresh))
        self._table.assign(batch.rows[fresh], numbers[fresh])
        self.rows = np.concatenate([self.rows, batch.rows[fresh]])
        return numbers[batch.inverse].astype(np.int64)


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a step that one worker trains."""

    samples: Int32
    distinct: Int64
    """Numbers of its distinct rows, in order of first touch."""
    inverse: Int32
    """For each lookup, the position in `distinct`."""
    digest: int

    @property
    def occurrences(self) -> Int64:
        """How often each distinct row is looked up."""
        return np.bincount(self.inverse, minlength=len(self.distinct)).astype(np.int64)


def shares_of(touches: Touches, numbers: Int64, placed: Int32, num_workers: int) -> list[Share]:
    """Splits a step; `numbers` are those of its lookups, `placed` is the worker of each sample."""
    worker_of_lookup = np.repeat(placed, np.diff(touches.sample_offsets))
    shares = []
    for worker in range(num_workers):
        mine = np.flatnonzero(worker_of_lookup == worker)
        distinct, inverse = distinct_in_order(numbers[mine])
        samples = np.flatnonzero(placed == worker).astype(np.int32)
        shares.append(Share(samples, distinct, inverse, checksum_of(touches.rows[mine])))
    return shares


def distinct_in_order(numbers: Int64) -> tuple[Int64, Int32]:
    """The distinct ones in order of first touch, and for each lookup its position among them."""
    ascending, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    position = np.empty(len(order), np.int32)
    position[order] = np.arange(len(order))
    return ascending[order], position[inverse]


def users_of(shares: list[Share]) -> tuple[Int64, Int64]:
    """The distinct rows of the whole step, ascending, and the users of each: bit w for worker w."""
    everything = np.concatenate([share.distinct for share in shares])
    bits = np.concatenate([np.full(len(share.distinct), 1 << worker) for worker, share in enumerate(shares)])
    distinct, inverse = np.unique(everything, return_inverse=True)
    users = np.zeros(len(distinct), np.int64)
    np.bitwise_or.at(users, inverse, bits)
    return distinct, users
