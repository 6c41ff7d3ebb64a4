"""The plan for many workers: a row belongs to one of them, and travels when another needs it.

In: the touches of each step, read ahead as in `lookahead`. Out: one record for each worker and step. For every step the
samples are placed first (`placement`); then each distinct row has users, and

  * its owner is one of its users: the one who had it, if it is among them;
  * a new owner gets it by MOVE from the old one (value and state), or by a fetch from the store;
  * the other users get a copy for this step: VALUE from whoever had it, or their own fetch; after the step they send a
    GRAD to the owner, who sums in worker order and applies once.

Transfers go over in the exchange after some step x, with deadline x + 1 (critical) or x + 2 (in the background, while
step x + 1 computes). A row last written at z and used at y goes over after y - 2 if its value is final by then, else
after y - 1. A gradient is critical only if the row is used in the next step, or leaves its owner right after this one.

Slots, victims and guards are those of `lookahead`, for each worker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numba import njit

from foresee.errors import PlanError
from foresee.plan.demand import BatchTooLargeError
from foresee.plan.record import UNKNOWN_VERSION, Evict, Fetch, Header, Int32, Int64, Kind, Record, Touches, Transfers
from foresee.plan.row_table import (
    LOW,
    NO_SLOT,
    PAST,
    PREFETCH_DISTANCE,
    SLOT,
    RowTable,
    checksum_of,
    find,
    prefetch_entry,
)
from foresee.plan.upcoming import NOBODY, WINDOW_LOOKUPS_MAX, WINDOW_STEPS, NextUses, choose_victims
from foresee.plan.workers.placement import Placement, Scene

# One transfer: kind, step after which it is sent, deadline, from, slot there, to, slot there.
KIND, SENT, DEADLINE, SOURCE, SOURCE_SLOT, TARGET, TARGET_SLOT = range(7)
NUM_FIELDS = 7
NUM_WORKERS_MAX = 64


@njit(nogil=True, cache=True)
def _announce(
    table: Int64, rows: Int64, marks: Int64, step: int, planned: int, first_use: Int64, next_use: Int32, lists: Int32,
    heads: Int32,
) -> None:  # fmt: skip
    """As in `lookahead`, with lists for each worker."""
    for k in range(len(rows)):
        mark = marks[k]
        if mark < 0:
            continue
        if mark >> 32 >= planned:
            place = first_use[(mark >> 32) % len(first_use)] + (mark & LOW)
            next_use[place & (len(next_use) - 1)] = step
            continue
        held = table[find(table, rows[k]), SLOT]
        if held == NO_SLOT:
            continue
        worker, slot = held >> 32, held & LOW
        after, before = lists[worker, slot, 0], lists[worker, slot, 1]
        lists[worker, before, 0] = after
        lists[worker, after, 1] = before
        bucket = step % heads.shape[1]
        lists[worker, slot, 0] = heads[worker, bucket]
        heads[worker, bucket] = slot


@njit(nogil=True, cache=True)
def _locate(table: Int64, rows: Int64, held: Int64, pasts: Int64) -> None:
    """Where each row is (owner << 32 | slot, or NO_SLOT) and its past."""
    for k in range(len(rows)):
        prefetch_entry(table, rows, k + PREFETCH_DISTANCE)
        entry = find(table, rows[k])
        held[k] = table[entry, SLOT]
        pasts[k] = table[entry, PAST]


@njit(nogil=True, cache=True)
def _users(offsets: Int32, inverse: Int32, placed: Int32, users: Int64) -> None:
    """Bit w of users[row]: worker w has a sample that touches the row."""
    for sample in range(len(placed)):
        bit = np.int64(1) << placed[sample]
        for k in range(offsets[sample], offsets[sample + 1]):
            users[inverse[k]] |= bit


@njit(nogil=True, cache=True)
def _own(held: Int64, users: Int64, num_workers: int, step: int, owners: Int32, need: Int64) -> None:
    """The owner of each row in this step, and how many slots each worker needs for rows it does not hold."""
    for k in range(len(users)):
        before = held[k] >> 32 if held[k] != NO_SLOT else -1
        chosen = before if before >= 0 and (users[k] >> before) & 1 else -1
        for worker in range(num_workers):
            if not (users[k] >> worker) & 1:
                continue
            if chosen < 0 or (chosen != before and need[worker] < need[chosen]):
                chosen = worker
            if worker != before:
                need[worker] += 1
        owners[k] = chosen


@njit(nogil=True, cache=True)
def _depart(
    held: Int64, owners: Int32, step: int, free: Int32, num_free: Int64, slot_last: Int32, shared_at: Int32,
    sent: Int32,
) -> None:  # fmt: skip
    """After which step each held row can go over; slots of rows that get another owner are free from now on.

    A row is final after its last step, or one later if gradients reach it in the background. A background transfer
    goes over two steps before its row is needed.
    """
    for k in range(len(held)):
        sent[k] = step - 2
        if held[k] == NO_SLOT:
            continue
        worker, slot = held[k] >> 32, held[k] & LOW
        last = slot_last[worker, slot]
        if last + (shared_at[worker, slot] == last) > step - 2:
            sent[k] = step - 1
        if owners[k] != worker:
            free[worker, num_free[worker]] = slot
            num_free[worker] += 1
            slot_last[worker, slot] = -1


@njit(nogil=True, cache=True)
def _carry_out(
    table: Int64, rows: Int64, held: Int64, users: Int64, owners: Int32, step: int, first: int,
    next_use: Int32, slot_row: Int64, shared_at: Int32, free: Int32, num_free: Int64, sent: Int32, slots: Int32,
    transfers: Int64, fetches: Int64,
) -> tuple[int, int]:  # fmt: skip
    """Gives every user its slot and lists what has to travel. `slots` is [distinct, workers].

    Returns how many transfers and fetches were listed. A fetch is (worker, position of the row, slot).
    """
    num_workers = slots.shape[1]
    num_transfers = 0
    num_fetches = 0
    for k in range(len(rows)):
        before = held[k] >> 32 if held[k] != NO_SLOT else -1
        before_slot = held[k] & LOW
        owner = owners[k]
        num_users = 0
        for worker in range(num_workers):
            if not (users[k] >> worker) & 1:
                continue
            num_users += 1
            if worker == before:
                slots[k, worker] = before_slot
                continue
            num_free[worker] -= 1
            slot = free[worker, num_free[worker]]
            slots[k, worker] = slot
            if before < 0:
                fetches[num_fetches, 0] = worker
                fetches[num_fetches, 1] = k
                fetches[num_fetches, 2] = slot
                num_fetches += 1
            else:
                transfers[num_transfers, 0] = Kind.MOVE if worker == owner else Kind.VALUE
                transfers[num_transfers, 1] = sent[k]
                transfers[num_transfers, 2] = step
                transfers[num_transfers, 3] = before
                transfers[num_transfers, 4] = before_slot
                transfers[num_transfers, 5] = worker
                transfers[num_transfers, 6] = slot
                num_transfers += 1
        slot = slots[k, owner]
        slot_row[owner, slot] = rows[k]
        table[find(table, rows[k]), SLOT] = (np.int64(owner) << 32) | slot
        if num_users > 1:
            following = next_use[(first + k) & (len(next_use) - 1)]
            deadline = step + 1 if following == step + 1 else step + 2
            if deadline == step + 2:
                shared_at[owner, slot] = step
            for worker in range(num_workers):
                if worker != owner and (users[k] >> worker) & 1:
                    transfers[num_transfers, 0] = Kind.GRAD
                    transfers[num_transfers, 1] = step
                    transfers[num_transfers, 2] = deadline
                    transfers[num_transfers, 3] = worker
                    transfers[num_transfers, 4] = slots[k, worker]
                    transfers[num_transfers, 5] = owner
                    transfers[num_transfers, 6] = slot
                    num_transfers += 1
    return num_transfers, num_fetches


@njit(nogil=True, cache=True)
def _enlist(
    owners: Int32, slots: Int32, step: int, first: int, next_use: Int32, slot_last: Int32, lists: Int32, heads: Int32
) -> None:
    """Puts owned slots into the bucket of their next use, or at the end of the list of rows without one."""
    nowhere = lists.shape[1] - 1
    for k in range(len(owners)):
        worker, slot = owners[k], slots[k, owners[k]]
        slot_last[worker, slot] = step
        following = next_use[(first + k) & (len(next_use) - 1)]
        if following == NOBODY:
            before = lists[worker, nowhere, 1]
            lists[worker, slot, 0] = nowhere
            lists[worker, slot, 1] = before
            lists[worker, before, 0] = slot
            lists[worker, nowhere, 1] = slot
        else:
            bucket = following % heads.shape[1]
            lists[worker, slot, 0] = heads[worker, bucket]
            heads[worker, bucket] = slot


@njit(nogil=True, cache=True)
def _resolve(
    offsets: Int32, inverse: Int32, samples: Int32, worker: int, slots: Int32, place: Int32, rows: Int64,
    unique: Int32, local: Int32, touched: Int64,
) -> int:  # fmt: skip
    """One worker's `unique` and `inverse`, in order of first touch by its own samples, and the rows of its lookups.

    `place` is -1 everywhere.
    """
    num_unique = 0
    num_lookups = 0
    for i in range(len(samples)):
        for k in range(offsets[samples[i]], offsets[samples[i] + 1]):
            row = inverse[k]
            if place[row] < 0:
                place[row] = num_unique
                unique[num_unique] = slots[row, worker]
                num_unique += 1
            local[num_lookups] = place[row]
            touched[num_lookups] = rows[row]
            num_lookups += 1
    for i in range(len(samples)):
        for k in range(offsets[samples[i]], offsets[samples[i] + 1]):
            place[inverse[k]] = -1
    return num_unique


@njit(nogil=True, cache=True)
def _divide(owners: Int32, slots: Int32, apply: Int32, num_apply: Int64, drop: Int32, num_drop: Int64) -> None:
    """For each worker the slots of the rows it owns, and those of its copies, both in the order of the rows."""
    for k in range(len(owners)):
        for worker in range(slots.shape[1]):
            slot = slots[k, worker]
            if slot == NO_SLOT:
                continue
            if worker == owners[k]:
                apply[worker, num_apply[worker]] = slot
                num_apply[worker] += 1
            else:
                drop[worker, num_drop[worker]] = slot
                num_drop[worker] += 1


@njit(nogil=True, cache=True)
def _part(transfers: Int64, side: int, peer: int, slot: int, begins: Int64, columns: Int32) -> None:
    """Sorts transfers by one side's worker, in their order: (peer, slot, kind, deadline), and where each begins."""
    for i in range(len(transfers)):
        begins[transfers[i, side] + 1] += 1
    for worker in range(len(begins) - 1):
        begins[worker + 1] += begins[worker]
    end = begins.copy()
    for i in range(len(transfers)):
        place = end[transfers[i, side]]
        end[transfers[i, side]] = place + 1
        columns[0, place] = transfers[i, peer]
        columns[1, place] = transfers[i, slot]
        columns[2, place] = transfers[i, KIND]
        columns[3, place] = transfers[i, DEADLINE]


