"""Proves a plan right, or says where it is wrong. Written independently of all planners, from the rules alone.

In: the accesses of every step and the records of a plan. Out: a `Verdict`. It plays the plan through, keeping for every
row the version that synchronous training would have and the version the store holds, and for every slot of every
worker what is in it.

For each step it proves:
  samples    every sample is trained exactly once, by every worker the same number (this and lookups: `check_step`)
  transfers  what one worker sends another receives, one to one; a copy that is sent is the newest there is
  reads      each lookup finds its own row, with all updates of earlier steps, and no gradient still on its way; a
             step that is in flight has read the newest rows there were, at most `staleness` steps before its own
  fetches    the row's last write-back is at or before `not_before`; the store's version is the true, promised one
  slots      a slot is one of the row's group, or of the cache where there are no groups; it is free when a row is put
             into it, and never used after it was freed; a worker holds a row once
  updates    each touched row, and no other, is applied exactly once, where its optimiser state is, with the gradient of
             every other user; or summed over all workers and applied by each to its replica; none where rows are only
             read, and there nothing is written back
  evictions  the slot holds the named row in the named version, or in the store's where none is named, and no gradient
             for it is still on its way; if a next use is stated, it is the next step that uses the row
and at the end that no update is left behind in a cache. It uses dictionaries and no cleverness: it may be slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from foresee.errors import PlanError
from foresee.plan.check_step import (
    NEVER,
    VIOLATIONS_MAX,
    FlightReads,
    SlotRanges,
    StatedUses,
    Verdict,
    faults_of_fetch,
    faults_of_lookups,
    faults_of_step,
    played,
    walk,
)
from foresee.plan.count import Counting
from foresee.plan.record import UNKNOWN_VERSION, Accesses, Counters, Header, Kind, Record, Transfers, compared_parts


def check(
    header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None, *,
    earlier: Sequence[Accesses] = (),
) -> Verdict:  # fmt: skip
    """Play a plan through. `counters` are those the plan promised, if it did.

    earlier: the steps before the plan's first one, all in the store; without them, versions of a plan that starts in
    the middle are taken for what it says. Raises PlanError for a record that cannot be played at all.
    """
    game = _Game(header)
    for step, accesses in enumerate(earlier, start=header.first_step - len(earlier)):
        game.true_version.update(dict.fromkeys(accesses.rows.tolist(), step + 1))
    game.store_version.update(game.true_version)
    game.knows_versions = header.first_step == len(earlier)
    return walk(game, header, trace, records, counters)


def proved_records(
    header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None, *, name: str
) -> Iterator[Record]:
    """Yield the records of each step once they are proved, so that they can be carried out meanwhile.

    Errors call the plan by `name`. The last step waits for the end of the plan, where updates that never reach the
    store are found.

    Raises:
        PlanError: The plan breaks a rule; no record of that step was yielded.
    """
    game = _Game(header)
    proved: list[Record] = []
    for step in played(game, header, trace, records):
        _refuse(game.verdict, name)
        yield from proved
        proved = step
    _refuse(game.finish(counters), name)
    yield from proved


def _refuse(verdict: Verdict, name: str) -> None:
    if not verdict.right:
        found = "; ".join(verdict.violations[:3])
        raise PlanError(f"{name}: the plan is wrong: {found}; do not train with it: plan again")


@dataclass(slots=True)
class _Held:
    """What is in a slot."""

    row: int
    version: int
    final_after: int = NEVER
    """The step whose exchanges complete it; before that its newest version is not there yet."""
    replica: bool = False
    """Other workers hold the same, so that one of them can write it back for all."""
    copy: bool = False
    """Came as a VALUE: without the optimiser's state, so it can neither be applied nor written back."""


