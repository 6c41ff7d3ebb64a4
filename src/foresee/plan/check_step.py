"""What every record must be, whatever its protocol: the part that both checkers share.

In: the accesses of a step, the records of all workers, and which row each slot read holds. Out: what is wrong.
A record's samples, lookups, distinct slots and digest follow from the accesses alone, so they are compared, not played.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from foresee.base.arrays import Int64
from foresee.plan.record import NOT_KNOWN, Accesses, Evict, Fetch, Header, Record
from foresee.plan.row_table import checksum_of


def faults_of_step(step: int, accesses: Accesses, records: list[Record]) -> Iterator[str]:
    """What is wrong with the records of a step as a whole: their order, and who trains which samples."""
    for worker, record in enumerate(records):
        if (record.step, record.worker) != (step, worker):
            yield f"record of step {record.step}, worker {record.worker} stands where step {step} is due"
    placed = np.concatenate([record.samples for record in records])
    if not np.array_equal(np.sort(placed), np.arange(accesses.num_samples)):
        yield f"step {step}: the samples are not each trained exactly once"
    loads = [len(record.samples) for record in records]
    if max(loads) - min(loads) > 1:
        yield f"step {step}: the workers train {loads} samples, which differ by more than one"


def faults_of_lookups(step: int, accesses: Accesses, record: Record, found: Int64) -> Iterator[str]:
    """What is wrong with the lookups of one worker. `found`: the row in each slot of `unique`, -1 for none."""
    expected = rows_of(accesses, record)
    if len(np.unique(record.unique)) != len(record.unique):
        yield f"step {step}: a slot stands twice in `unique`"
    # NumPy counts a negative position from the end; kernels read what lies before the array.
    inside = not len(record.inverse) or 0 <= record.inverse.min() <= record.inverse.max() < len(found)
    if not inside:
        yield f"step {step}: `inverse` has positions outside the {len(found)} of `unique`"
    if len(record.inverse) != len(expected) or not (inside and np.array_equal(found[record.inverse], expected)):
        yield f"step {step}: the lookups do not find their own rows"
    untouched = np.setdiff1d(found[found >= 0], expected)
    if len(untouched):
        yield f"step {step}, row {untouched[0]}: worker {record.worker} has it in `unique`, but no sample touches it"
    if record.digest != checksum_of(expected):
        yield f"step {step}: the digest of worker {record.worker} is {record.digest}, its lookups have another"


class StatedUses:
    """What evictions said of the next use of their rows, held against the steps that follow."""

    def __init__(self) -> None:
        self._stated: dict[int, tuple[int, int]] = {}
        """Of each row that left with a known next use: after which step it left, and that use."""

    def leave(self, step: int, evict: Evict) -> Iterator[str]:
        """Rows leave after a step, each with the step of its next use."""
        if len(evict.next_use) not in (0, len(evict)):
            yield f"step {step}: {len(evict)} rows are evicted with {len(evict.next_use)} next uses"
            return
        for row, use in zip(evict.row.tolist(), evict.next_use.tolist(), strict=False):
            if use != NOT_KNOWN:
                self._stated[row] = (step, use)

    def use(self, step: int, accesses: Accesses) -> Iterator[str]:
        """A step uses its rows."""
        for row in np.unique(accesses.rows).tolist() if self._stated else ():
            left, use = self._stated.pop(row, (step, step))
            if use != step:
                yield f"step {left}, row {row}: evicted as used next in step {use}, but step {step} uses it"

    def finish(self, end: int) -> Iterator[str]:
        """The trace has ended before step `end`; what lies after it nobody can tell."""
        for row, (left, use) in self._stated.items():
            if use < end:
                yield f"step {left}, row {row}: evicted as used next in step {use}, which does not use it"


def faults_of_fetch(step: int, fetch: Fetch, not_before: int, header: Header) -> Iterator[str]:
    """What is wrong with reading these rows for this step, wherever they go."""
    if not step - 1 - header.fetch_ahead_steps <= not_before < step:
        yield f"step {step}: its fetch is issued after step {not_before}: too late, or too far ahead"
    for row in fetch.row[(fetch.row < 0) | (fetch.row >= header.num_rows)].tolist():
        yield f"step {step}, row {row}: fetched, but the tables have rows 0 to {header.num_rows - 1}"


def rows_of(accesses: Accesses, record: Record) -> Int64:
    """The rows of the record's samples, lookup by lookup."""
    offsets = accesses.sample_offsets
    return np.concatenate(
        [np.empty(0, np.int64)] + [accesses.rows[offsets[i] : offsets[i + 1]] for i in record.samples.tolist()]
    )