@dataclass(slots=True)
class _Read:
    """A batch that was read and not yet planned."""

    touches: Touches
    rows: Int64
    inverse: Int32
    first_use: int


@dataclass(slots=True)
class _Planned:
    """A step of all workers whose transfers and evictions are not complete yet."""

    step: int
    records: list[Record]
    transfers: list[Int64]
    """[transfers, fields], those sent after this step."""
    evict: list[Evict] = field(default_factory=list)
    promoted: list[Int64] = field(default_factory=list)
    """owner << 32 | slot of rows that leave right after the step: their gradients cannot wait."""


class Ownership:
    """Plans for many workers. Memory grows with the window and the caches, not with the tables or the log."""

    def __init__(
        self,
        header: Header,
        placement: Placement,
        *,
        window_steps: int = WINDOW_STEPS,
        eager: bool = False,
        remember_versions: bool = False,
    ) -> None:
        """`eager`: every row is written back after every step, which is training without a cache."""
        if header.num_workers > NUM_WORKERS_MAX:
            raise PlanError(
                f"a plan for {header.num_workers} workers cannot be made: users of a row are the bits of one number; "
                f"use at most {NUM_WORKERS_MAX}"
            )
        self.header = header
        self.eager = eager
        # Whether a gradient is urgent depends on the next step: that one is always known.
        self.window_steps = max(1, window_steps)
        self.remember_versions = remember_versions
        self._place = placement
        fresh = 0 if remember_versions and header.first_step == 0 else UNKNOWN_VERSION
        workers, capacity = header.num_workers, header.capacity_rows
        self._table = RowTable(num_rows=header.num_rows, fresh_version=fresh)
        self._slot_row = np.full((workers, capacity), -1, np.int64)
        self._slot_last = np.full((workers, capacity), -1, np.int32)
        self._shared_at = np.full((workers, capacity), -1, np.int32)
        self._free = np.tile(np.arange(capacity - 1, -1, -1, dtype=np.int32), (workers, 1))
        self._num_free = np.full(workers, capacity, np.int64)
        self._lists = np.full((workers, capacity + 1, 2), capacity, np.int32)
        self._heads = np.full((workers, self.window_steps + 2), NOBODY, np.int32)
        self._uses = NextUses(self.window_steps)
        self._window: deque[_Read] = deque()
        self._window_lookups = 0
        self._planned = header.first_step
        self._read = header.first_step
        self._open: deque[_Planned] = deque()

    def push(self, touches: Touches) -> list[Record]:
        """Reads the next batch; plans the oldest one of the window once that is full."""
        if touches.num_samples % self.header.num_workers:
            raise PlanError(
                f"step {self._read} has {touches.num_samples} samples, which {self.header.num_workers} workers cannot "
                "share equally; choose a batch size that the number of workers divides"
            )
        self._look_at(touches)
        records: list[Record] = []
        while len(self._window) > self.window_steps or (
            self._window_lookups > WINDOW_LOOKUPS_MAX and len(self._window) > 2
        ):
            records += self._plan_step()
        return records

    def finish(self) -> list[Record]:
        """Plans what is left; the last records write everything back."""
        records: list[Record] = []
        while self._window:
            records += self._plan_step()
        if self._open:
            self._write_back_all()
        while self._open:
            records += self._close(self._open.popleft())
        return records

    def _write_back_all(self) -> None:
        """Evicts every row after the step planned last."""
        for worker in range(self.header.num_workers):
            owned = np.flatnonzero(self._slot_last[worker] >= 0).astype(np.int32)
            if len(owned):
                self._evict(self._open[-1], worker, owned)
        self._lists[:] = self.header.capacity_rows
        self._heads[:] = NOBODY

    def _look_at(self, touches: Touches) -> None:
        step = self._read
        keep_from = -1 if self.remember_versions else self._planned - 1 - self.header.fetch_ahead_steps
        batch = self._table.deduplicate(touches.rows, stamp=step, stamp_min=self._planned, written_min=keep_from)
        first = self._uses.reserve(step, len(batch.rows), self._window[0].first_use if self._window else None)
        _announce(
            self._table.entries, batch.rows, batch.marks, step, self._planned, self._uses.first, self._uses.ring,
            self._lists, self._heads,
        )  # fmt: skip
        self._window.append(_Read(touches, batch.rows, batch.inverse, first))
        self._window_lookups += len(touches.rows)
        self._read += 1

    def _plan_step(self) -> list[Record]:
        step, batch = self._planned, self._window.popleft()
        self._window_lookups -= len(batch.inverse)
        self._heads[:, step % self._heads.shape[1]] = NOBODY
        held, pasts = np.empty(len(batch.rows), np.int64), np.empty(len(batch.rows), np.int64)
        _locate(self._table.entries, batch.rows, held, pasts)
        placed = self._place(self._scene(step, batch, held))
        users = np.zeros(len(batch.rows), np.int64)
        _users(batch.touches.sample_offsets, batch.inverse, placed, users)
        owners = np.empty(len(batch.rows), np.int32)
        need = np.zeros(self.header.num_workers, np.int64)
        _own(held, users, self.header.num_workers, step, owners, need)
        sent = np.empty(len(batch.rows), np.int32)
        _depart(held, owners, step, self._free, self._num_free, self._slot_last, self._shared_at, sent)
        self._make_room(step, need)
        planned = self._carry_out(step, batch, held, pasts, placed, users, owners, sent)
        self._open.append(planned)
        self._planned += 1
        if self.eager:
            self._write_back_all()
        # Transfers of step y go over after y - 2 at the earliest, evictions for it after y - 1.
        return self._close(self._open.popleft()) if len(self._open) > 2 else []

    def _scene(self, step: int, batch: _Read, held: Int64) -> Scene:
        owner = np.where(held == NO_SLOT, -1, held >> 32).astype(np.int32)
        owned = held != NO_SLOT
        last = np.full(len(held), -1, np.int32)
        last[owned] = self._slot_last[owner[owned], (held[owned] & LOW)]
        uses = np.arange(batch.first_use, batch.first_use + len(batch.rows)) & (len(self._uses.ring) - 1)
        return Scene(
            step=step,
            num_workers=self.header.num_workers,
            sample_offsets=batch.touches.sample_offsets,
            inverse=batch.inverse,
            owner=owner,
            last_touch=last,
            next_touch=self._uses.ring[uses],
        )

    def _make_room(self, step: int, need: Int64) -> None:
        """Evicts, after the step before, as many rows of each worker as this step needs slots for."""
        for worker in range(self.header.num_workers):
            missing = int(need[worker] - self._num_free[worker])
            if missing <= 0:
                continue
            victims = np.empty(missing, np.int32)
            count = choose_victims(self._lists[worker], self._heads[worker], step, self._read - 1, victims)
            if count < missing or not self._open:
                held = self.header.capacity_rows
                raise BatchTooLargeError(step, held + missing - count, held)
            self._evict(self._open[-1], worker, victims)

    def _evict(self, after: _Planned, worker: int, victims: Int32) -> None:
        rows, versions = self._slot_row[worker, victims], self._slot_last[worker, victims] + np.int32(1)
        self._table.release(rows, versions, step=after.step)
        after.evict[worker] = Evict(victims, rows, versions)
        on_their_way = victims[self._shared_at[worker, victims] == after.step]
        after.promoted.append((np.int64(worker) << 32) | on_their_way.astype(np.int64))
        self._slot_last[worker, victims] = -1
        start = self._num_free[worker]
        self._free[worker, start : start + len(victims)] = victims
        self._num_free[worker] += len(victims)

    def _carry_out(
        self, step: int, batch: _Read, held: Int64, pasts: Int64, placed: Int32, users: Int64, owners: Int32,
        sent: Int32,
    ) -> _Planned:  # fmt: skip
        workers = self.header.num_workers
        slots = np.full((len(batch.rows), workers), NO_SLOT, np.int32)
        num_uses = int(np.bitwise_count(users.view(np.uint64)).sum())  # numpy counts bits of the absolute value
        transfers = np.empty((2 * num_uses, NUM_FIELDS), np.int64)
        fetches = np.empty((num_uses, 3), np.int64)
        num_transfers, num_fetches = _carry_out(
            self._table.entries, batch.rows, held, users, owners, step, batch.first_use, self._uses.ring,
            self._slot_row, self._shared_at, self._free, self._num_free, sent, slots, transfers, fetches,
        )  # fmt: skip
        _enlist(
            owners, slots, step, batch.first_use, self._uses.ring, self._slot_last, self._lists, self._heads
        )
        transfers, fetches = transfers[:num_transfers], fetches[:num_fetches]
        planned = _Planned(step, [], [transfers[transfers[:, SENT] == step]], [Evict()] * workers)
        for ahead in self._open:
            ahead.transfers.append(transfers[transfers[:, SENT] == ahead.step])
        place = np.full(len(batch.rows), -1, np.int32)
        apply, drop = (np.empty((workers, len(batch.rows)), np.int32) for _ in range(2))
        num_apply, num_drop = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        _divide(owners, slots, apply, num_apply, drop, num_drop)
        for worker in range(workers):
            owned, copies = apply[worker, : num_apply[worker]].copy(), drop[worker, : num_drop[worker]].copy()
            planned.records.append(
                self._record(step, worker, batch, pasts, placed, owned, copies, slots, fetches, place)
            )
        return planned

    def _record(
        self, step: int, worker: int, batch: _Read, pasts: Int64, placed: Int32, owned: Int32, copies: Int32,
        slots: Int32, fetches: Int64, place: Int32,
    ) -> Record:  # fmt: skip
        samples = np.flatnonzero(placed == worker).astype(np.int32)
        offsets = batch.touches.sample_offsets
        lookups = int((offsets[samples + 1] - offsets[samples]).sum())
        unique, inverse = np.empty(lookups, np.int32), np.empty(lookups, np.int32)
        touched = np.empty(lookups, np.int64)
        num_unique = _resolve(
            offsets, batch.inverse, samples, worker, slots, place, batch.rows, unique, inverse, touched
        )
        mine = fetches[fetches[:, 0] == worker]
        past = pasts[mine[:, 1]]
        written_at = int((past & LOW).max(initial=0)) - 1
        start = self._num_free[worker]
        self._free[worker, start : start + len(copies)] = copies
        self._num_free[worker] += len(copies)
        fetch = Fetch(batch.rows[mine[:, 1]], mine[:, 2].astype(np.int32), (past >> 32).astype(np.int32))
        return Record(
            step=step,
            worker=worker,
            samples=samples,
            unique=unique[:num_unique].copy(),
            inverse=inverse,
            fetch=fetch,
            not_before=max(written_at, step - 1 - self.header.fetch_ahead_steps, -1),
            apply=owned,
            evict=Evict(),
            digest=checksum_of(touched),
            drop=copies,
        )

    def _close(self, planned: _Planned) -> list[Record]:
        """The records of a step whose transfers and evictions are complete."""
        transfers = np.concatenate(planned.transfers)
        if planned.promoted:
            targets = (transfers[:, TARGET] << 32) | transfers[:, TARGET_SLOT]
            early = (transfers[:, KIND] == Kind.GRAD) & np.isin(targets, np.concatenate(planned.promoted))
            transfers[early, DEADLINE] = planned.step + 1
        sends = self._parted(transfers, SOURCE, TARGET, SOURCE_SLOT)
        receives = self._parted(transfers, TARGET, SOURCE, TARGET_SLOT)
        return [
            replace(record, evict=evict, send=send, recv=recv)
            for record, evict, send, recv in zip(planned.records, planned.evict, sends, receives, strict=True)
        ]

    def _parted(self, transfers: Int64, side: int, peer: int, slot: int) -> list[Transfers]:
        """The transfers of each worker on one side."""
        begins = np.zeros(self.header.num_workers + 1, np.int64)
        columns = np.empty((4, len(transfers)), np.int32)
        _part(transfers, side, peer, slot, begins, columns)
        return [Transfers(*columns[:, begin:end].copy()) for begin, end in pairwise(begins.tolist())]