class _Where(NamedTuple):
    """A place in a plan; becomes text only in a message."""

    step: int
    row: int
    slot: int

    def __str__(self) -> str:
        return f"step {self.step}, row {self.row}, slot {self.slot}"


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A row on its way into a slot."""

    worker: int
    slot: int
    held: _Held


class _Game:
    """State of a plan being played: what is true, what the store has, what each slot of each worker has."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.verdict = Verdict()
        self.counting = Counting()
        self.true_version: dict[int, int] = {}
        self.store_version: dict[int, int] = {}
        self.written_back_at: dict[int, int] = {}
        self.knows_versions = header.first_step == 0
        self.slot_ranges = SlotRanges(header)
        self.slots: list[dict[int, _Held]] = [{} for _ in range(header.num_workers)]
        self.rows: list[dict[int, int]] = [{} for _ in range(header.num_workers)]
        """The same the other way round: the slot of each row."""
        self.parcels: dict[int, list[_Parcel]] = {}
        """By deadline."""
        self.stated_uses = StatedUses(header.options.partition_rows)
        self.flight_reads = FlightReads(header.options.staleness)
        self.end = header.first_step

    def wrong(self, what: str) -> None:
        self.verdict.num_violations += 1
        if len(self.verdict.violations) < VIOLATIONS_MAX:
            self.verdict.violations.append(what)

    def play(self, step: int, accesses: Accesses, records: list[Record]) -> None:
        for record in records:
            self.counting.add(record)
            push, refresh, _ = compared_parts(record)
            if len(push) or len(refresh):
                self.wrong(f"step {step}: worker {record.worker} adds at the store, where owners assign")
            if not all(self._known(transfers, record.worker) for transfers in (record.send, record.recv)):
                self.wrong(f"step {step}: worker {record.worker} exchanges with itself or nobody, or no known kind")
        self.end = step + 1
        for fault in (*faults_of_step(step, accesses, records), *self.stated_uses.use(step, accesses)):
            self.wrong(fault)
        for parcel in self.parcels.pop(step, []):
            self._put(step, parcel.worker, parcel.slot, parcel.held)
        for record in records:
            self._fetch(step, record)
            self._read_ahead(step, record)
            self._read(step, accesses, record)
        self._apply(step, records)
        self._exchange(step, records)
        for record in records:
            self._evict(step, record)
            self._drop(step, record)

    def _put(self, step: int, worker: int, slot: int, held: _Held) -> None:
        where = _Where(step, held.row, slot)
        if (fault := self.slot_ranges.fault(held.row, slot)) is not None:
            self.wrong(f"{where}: {fault}")
        if slot in self.slots[worker]:
            self.wrong(f"{where}: put into a slot that holds row {self.slots[worker][slot].row}")
        if held.row in self.rows[worker]:
            self.wrong(f"{where}: worker {worker} holds this row already, in slot {self.rows[worker][held.row]}")
        self.slots[worker][slot] = held
        self.rows[worker][held.row] = slot

    def _take(self, worker: int, slot: int) -> _Held | None:
        """Frees a slot; returns what was in it."""
        held = self.slots[worker].pop(slot, None)
        if held is not None:
            self.rows[worker].pop(held.row, None)
        return held

    def _fetch(self, step: int, record: Record) -> None:
        for fault in faults_of_fetch(step, record.fetch, record.not_before, self.header):
            self.wrong(fault)
        fetch = record.fetch
        for row, slot, version in zip(fetch.row.tolist(), fetch.slot.tolist(), fetch.version.tolist(), strict=True):
            self._fetch_row(step, record.worker, row, slot, version, record.not_before)

    def _fetch_row(self, step: int, worker: int, row: int, slot: int, version: int, not_before: int) -> None:
        where = _Where(step, row, slot)
        if self.written_back_at.get(row, NEVER) > not_before:
            self.wrong(f"{where}: written back after step {self.written_back_at[row]}, read after {not_before}")
        stored, true = self.store_version.get(row, 0), self.true_version.get(row, 0)
        if stored != true:
            self.wrong(f"{where}: the store has version {stored}, training needs {true}")
        if version not in (true, UNKNOWN_VERSION) and self.knows_versions:
            self.wrong(f"{where}: the plan promises version {version}, training needs {true}")
        self._put(step, worker, slot, _Held(row, stored))

    def _read_ahead(self, step: int, record: Record) -> None:
        """Later steps read what is the newest now."""
        for ahead in record.read_ahead:
            held = [self.slots[record.worker].get(slot) for slot in ahead.slot.tolist()]
            for it in held:
                if it is None or it.version != self.true_version.get(it.row, 0):
                    self.wrong(f"step {step}: step {ahead.step} reads row {it and it.row} in it, not the newest")
            for fault in self.flight_reads.read(step, ahead.step, [it.row if it else -1 for it in held]):
                self.wrong(fault)

    def _missing(self, step: int, found: list[int]) -> None:
        """Counts what the step's rows were read without."""
        missing, faults = self.flight_reads.missing(step, found)
        for fault in faults:
            self.wrong(fault)
        self.verdict.stale_reads += sum(number > 0 for number in missing)
        self.verdict.missing_updates += sum(missing)
        self.verdict.missing_updates_max = max([self.verdict.missing_updates_max, *missing])

    def _read(self, step: int, accesses: Accesses, record: Record) -> None:
        slots = self.slots[record.worker]
        for slot in record.unique.tolist():
            held = slots.get(slot)
            if held is None:
                self.wrong(f"step {step}: slot {slot} is read but holds nothing")
            elif held.version != self.true_version.get(held.row, 0):
                self.verdict.stale_reads += 1
                self.wrong(f"step {step}, row {held.row}: read in version {held.version}")
            elif held.final_after >= step:
                self.verdict.stale_reads += 1
                self.wrong(f"step {step}, row {held.row}: read before all gradients of an earlier step are there")
        found = np.array([slots[slot].row if slot in slots else -1 for slot in record.unique.tolist()], np.int64)
        for fault in faults_of_lookups(step, accesses, record, found):
            self.wrong(fault)
        self._missing(step, found.tolist())

    def _apply(self, step: int, records: list[Record]) -> None:
        """Every touched row is applied by one worker, who gets a gradient from every other user."""
        users: dict[int, set[int]] = {}
        for record in records:
            for slot in record.unique.tolist():
                if slot in self.slots[record.worker]:
                    users.setdefault(self.slots[record.worker][slot].row, set()).add(record.worker)
        gradients = self._gradients(step, records)
        applied: list[int] = []
        for record in records:
            for slot in record.apply.tolist():
                held = self.slots[record.worker].get(slot)
                if held is None:
                    self.wrong(f"step {step}: slot {slot} of worker {record.worker} is applied but holds nothing")
                    continue
                applied.append(held.row)
                if held.copy:
                    self.wrong(f"step {step}, row {held.row}: applied to a copy, which has no optimiser state")
                senders, deadline = gradients.pop((record.worker, slot), ([], step + 1))
                if sorted([record.worker, *senders]) != sorted(users.get(held.row, set())):
                    self.wrong(f"step {step}, row {held.row}: its users' gradients are not each applied once")
                held.version = step + 1
                held.final_after = deadline - 1
        applied += self._reduce(step, records)
        expected = [] if self.header.options.read_only else sorted(users)
        if sorted(applied) != expected:
            self.wrong(f"step {step}: the rows applied are not the rows touched, each once")
        if gradients:
            self.wrong(f"step {step}: {len(gradients)} slots get gradients and are not applied")
        self.flight_reads.applied(expected)
        for row in expected:
            self.true_version[row] = step + 1

    def _reduce(self, step: int, records: list[Record]) -> list[int]:
        """The rows whose replicas, one at every worker, get the sum of all gradients."""
        reduced: list[list[int]] = []
        for record in records:
            reduce = compared_parts(record)[2]
            slots, deadlines = self.slots[record.worker], reduce.deadline.tolist()
            held = [slots.get(slot) for slot in reduce.slot.tolist()]
            reduced.append([replica.row if replica else -1 for replica in held])
            read = {slots[slot].row: slot for slot in record.unique.tolist() if slot in slots}
            for replica, slot, deadline in zip(held, reduce.slot.tolist(), deadlines, strict=True):
                if replica is None or read.get(replica.row, slot) != slot or deadline not in (step + 1, step + 2):
                    self.wrong(f"step {step}: worker {record.worker} reduces slot {slot} for step {deadline}")
                    continue
                if replica.version != self.true_version.get(replica.row, 0) or replica.final_after >= step:
                    self.wrong(f"step {step}, row {replica.row}: worker {record.worker} reduces an old replica of it")
                replica.version, replica.final_after, replica.replica = step + 1, deadline - 1, True
            if reduced[-1] != reduced[0] or not np.array_equal(deadlines, compared_parts(records[0])[2].deadline):
                self.wrong(f"step {step}: worker {record.worker} reduces other rows than worker 0")
        return reduced[0]

    def _gradients(self, step: int, records: list[Record]) -> dict[tuple[int, int], tuple[list[int], int]]:
        """(owner, slot) -> who sends it a gradient, and when the last of them arrives."""
        gradients: dict[tuple[int, int], tuple[list[int], int]] = {}
        for sender, slot, receiver, target, kind, deadline in self._matched(step, records):
            if kind != Kind.GRAD:
                continue
            mine, theirs = self.slots[sender].get(slot), self.slots[receiver].get(target)
            if mine is None or theirs is None or mine.row != theirs.row:
                self.wrong(f"step {step}: worker {sender} sends a gradient of another row than {receiver} expects")
            senders, latest = gradients.get((receiver, target), ([], step + 1))
            gradients[receiver, target] = ([*senders, sender], max(latest, deadline))
        return gradients

    def _matched(self, step: int, records: list[Record]) -> Iterator[tuple[int, int, int, int, int, int]]:
        """(sender, its slot, receiver, its slot, kind, deadline) of everything that goes over after this step."""
        for sender in records:
            for receiver in records:
                out = np.flatnonzero(sender.send.peer == receiver.worker)
                into = np.flatnonzero(receiver.recv.peer == sender.worker)
                kinds, deadlines = sender.send.kind[out], sender.send.deadline[out]
                if not np.array_equal(kinds, receiver.recv.kind[into]) or not np.array_equal(
                    deadlines, receiver.recv.deadline[into]
                ):
                    self.wrong(f"step {step}: worker {sender.worker} sends what {receiver.worker} does not receive")
                    continue
                if len(deadlines) and not (step < deadlines.min() and deadlines.max() <= step + 2):
                    self.wrong(f"step {step}: a transfer is due at step {deadlines.max()}, not one or two steps later")
                for k in range(len(out)):
                    slots = int(sender.send.slot[out[k]]), int(receiver.recv.slot[into[k]])
                    yield sender.worker, slots[0], receiver.worker, slots[1], int(kinds[k]), int(deadlines[k])

    def _known(self, transfers: Transfers, worker: int) -> bool:
        others = np.setdiff1d(np.arange(self.header.num_workers), [worker])
        return bool(np.isin(transfers.peer, others).all() and np.isin(transfers.kind, list(Kind)).all())

    def _exchange(self, step: int, records: list[Record]) -> None:
        """Values and moves leave after the step; a moved row leaves its slot behind."""
        moved: list[tuple[int, int]] = []
        for sender, slot, receiver, target, kind, deadline in self._matched(step, records):
            if kind == Kind.GRAD:
                continue
            held = self.slots[sender].get(slot)
            if held is None or held.final_after > step:
                self.wrong(f"step {step}: worker {sender} sends slot {slot}, which holds nothing that is final")
                continue
            sent = _Held(held.row, held.version, copy=held.copy or kind != Kind.MOVE)
            self.parcels.setdefault(deadline, []).append(_Parcel(receiver, target, sent))
            if kind == Kind.MOVE:
                moved.append((sender, slot))
        for sender, slot in moved:
            if self._take(sender, slot) is None:
                self.wrong(f"step {step}: slot {slot} of worker {sender} is moved twice")

    def _evict(self, step: int, record: Record) -> None:
        if self.header.options.read_only and len(record.evict):
            self.wrong(f"step {step}, row {record.evict.row[0]}: written back, but rows are only read")
        for fault in self.stated_uses.leave(step, record.evict):
            self.wrong(fault)
        evict = record.evict
        for slot, row, version in zip(evict.slot.tolist(), evict.row.tolist(), evict.version.tolist(), strict=True):
            self._evict_slot(step, record.worker, slot, row, version)

    def _evict_slot(self, step: int, worker: int, slot: int, row: int, version: int) -> None:
        where = _Where(step, row, slot)
        held = self._take(worker, slot)
        if held is None or held.row != row:
            self.wrong(f"{where}: evicted, but the slot holds {held.row if held else None}")
            return
        if held.copy:
            self.wrong(f"{where}: evicted, but it is a copy, which has no optimiser state")
        if version == UNKNOWN_VERSION and held.version == self.store_version.get(row, 0):
            version = held.version  # came with its partition and was not updated: whatever it is, it is what it was
        if held.version != version or held.final_after > step:
            self.wrong(f"{where}: evicted as version {version}, the slot has {held.version} after {held.final_after}")
        self.store_version[row] = version
        self.written_back_at[row] = step

    def _drop(self, step: int, record: Record) -> None:
        for slot in record.drop.tolist():
            held = self._take(record.worker, slot)
            if held is None or (held.version == step + 1 and not held.replica) or held.final_after > step:
                self.wrong(f"step {step}: slot {slot} is dropped, but it is no copy")

    def finish(self, promised: Counters | None) -> Verdict:
        for fault in self.stated_uses.finish(self.end):
            self.wrong(fault)
        for row, version in self.true_version.items():
            if self.store_version.get(row, 0) != version:
                self.wrong(f"row {row}: version {version} never reached the store")
        self.verdict.counters = self.counting.counters
        if promised is not None and promised != self.counting.counters:
            self.wrong(f"the plan promises {promised}, counted are {self.counting.counters}")
        return self.verdict
