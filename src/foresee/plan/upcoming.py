"""What planners with a window know of the future: when each accessed row is used next, and who leaves first.

Next uses of all batches in the window stand in one ring, batch after batch. Rows in slots lie in lists: one bucket for
each step of the window, and one list, oldest first, of those without a known use. `lookahead` says why this is cheap.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from foresee.arrays import Int32
from foresee.plan.record import Header

WINDOW_STEPS = 4096
WINDOW_BYTES = 2 << 30
"""A window whose length nobody fixed also ends where its batches take so many bytes. Mostly it is this that ends it.
A number, not a share of the machine's memory: the same settings give the same plan wherever it is made."""
WINDOW_FIRST_BYTES = 32 << 20
"""What the batches of a window take at first, so that the first record does not wait for gigabytes of them."""
LOOKUP_BYTES = 12
"""What a lookup of a batch in the window takes: its position, and its part of the record to come."""
NEXT_USE_BYTES = 12
"""What a distinct row of a batch takes: its id, and its place in the ring."""
ROW_TABLE_BYTES = 2 * 32
"""What a row in the window takes in a hash table that is half full at worst."""
NOBODY = -1


def bytes_in_window(num_lookups: int, num_distinct: int) -> int:
    """What one batch takes, at most: as if no other batch of the window had its rows."""
    return num_lookups * LOOKUP_BYTES + num_distinct * (NEXT_USE_BYTES + ROW_TABLE_BYTES)


def window_bytes(header: Header) -> int | None:
    """What the batches of the window may take; nothing bounds a window whose length was fixed, unless it is asked."""
    options = header.options
    if options.window_bytes is not None:
        return options.window_bytes
    return WINDOW_BYTES if options.window_steps is None else None


class Reach:
    """How many bytes of batches the window may hold: all of them at once, or few at first and more with every step.

    A window that grows does so by what is planned, so two batches are read for each step until it is full. What it
    holds at a step follows from the log and the header alone: nothing here knows how fast anybody was.
    """

    def __init__(self, full_bytes: int | None, first_bytes: int | None) -> None:
        self._full: float = math.inf if full_bytes is None else full_bytes
        self.num_bytes = self._full if first_bytes is None else min(self._full, first_bytes)

    def planned(self, num_bytes: int) -> None:
        """A batch of so many bytes left the window."""
        self.num_bytes = min(self._full, self.num_bytes + num_bytes)


class NextUses:
    """The ring: for every distinct row of every batch in the window the step of its next use, or NOBODY."""

    def __init__(self, window_steps: int) -> None:
        self.ring = np.full(1024, NOBODY, np.int32)
        self.first = np.zeros(window_steps + 2, np.int64)
        """Where the uses of step s begin, at s % len; positions count on for ever and are taken modulo the ring."""
        self._end = 0

    def reserve(self, step: int, count: int, oldest: int | None) -> int:
        """Room for the uses of one batch; returns where they begin. `oldest`: where those of the window's oldest do."""
        first, self._end = self._end, self._end + count
        begin_of_held = first if oldest is None else oldest
        if self._end - begin_of_held > len(self.ring):
            grown = np.full(1 << int(self._end - begin_of_held).bit_length(), NOBODY, np.int32)
            held = np.arange(begin_of_held, first)
            grown[held & (len(grown) - 1)] = self.ring[held & (len(self.ring) - 1)]
            self.ring = grown
        begin = first & (len(self.ring) - 1)
        self.ring[begin : begin + count] = NOBODY
        self.ring[: max(0, begin + count - len(self.ring))] = NOBODY  # what goes round the end of the ring
        self.first[step % len(self.first)] = first
        return first


def with_later_uses(next_use: Int32, later: Int32) -> Int32:
    """The next uses of victims, where the window knows none those that were known when each was used last."""
    return np.where(next_use == NOBODY, later, next_use)


@njit(nogil=True, cache=True)
def choose_victims(lists: Int32, heads: Int32, step: int, last_known: int, victims: Int32, next_use: Int32) -> int:
    """Takes victims off the lists: first rows without a known use, oldest first, then the farthest bucket.

    Fills the step that uses each of them next, too; NOBODY knows it of the first ones.
    """
    nowhere = len(lists) - 1
    count = 0
    while count < len(victims) and lists[nowhere, 0] != nowhere:
        slot = lists[nowhere, 0]
        after = lists[slot, 0]
        lists[nowhere, 0] = after
        lists[after, 1] = nowhere
        victims[count] = slot
        next_use[count] = NOBODY
        count += 1
    farthest = last_known
    while count < len(victims) and farthest > step:
        slot = heads[farthest % len(heads)]
        if slot == NOBODY:
            farthest -= 1
            continue
        heads[farthest % len(heads)] = lists[slot, 0]
        victims[count] = slot
        next_use[count] = farthest
        count += 1
    return count
