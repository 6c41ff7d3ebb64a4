"""Proves a plan right, or says where it is wrong. Written independently of all planners, from the rules alone.

In: the touches of every step and the records of a plan. Out: a `Verdict`. It plays the plan through, keeping for every
row the version that synchronous training would have and the version the store holds, and for every slot what is in it.

For each step it proves:
  samples   every sample is trained exactly once
  reads     each lookup finds its own row, with all updates of earlier steps
  fetches   the row's last write-back is at or before `not_before`, the store's version is the true and the promised one
  slots     a slot is below the capacity, free when a row is put into it, and never used after it was freed
  updates   each touched row is applied exactly once
  evictions the slot holds the named row in the named version
and at the end that no update is left behind in a cache. It uses dictionaries and no cleverness: it may be slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from foresee.errors import PlanViolation
from foresee.plan.count import Counting
from foresee.plan.record import UNKNOWN_VERSION, Counters, Header, Record, Touches

VIOLATIONS_MAX = 20
NEVER = -1


@dataclass(slots=True)
class Verdict:
    """What the checker found."""

    counters: Counters = field(default_factory=Counters)
    stale_reads: int = 0
    """Lookups' rows read without all earlier updates."""
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


def check(header: Header, trace: Iterable[Touches], records: Iterable[Record], counters: Counters | None) -> Verdict:
    """Plays a one-worker plan through. `counters` are those the plan promised, if it did."""
    game = _Game(header)
    remaining = iter(records)
    num_steps = 0
    for step, touches in enumerate(trace, start=header.first_step):
        record = next(remaining, None)
        if record is None:
            game.wrong(f"step {step} has no record")
            break
        game.play(step, touches, record)
        num_steps += 1
    if next(remaining, None) is not None:
        game.wrong(f"the plan has more records than the {num_steps} steps of the trace")
    return game.finish(counters)


class _Game:
    """State of a plan being played: what is true, what the store has, what each slot has."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.verdict = Verdict()
        self.counting = Counting()
        self.true_version: dict[int, int] = {}
        self.store_version: dict[int, int] = {}
        self.written_back_at: dict[int, int] = {}
        self.slot_row: dict[int, int] = {}
        self.slot_version: dict[int, int] = {}

    def wrong(self, what: str) -> None:
        self.verdict.num_violations += 1
        if len(self.verdict.violations) < VIOLATIONS_MAX:
            self.verdict.violations.append(what)

    def play(self, step: int, touches: Touches, record: Record) -> None:
        self.counting.add(record)
        if record.step != step:
            self.wrong(f"record of step {record.step} stands where step {step} is due")
        if not np.array_equal(np.sort(record.samples), np.arange(touches.num_samples)):
            self.wrong(f"step {step}: the samples are not each trained exactly once")
        self._fetch(step, record)
        self._read(step, touches, record)
        self._apply(step, record)
        self._evict(step, record)

    def _fetch(self, step: int, record: Record) -> None:
        if not step - 1 - self.header.fetch_ahead_steps <= record.not_before < step:
            self.wrong(f"step {step}: its fetch is issued after step {record.not_before}: too late, or too far ahead")
        for row, slot, version in zip(record.fetch.row, record.fetch.slot, record.fetch.version, strict=True):
            self._fetch_row(step, int(row), int(slot), int(version), record.not_before)

    def _fetch_row(self, step: int, row: int, slot: int, version: int, not_before: int) -> None:
        where = f"step {step}, row {row}, slot {slot}"
        if not 0 <= slot < self.header.capacity_rows:
            self.wrong(f"{where}: the cache has {self.header.capacity_rows} slots")
        if slot in self.slot_row:
            self.wrong(f"{where}: fetched into a slot that holds row {self.slot_row[slot]}")
        if self.written_back_at.get(row, NEVER) > not_before:
            self.wrong(f"{where}: written back after step {self.written_back_at[row]}, read after {not_before}")
        stored, true = self.store_version.get(row, 0), self.true_version.get(row, 0)
        if stored != true:
            self.wrong(f"{where}: the store has version {stored}, training needs {true}")
        if version not in (true, UNKNOWN_VERSION) and self.header.first_step == 0:
            self.wrong(f"{where}: the plan promises version {version}, training needs {true}")
        self.slot_row[slot] = row
        self.slot_version[slot] = stored

    def _read(self, step: int, touches: Touches, record: Record) -> None:
        if len(np.unique(record.unique)) != len(record.unique):
            self.wrong(f"step {step}: a slot stands twice in `unique`")
        for slot in record.unique.tolist():
            row = self.slot_row.get(slot)
            if row is None:
                self.wrong(f"step {step}: slot {slot} is read but holds nothing")
            elif self.slot_version[slot] != self.true_version.get(row, 0):
                self.verdict.stale_reads += 1
                self.wrong(f"step {step}, row {row}: read in version {self.slot_version[slot]}")
        held = np.array([self.slot_row.get(slot, -1) for slot in record.unique.tolist()], np.int64)
        expected = _rows_of(touches, record)
        if len(record.inverse) != len(expected) or not np.array_equal(held[record.inverse], expected):
            self.wrong(f"step {step}: the lookups do not find their own rows")

    def _apply(self, step: int, record: Record) -> None:
        if sorted(record.apply.tolist()) != sorted(record.unique.tolist()):
            self.wrong(f"step {step}: the rows applied are not the rows touched, each once")
        for slot in record.apply.tolist():
            row = self.slot_row.get(slot)
            if row is not None:
                self.slot_version[slot] = self.true_version[row] = step + 1

    def _evict(self, step: int, record: Record) -> None:
        for slot, row, version in zip(record.evict.slot, record.evict.row, record.evict.version, strict=True):
            self._evict_slot(step, int(slot), int(row), int(version))

    def _evict_slot(self, step: int, slot: int, row: int, version: int) -> None:
        where = f"step {step}, row {row}, slot {slot}"
        held = self.slot_row.pop(slot, None)
        if held != row:
            self.wrong(f"{where}: evicted, but the slot holds {held}")
            return
        if self.slot_version[slot] != version:
            self.wrong(f"{where}: evicted as version {version}, the slot has {self.slot_version[slot]}")
        self.store_version[row] = version
        self.written_back_at[row] = step

    def finish(self, promised: Counters | None) -> Verdict:
        for row, version in self.true_version.items():
            if self.store_version.get(row, 0) != version:
                self.wrong(f"row {row}: version {version} never reached the store")
        self.verdict.counters = self.counting.counters
        if promised is not None and promised != self.counting.counters:
            self.wrong(f"the plan promises {promised}, counted are {self.counting.counters}")
        return self.verdict


def _rows_of(touches: Touches, record: Record) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows of the record's samples, lookup by lookup."""
    offsets = touches.sample_offsets
    return np.concatenate(
        [np.empty(0, np.int64)] + [touches.rows[offsets[i] : offsets[i + 1]] for i in record.samples.tolist()]
    )
