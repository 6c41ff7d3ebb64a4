"""The loops behind `ownership`: who holds what, who owns it now, what has to travel, and which slots are free then.

In: arrays of one step (distinct rows, users, slots) and the planner's tables, which they change. Out: arrays. Each is
one pass, compiled, without the interpreter's lock. Nothing here knows of windows or records.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from foresee.arrays import Int32, Int64
from foresee.plan.record import Kind
from foresee.plan.row_table import LOW, NO_SLOT, PAST, PREFETCH_DISTANCE, SLOT, find, prefetch_entry
from foresee.plan.upcoming import NOBODY

# One transfer: kind, step after which it is sent, deadline, from, slot there, to, slot there.
KIND, SENT, DEADLINE, SOURCE, SOURCE_SLOT, TARGET, TARGET_SLOT = range(7)
NUM_FIELDS = 7


@njit(nogil=True, cache=True)
def announce(
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
def locate(table: Int64, rows: Int64, held: Int64, pasts: Int64) -> None:
    """Where each row is (owner << 32 | slot, or NO_SLOT) and its past."""
    for k in range(len(rows)):
        prefetch_entry(table, rows, k + PREFETCH_DISTANCE)
        entry = find(table, rows[k])
        held[k] = table[entry, SLOT]
        pasts[k] = table[entry, PAST]


@njit(nogil=True, cache=True)
def users(offsets: Int32, inverse: Int32, placed: Int32, users: Int64) -> None:
    """Bit w of users[row]: worker w has a sample that accesses the row."""
    for sample in range(len(placed)):
        bit = np.int64(1) << placed[sample]
        for k in range(offsets[sample], offsets[sample + 1]):
            users[inverse[k]] |= bit


@njit(nogil=True, cache=True)
def own(held: Int64, users: Int64, num_workers: int, step: int, owners: Int32, need: Int64) -> None:
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
def send_rows(
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
def carry_out(
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
def enlist(
    owners: Int32, slots: Int32, step: int, first: int, next_use: Int32, slot_last: Int32, lists: Int32, heads: Int32,
    later: Int32, slot_later: Int32,
) -> None:  # fmt: skip
    """Puts owned slots into the bucket of their next use, or at the end of the list of rows without one.

    later: the next use of every row if it is known beyond the window, for those without one in it; or empty.
    """
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
            if len(later):
                slot_later[worker, slot] = later[k]
        else:
            bucket = following % heads.shape[1]
            lists[worker, slot, 0] = heads[worker, bucket]
            heads[worker, bucket] = slot


@njit(nogil=True, cache=True)
def resolve(
    offsets: Int32, inverse: Int32, samples: Int32, worker: int, slots: Int32, place: Int32, rows: Int64,
    unique: Int32, local: Int32, touched: Int64,
) -> int:  # fmt: skip
    """One worker's `unique` and `inverse`, in order of first access by its own samples, and the rows of its lookups.

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
def divide(owners: Int32, slots: Int32, apply: Int32, num_apply: Int64, drop: Int32, num_drop: Int64) -> None:
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
def part(transfers: Int64, side: int, peer: int, slot: int, begins: Int64, columns: Int32) -> None:
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
