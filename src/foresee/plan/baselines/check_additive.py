"""Proves a plan whose workers add their own updates to the store's rows, or counts by how much it is stale.

In: the accesses of every step and the records of a plan such as Herald's or HET's: every worker trains its own replica,
pushes its updates when the plan says so, and several may push to one row. Out: a `Verdict`. Right for plain SGD only,
where updates may be added in any order; `check` proves plans for every optimiser.

It counts contributions. An update is a (worker, step) that accesses a row. A worker's own updates reach the store in
their order, all of them with each push; so what a replica or the store's row contains is a number for each worker, and
a read is exact if and only if its numbers are those produced so far. No update is lost if at the end the store's
numbers are those produced; none is added twice because a push takes what is pending.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foresee.plan.check_step import (
    NEVER,
    VIOLATIONS_MAX,
    SlotRanges,
    Verdict,
    faults_of_fetch,
    faults_of_lookups,
    faults_of_step,
    walk,
)
from foresee.plan.count import Counting
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Counters, Header, Record, compared_parts


def check_additive(
    header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None, *, exact: bool
) -> Verdict:
    """Plays a plan through. Unless it is to be `exact`, stale reads are counted and no violation."""
    return walk(_Game(header, exact), header, trace, records, counters)


@dataclass(slots=True)
class _Replica:
    """What is in a slot."""

    row: int
    seen: list[int]
    """Updates that it contains, of each worker."""
    pending: int = 0
    """Updates of its own worker that the store does not have."""
    version: int = 0
    """1 + the step of the latest of those."""


class _Game:
    """State of a plan being played: what was produced, what the store has, what each slot of each worker has."""

    def __init__(self, header: Header, exact: bool) -> None:
        self.header = header
        self.exact = exact
        self.verdict = Verdict()
        self.counting = Counting()
        self.produced: dict[int, list[int]] = {}
        self.stored: dict[int, list[int]] = {}
        self.stored_version: dict[int, int] = {}
        self.written_at: dict[int, int] = {}
        self.slot_ranges = SlotRanges(header)
        self.slots: list[dict[int, _Replica]] = [{} for _ in range(header.num_workers)]

    def wrong(self, what: str) -> None:
        self.verdict.num_violations += 1
        if len(self.verdict.violations) < VIOLATIONS_MAX:
            self.verdict.violations.append(what)

    def play(self, step: int, accesses: Accesses, records: list[Record]) -> None:
        for fault in faults_of_step(step, accesses, records):
            self.wrong(fault)
        for record in records:
            self.counting.add(record)
            if len(record.send) or len(record.recv) or len(compared_parts(record)[2]):
                self.wrong(f"step {step}: worker {record.worker} exchanges rows, but all must go through the store")
            self._fetch(step, record)
            self._refresh(step, record)
            self._read(step, accesses, record)
        for record in records:
            self._train(step, record)
        for record in records:
            self._push(step, record)

    def _fetch(self, step: int, record: Record) -> None:
        for wrong in faults_of_fetch(step, record.fetch, record.not_before, self.header):
            self.wrong(wrong)
        slots, fetch = self.slots[record.worker], record.fetch
        held = {replica.row for replica in slots.values()}
        for row, slot, version in zip(fetch.row.tolist(), fetch.slot.tolist(), fetch.version.tolist(), strict=True):
            where = f"step {step}, row {row}, slot {slot}"
            if (fault := self.slot_ranges.fault(row, slot)) is not None:
                self.wrong(f"{where}: {fault}")
            if slot in slots:
                self.wrong(f"{where}: put into a slot that holds row {slots[slot].row}")
            if row in held:
                self.wrong(f"{where}: worker {record.worker} holds this row already")
            held.add(row)
            self._guard(where, row, version, record.not_before)
            slots[slot] = _Replica(row, list(self._stored(row)))

    def _refresh(self, step: int, record: Record) -> None:
        slots, refresh = self.slots[record.worker], compared_parts(record)[1]
        for row, slot, version in zip(
            refresh.row.tolist(), refresh.slot.tolist(), refresh.version.tolist(), strict=True
        ):
            where = f"step {step}, row {row}, slot {slot}"
            replica = slots.get(slot)
            if replica is None or replica.row != row:
                self.wrong(f"{where}: refreshed, but the slot holds {replica.row if replica else None}")
                continue
            self._guard(where, row, version, record.not_before)
            replica.seen = list(self._stored(row))
            replica.seen[record.worker] += replica.pending

    def _guard(self, where: str, row: int, version: int, not_before: int) -> None:
        if self.written_at.get(row, NEVER) > not_before:
            self.wrong(f"{where}: pushed after step {self.written_at[row]}, read after {not_before}")
        stored = self.stored_version.get(row, 0)
        if version not in (stored, UNKNOWN_VERSION):
            self.wrong(f"{where}: the plan promises version {version}, the store has {stored}")

    def _stored(self, row: int) -> list[int]:
        return self.stored.setdefault(row, [0] * self.header.num_workers)

    def _produced(self, row: int) -> list[int]:
        return self.produced.setdefault(row, [0] * self.header.num_workers)

    def _read(self, step: int, accesses: Accesses, record: Record) -> None:
        slots = self.slots[record.worker]
        for slot in record.unique.tolist():
            if slot not in slots:
                self.wrong(f"step {step}: slot {slot} is read but holds nothing")
                continue
            missing = sum(self._produced(slots[slot].row)) - sum(slots[slot].seen)
            if missing:
                self._stale(step, slots[slot].row, missing)
        found = np.array([slots[slot].row if slot in slots else -1 for slot in record.unique.tolist()], np.int64)
        for fault in faults_of_lookups(step, accesses, record, found):
            self.wrong(fault)

    def _stale(self, step: int, row: int, missing: int) -> None:
        self.verdict.stale_reads += 1
        self.verdict.missing_updates += missing
        self.verdict.missing_updates_max = max(self.verdict.missing_updates_max, missing)
        if self.exact:
            self.wrong(f"step {step}, row {row}: read without {missing} updates")

    def _train(self, step: int, record: Record) -> None:
        if sorted(record.apply.tolist()) != sorted(set(record.unique.tolist())):
            self.wrong(f"step {step}: worker {record.worker} does not apply exactly the slots it read, each once")
        for slot in record.apply.tolist():
            replica = self.slots[record.worker].get(slot)
            if replica is None:
                continue
            self._produced(replica.row)[record.worker] += 1
            replica.seen[record.worker] += 1
            replica.pending += 1
            replica.version = step + 1

    def _push(self, step: int, record: Record) -> None:
        slots, push = self.slots[record.worker], compared_parts(record)[0]
        for slot, row in zip(push.slot.tolist(), push.row.tolist(), strict=True):
            self._add(step, record.worker, slot, row)
        for slot, row in zip(record.evict.slot.tolist(), record.evict.row.tolist(), strict=True):
            self._add(step, record.worker, slot, row)
            slots.pop(slot, None)
        for slot in record.drop.tolist():
            replica = slots.pop(slot, None)
            if replica is None or replica.pending:
                self.wrong(f"step {step}: slot {slot} is dropped, but it is no copy")

    def _add(self, step: int, worker: int, slot: int, row: int) -> None:
        replica = self.slots[worker].get(slot)
        if replica is None or replica.row != row or not replica.pending:
            self.wrong(f"step {step}, row {row}, slot {slot}: pushed, but the slot has no update of it to push")
            return
        self._stored(row)[worker] += replica.pending
        self.stored_version[row] = max(self.stored_version.get(row, 0), replica.version)
        self.written_at[row] = step
        replica.pending = 0

    def finish(self, promised: Counters | None) -> Verdict:
        for row, produced in self.produced.items():
            if self._stored(row) != produced:
                self.wrong(f"row {row}: {sum(produced) - sum(self._stored(row))} updates never reached the store")
        self.verdict.counters = self.counting.counters
        if promised is not None and promised != self.counting.counters:
            self.wrong(f"the plan promises {promised}, counted are {self.counting.counters}")
        return self.verdict
