"""The plan for many workers: a row belongs to one of them, and travels when another needs it.

In: the accesses of each step, read ahead as in `lookahead`. Out: one record for each worker and step. In every step
the samples are placed first (`placement`); then each distinct row has users, and

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

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan import ownership_kernels as kernels
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.ownership_kernels import DEADLINE, KIND, NUM_FIELDS, SENT, SOURCE, SOURCE_SLOT, TARGET, TARGET_SLOT
from foresee.plan.placement import PLACEMENTS, LocationAware, Placement, Scene
from foresee.plan.record import (
    NOT_KNOWN,
    UNKNOWN_VERSION,
    Accesses,
    Evict,
    Fetch,
    Header,
    Kind,
    Record,
    Transfers,
    empty_int32,
)
from foresee.plan.row_table import LOW, NO_SLOT, RowTable, checksum_of
from foresee.plan.upcoming import (
    NOBODY,
    WINDOW_BYTES,
    WINDOW_STEPS,
    NextUses,
    Reach,
    bytes_in_window,
    choose_victims,
    window_bytes,
    with_later_uses,
)

NUM_WORKERS_MAX = 64


@dataclass(slots=True)
class _Read:
    """A batch that was read and not yet planned."""

    accesses: Accesses
    rows: Int64
    inverse: Int32
    first_use: int
    later: Int32
    """Next uses beyond the window, if anybody looked for them."""


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
        window_bytes: int | None = WINDOW_BYTES,
        window_first_bytes: int | None = None,
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
        self._reach = Reach(window_bytes, window_first_bytes)
        self.remember_versions = remember_versions
        self._place = placement
        fresh = 0 if remember_versions and header.first_step == 0 else UNKNOWN_VERSION
        workers, capacity = header.num_workers, header.capacity_rows
        self._table = RowTable(num_rows=header.num_rows, fresh_version=fresh)
        self._slot_row = np.full((workers, capacity), -1, np.int64)
        self._slot_last = np.full((workers, capacity), -1, np.int32)
        self._slot_later = np.full((workers, capacity), NOT_KNOWN, np.int32)
        self._shared_at = np.full((workers, capacity), -1, np.int32)
        self._free = np.tile(np.arange(capacity - 1, -1, -1, dtype=np.int32), (workers, 1))
        self._num_free = np.full(workers, capacity, np.int64)
        self._lists = np.full((workers, capacity + 1, 2), capacity, np.int32)
        self._heads = np.full((workers, self.window_steps + 2), NOBODY, np.int32)
        self._uses = NextUses(self.window_steps)
        self._window: deque[_Read] = deque()
        self._bytes_held = 0
        self._begun: tuple[_Read, Int64, Int64]
        self._planned = header.first_step
        self._read = header.first_step
        self._open: deque[_Planned] = deque()

    def push(self, accesses: Accesses) -> list[Record]:
        """Reads the next batch; plans the oldest one of the window once that is full."""
        self.look_at(accesses)
        records: list[Record] = []
        while self.is_full:
            records += self.plan_step(self._place(self.begin_step()))
        return records

    def finish(self) -> list[Record]:
        """Plans what is left; the last records write everything back."""
        records: list[Record] = []
        while self.num_waiting:
            records += self.plan_step(self._place(self.begin_step()))
        return records + self.end()

    # The parts of `push` and `finish`, for whoever places the samples of several planners alike.

    @property
    def placement(self) -> Placement:
        return self._place

    @property
    def num_waiting(self) -> int:
        """Steps in the window."""
        return len(self._window)

    @property
    def is_full(self) -> bool:
        """Whether the oldest step of the window is to be planned."""
        too_large = self._bytes_held > self._reach.num_bytes and len(self._window) > 2
        return len(self._window) > self.window_steps or too_large

    def end(self) -> list[Record]:
        """The last records, once the window is empty."""
        records: list[Record] = []
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
                self._evict(self._open[-1], worker, owned, np.full(len(owned), NOT_KNOWN, np.int32))
        self._lists[:] = self.header.capacity_rows
        self._heads[:] = NOBODY

    def look_at(self, accesses: Accesses) -> None:
        """Takes the next batch into the window."""
        step = self._read
        if accesses.num_samples < self.header.num_workers:
            raise PlanError(
                f"step {step} has {accesses.num_samples} samples, fewer than its {self.header.num_workers} "
                "workers; choose larger batches or fewer workers"
            )
        keep_from = -1 if self.remember_versions else self._planned - 1 - self.header.fetch_ahead_steps
        batch = self._table.deduplicate(accesses.rows, stamp=step, stamp_min=self._planned, written_min=keep_from)
        first = self._uses.reserve(step, len(batch.rows), self._window[0].first_use if self._window else None)
        kernels.announce(
            self._table.entries, batch.rows, batch.marks, step, self._planned, self._uses.first, self._uses.ring,
            self._lists, self._heads,
        )  # fmt: skip
        later = empty_int32() if accesses.next_uses is None else accesses.next_uses(batch.rows)
        self._window.append(_Read(accesses, batch.rows, batch.inverse, first, later))
        self._bytes_held += bytes_in_window(len(batch.inverse), len(batch.rows))
        self._read += 1

    def begin_step(self) -> Scene:
        """What the placement of the window's oldest step may look at; `plan_step` is due next."""
        step, batch = self._planned, self._window.popleft()
        num_bytes = bytes_in_window(len(batch.inverse), len(batch.rows))
        self._bytes_held -= num_bytes
        self._reach.planned(num_bytes)
        self._heads[:, step % self._heads.shape[1]] = NOBODY
        held, pasts = np.empty(len(batch.rows), np.int64), np.empty(len(batch.rows), np.int64)
        kernels.locate(self._table.entries, batch.rows, held, pasts)
        self._begun = batch, held, pasts
        return self._scene(step, batch, held)

    def plan_step(self, placed: Int32) -> list[Record]:
        """Plans the step that was begun, with its samples at these workers; returns records that are now complete."""
        step, (batch, held, pasts) = self._planned, self._begun
        users = np.zeros(len(batch.rows), np.int64)
        kernels.users(batch.accesses.sample_offsets, batch.inverse, placed, users)
        owners = np.empty(len(batch.rows), np.int32)
        need = np.zeros(self.header.num_workers, np.int64)
        kernels.own(held, users, self.header.num_workers, step, owners, need)
        sent = np.empty(len(batch.rows), np.int32)
        kernels.send_rows(held, owners, step, self._free, self._num_free, self._slot_last, self._shared_at, sent)
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
            sample_offsets=batch.accesses.sample_offsets,
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
            victims, next_use = (np.empty(missing, np.int32) for _ in range(2))
            lists, heads = self._lists[worker], self._heads[worker]
            count = choose_victims(lists, heads, step, self._read - 1, victims, next_use)
            if count < missing or not self._open:
                held = self.header.capacity_rows
                raise BatchTooLargeError(step, held + missing - count, held)
            later = self._slot_later[worker, victims]
            self._evict(self._open[-1], worker, victims, with_later_uses(next_use, later))

    def _evict(self, after: _Planned, worker: int, victims: Int32, next_use: Int32) -> None:
        rows, versions = self._slot_row[worker, victims], self._slot_last[worker, victims] + np.int32(1)
        self._table.release(rows, versions, step=after.step)
        after.evict[worker] = Evict(victims, rows, versions, next_use)
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
        num_transfers, num_fetches = kernels.carry_out(
            self._table.entries, batch.rows, held, users, owners, step, batch.first_use, self._uses.ring,
            self._slot_row, self._shared_at, self._free, self._num_free, sent, slots, transfers, fetches,
        )  # fmt: skip
        kernels.enlist(
            owners, slots, step, batch.first_use, self._uses.ring, self._slot_last, self._lists, self._heads,
            batch.later, self._slot_later,
        )  # fmt: skip
        transfers, fetches = transfers[:num_transfers], fetches[:num_fetches]
        planned = _Planned(step, [], [transfers[transfers[:, SENT] == step]], [Evict()] * workers)
        for ahead in self._open:
            ahead.transfers.append(transfers[transfers[:, SENT] == ahead.step])
        place = np.full(len(batch.rows), -1, np.int32)
        apply, drop = (np.empty((workers, len(batch.rows)), np.int32) for _ in range(2))
        num_apply, num_drop = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        kernels.divide(owners, slots, apply, num_apply, drop, num_drop)
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
        offsets = batch.accesses.sample_offsets
        lookups = int((offsets[samples + 1] - offsets[samples]).sum())
        unique, inverse = np.empty(lookups, np.int32), np.empty(lookups, np.int32)
        touched = np.empty(lookups, np.int64)
        num_unique = kernels.resolve(
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
        kernels.part(transfers, side, peer, slot, begins, columns)
        return [Transfers(*columns[:, begin:end].copy()) for begin, end in pairwise(begins.tolist())]


def placed_ownership(header: Header, *, eager: bool) -> Ownership:
    """As the header's options say: placement, positions that it looks at, window."""
    options = header.options
    name = options.placement or "location_aware"
    if name not in PLACEMENTS:
        raise PlanError(f"there is no placement {name!r}; choose one of {', '.join(PLACEMENTS)}")
    place = PLACEMENTS[name]
    if options.placement_positions is not None and name == "location_aware":
        place = LocationAware(positions=options.placement_positions)
    return Ownership(
        header,
        place,
        window_steps=(options.read_ahead_steps or WINDOW_STEPS)
        if options.window_steps is None
        else options.window_steps,
        window_bytes=window_bytes(header),
        window_first_bytes=options.window_first_bytes,
        eager=eager,
        remember_versions=options.remember_versions,
    )
