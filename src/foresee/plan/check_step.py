"""What both checkers share: how a plan is played, and what every record must be, whatever its protocol.

In: the accesses of a step, the records of all workers, and which row each slot read holds. Out: what is wrong.
A record's samples, lookups, distinct slots and digest follow from the accesses alone, so they are compared, not played.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import islice
from typing import Protocol

import numpy as np

from foresee.arrays import Int64
from foresee.errors import PlanError, PlanViolation
from foresee.plan.record import NOT_KNOWN, Accesses, Counters, Evict, Fetch, Header, Record, compared_parts
from foresee.plan.row_table import checksum_of

VIOLATIONS_MAX = 20
NEVER = -1


@dataclass(slots=True)
class Verdict:
    """What the checker found."""

    counters: Counters = field(default_factory=Counters)
    stale_reads: int = 0
    """Rows read without all earlier updates."""
    missing_updates: int = 0
    """Of stale reads, where plans allow them: (worker, step) updates that a read did not see, summed."""
    missing_updates_max: int = 0
    violations: list[str] = field(default_factory=list)
    """The first few, in words."""
    num_violations: int = 0

    @property
    def right(self) -> bool:
        return self.num_violations == 0

    def require(self) -> None:
        """Raises PlanViolation unless the plan is right."""
        if not self.right:
            shown = "; ".join(self.violations[:3])
            raise PlanViolation(f"the plan breaks {self.num_violations} rules, first: {shown}")


class Game(Protocol):
    """A plan being played by some protocol's rules."""

    def wrong(self, what: str) -> None: ...

    def play(self, step: int, accesses: Accesses, records: list[Record]) -> None: ...

    def finish(self, promised: Counters | None) -> Verdict: ...


def walk(
    game: Game, header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None
) -> Verdict:
    """Play all steps."""
    for _ in played(game, header, trace, records):
        pass
    return game.finish(counters)


def played(game: Game, header: Header, trace: Iterable[Accesses], records: Iterable[Record]) -> Iterator[list[Record]]:
    """Play step after step, and yield the records of each; every step needs one of each worker."""
    remaining: Iterator[Record] = iter(records)
    num_steps = 0
    for step, accesses in enumerate(trace, start=header.first_step):
        mine = list(islice(remaining, header.num_workers))
        if len(mine) < header.num_workers:
            game.wrong(f"step {step} has no record")
            return
        require_form(step, accesses, mine, header.num_workers)
        game.play(step, accesses, mine)
        num_steps += 1
        yield mine
    if next(remaining, None) is not None:
        game.wrong(f"the plan has more records than the {num_steps} steps of the trace")


def require_form(step: int, accesses: Accesses, records: list[Record], num_workers: int) -> None:
    """Raise PlanError for records that cannot be played at all, because they name nothing that exists."""
    for record in records:
        where = f"step {step}, worker {record.worker}"
        if not 0 <= record.worker < num_workers:
            raise PlanError(f"step {step}: a record is of worker {record.worker}, the plan has {num_workers} workers")
        parts = (record.fetch, record.recv, record.send, *compared_parts(record))
        lengths = [{len(getattr(part, it.name)) for it in fields(part)} for part in parts]
        lengths.append({len(record.evict.slot), len(record.evict.row), len(record.evict.version)})
        if any(len(different) > 1 for different in lengths):
            raise PlanError(f"{where}: its columns of rows and slots have different lengths")
        found = record.samples
        if len(found) and not 0 <= found.min() <= found.max() < accesses.num_samples:
            raise PlanError(
                f"{where}: samples holds {found.min()} to {found.max()}, the batch has samples 0 to "
                f"{accesses.num_samples - 1}"
            )


class SlotRanges:
    """Which slots each row may use: those of its row group, or all of them where there are no groups."""

    def __init__(self, header: Header) -> None:
        ranges: list[tuple[int, int, int]] = []  # (first row after a table, first slot, first slot after its group)
        first_slot = 0
        for group in header.groups:
            end_slot = first_slot + group.capacity_rows
            ranges += [(first + size, first_slot, end_slot) for first, size in group.tables]
            first_slot = end_slot
        ranges = sorted(ranges) or [(header.num_rows, 0, header.capacity_rows)]
        self._ends = [end for end, _, _ in ranges]
        self._ranges = [*ranges, ranges[-1]]  # the last one again, for rows that no table has

    def fault(self, row: int, slot: int) -> str | None:
        """What is wrong with this row in this slot."""
        _, first, end = self._ranges[bisect_right(self._ends, row)]
        if first <= slot < end:
            return None
        if len(self._ends) == 1:
            return f"the cache has {end} slots"
        return f"the row's group has slots {first} to {end - 1}"


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

    def __init__(self, partition_rows: int = 1) -> None:
        """`partition_rows`: a row is used when its partition is."""
        self._size = partition_rows
        self._stated: dict[int, tuple[int, int, int]] = {}
        """Of each partition that left with a known next use: after which step it left, that use, and a row of it."""

    def leave(self, step: int, evict: Evict) -> Iterator[str]:
        """Rows leave after a step, each with the step of its next use."""
        if len(evict.next_use) not in (0, len(evict)):
            yield f"step {step}: {len(evict)} rows are evicted with {len(evict.next_use)} next uses"
            return
        for row, use in zip(evict.row.tolist(), evict.next_use.tolist(), strict=False):
            if use != NOT_KNOWN:
                left = self._stated.setdefault(row // self._size, (step, use, row))
                if left[:2] != (step, use):
                    yield f"step {step}: rows {left[2]} and {row} of one partition are evicted with other next uses"

    def use(self, step: int, accesses: Accesses) -> Iterator[str]:
        """A step uses its rows."""
        for partition in np.unique(accesses.rows // self._size).tolist() if self._stated else ():
            left, use, row = self._stated.pop(partition, (step, step, 0))
            if use != step:
                yield f"step {left}, row {row}: evicted as used next in step {use}, but step {step} uses it"

    def finish(self, end: int) -> Iterator[str]:
        """The trace has ended before step `end`; what lies after it nobody can tell."""
        for left, use, row in self._stated.values():
            if use < end:
                yield f"step {left}, row {row}: evicted as used next in step {use}, which does not use it"


class FlightReads:
    """What later steps have read, held against how late a read may be, and against the rows of those steps."""

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._num_updates: Counter[int] = Counter()
        """Of each row."""
        self._read: dict[int, tuple[list[int], list[int]]] = {}
        """Of each step that has read: its rows, and how many updates each had."""

    def read(self, step: int, ahead: int, rows: list[int]) -> Iterator[str]:
        """In a step, before its updates, a later one reads some rows."""
        if not step < ahead <= step + self._staleness:
            yield f"step {step}: step {ahead} reads its rows in it, and may miss the updates of {self._staleness} steps"
        if ahead in self._read:
            yield f"step {step}: step {ahead} has read its rows before"
        self._read[ahead] = (rows, [self._num_updates[row] for row in rows])

    def missing(self, step: int, rows: list[int]) -> tuple[list[int], list[str]]:
        """Updates that a step with these rows has not seen of each; and what is wrong with what it read."""
        if step not in self._read:
            return [], []
        found, seen = self._read.pop(step)
        faults = [] if found == rows else [f"step {step}: it has read other rows than it trains"]
        return [self._num_updates[row] - num for row, num in zip(found, seen, strict=True)], faults

    def applied(self, rows: Iterable[int]) -> None:
        """A step has updated these rows."""
        self._num_updates.update(rows)


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
