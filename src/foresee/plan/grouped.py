"""The plan of rows of several widths: a planner for each group, over the same steps and the same placement of samples.

In: the accesses of each step, rows numbered over all groups. Out: one record for each worker and step, which says what
the planners of all groups say: their slots group after group, their rows as the log numbers them. `parted` takes such a
record apart again, for whoever has a cache and a store for each group.

With one worker the planners know nothing of each other. With several, samples are placed once for all groups: the
placement sees the rows of all of them, so planners go step by step together (`TogetherGrouped`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from foresee.arrays import Int32, Int64
from foresee.errors import PlanError
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.ownership import Ownership
from foresee.plan.placement import LocationAware, Scene
from foresee.plan.policy import MakePlanner, Profile
from foresee.plan.record import (
    Accesses,
    Evict,
    Fetch,
    Header,
    Planner,
    Record,
    Transfers,
    refuse_compared,
)
from foresee.plan.row_groups import Numbering, numbering_of
from foresee.plan.row_table import RowTable, checksum_of


def grouped(header: Header, make: MakePlanner, profile: Profile) -> Planner:
    """The planner of all groups; `make` makes that of one, from a header and a profile of its rows alone."""
    numbering = numbering_of(header.groups)

    def of_group(number: int) -> Planner:
        return make(
            header_of(header, number),
            lambda steps: (
                _parts(it, *numbering.of_rows(it.rows), len(header.groups))[number] for it in profile(steps)
            ),
        )

    planners = [of_group(number) for number in range(len(header.groups))]
    together = [planner for planner in planners if isinstance(planner, Ownership)]
    if len(together) == len(planners):
        return TogetherGrouped(header, together)
    if header.num_workers > 1:
        raise PlanError(
            f"planner {header.planner!r} places samples by itself, so it cannot plan tables of several widths for "
            f"{header.num_workers} workers; take lookahead, or give all tables one width"
        )
    return Grouped(header, planners)


def header_of(header: Header, number: int) -> Header:
    """The header of one group's plan; the groups share what the batches of a window may take."""
    group, options = header.groups[number], header.options

    def part(num_bytes: int | None) -> int | None:
        return None if num_bytes is None else max(1, num_bytes // len(header.groups))

    window, at_first = part(options.window_bytes), part(options.window_first_bytes)
    return replace(
        header, capacity_rows=group.capacity_rows, num_rows=group.num_rows, groups=(),
        options=replace(options, window_bytes=window, window_first_bytes=at_first, placement_positions=None),
    )  # fmt: skip


class Grouped:
    """Planners of one worker, each with its own window; a record comes out once all of them have decided it."""

    def __init__(self, header: Header, planners: Sequence[Planner]) -> None:
        self.header = header
        self._planners = planners
        self._groups = _Groups(header)
        self._decided: list[deque[Record]] = [deque() for _ in planners]

    def push(self, accesses: Accesses) -> list[Record]:
        parts = self._groups.read(accesses)
        for number, (planner, part) in enumerate(zip(self._planners, parts, strict=True)):
            with self._groups.named(number):
                self._decided[number].extend(planner.push(part))
        return list(self._joined())

    def finish(self) -> list[Record]:
        for number, planner in enumerate(self._planners):
            with self._groups.named(number):
                self._decided[number].extend(planner.finish())
        return list(self._joined())

    def _joined(self) -> Iterator[Record]:
        while all(self._decided):
            yield self._groups.joined([decided.popleft() for decided in self._decided])


class TogetherGrouped:
    """Planners of several workers in step, with one placement."""

    def __init__(self, header: Header, planners: Sequence[Ownership]) -> None:
        self.header = header
        self._planners = planners
        self._groups = _Groups(header)
        self._place, positions = planners[0].placement, header.options.placement_positions
        if positions is not None and isinstance(self._place, LocationAware):
            self._place = replace(self._place, positions=positions)
        self._window: deque[_Read] = deque()

    def push(self, accesses: Accesses) -> list[Record]:
        for planner, part in zip(self._planners, self._groups.read(accesses), strict=True):
            planner.look_at(part)
        self._window.append(self._groups.last)
        records: list[Record] = []
        while any(planner.is_full for planner in self._planners):
            records += self._plan_step()
        return records

    def finish(self) -> list[Record]:
        records: list[Record] = []
        while self._window:
            records += self._plan_step()
        return records + self._all(lambda number: self._planners[number].end())

    def _plan_step(self) -> list[Record]:
        scene = _joint(self._window.popleft(), [planner.begin_step() for planner in self._planners])
        placed = self._place(scene)
        return self._all(lambda number: self._planners[number].plan_step(placed))

    def _all(self, plan: Callable[[int], list[Record]]) -> list[Record]:
        decided = []
        for number in range(len(self._planners)):
            with self._groups.named(number):
                decided.append(plan(number))
        return [self._groups.joined(list(records)) for records in zip(*decided, strict=True)]


def _joint(read: _Read, scenes: Sequence[Scene]) -> Scene:
    """One scene of all groups: the lookups in the order of the batch, the distinct rows group after group."""
    inverse = _inverse(read.groups, [(scene.inverse, len(scene.owner)) for scene in scenes])
    columns = ((scene.owner, scene.last_touch, scene.next_touch) for scene in scenes)
    owner, last_touch, next_touch = map(np.concatenate, zip(*columns, strict=True))
    return replace(
        scenes[0], sample_offsets=read.sample_offsets, inverse=inverse, owner=owner, last_touch=last_touch,
        next_touch=next_touch,
    )  # fmt: skip


def _inverse(groups: NDArray[np.uint8], parts: Sequence[tuple[Int32, int]]) -> Int32:
    """Positions of the lookups of all groups, whose distinct rows stand one group after another.

    groups: the group of each lookup. parts: of each group the positions among its distinct rows, and their number.
    """
    inverse, base = np.empty(len(groups), np.int32), 0
    for number, (positions, num_distinct) in enumerate(parts):
        inverse[groups == number] = positions + np.int32(base)
        base += num_distinct
    return inverse


@dataclass(slots=True)
class _Read:
    """A step that is read and not yet recorded."""

    sample_offsets: Int32
    groups: NDArray[np.uint8]
    """Of each lookup."""
    rows: Int64 | None
    """Of several workers, whose records each have the checksum of their own."""
    checksum: int
    """Of all rows."""
    num_records: int
    """Still to come."""

    def of_samples(self, samples: Int32) -> tuple[NDArray[np.uint8], int]:
        """The group of each lookup of some samples, in their order, and the checksum of their rows."""
        if len(samples) == len(self.sample_offsets) - 1:
            return self.groups, self.checksum
        offsets = self.sample_offsets
        sizes = (offsets[samples + 1] - offsets[samples]).astype(np.int64)
        begins = np.cumsum(sizes) - sizes
        chosen = np.repeat(offsets[samples] - begins, sizes) + np.arange(int(sizes.sum()))
        assert self.rows is not None, "one worker has all samples"
        return self.groups[chosen], checksum_of(self.rows[chosen])


class _Groups:
    """Takes the steps of a plan apart, and puts the records of its groups together."""

    def __init__(self, header: Header) -> None:
        self.numbering = numbering_of(header.groups)
        self._table = RowTable(num_rows=header.num_rows, fresh_version=0)
        self._read = header.first_step
        self._waiting: dict[int, _Read] = {}
        """By step."""
        self._num_workers = header.num_workers

    @property
    def last(self) -> _Read:
        """What was read last."""
        return self._waiting[self._read - 1]

    def read(self, accesses: Accesses) -> list[Accesses]:
        """The accesses of each group."""
        if accesses.next_uses is None and _inside(accesses.rows, self._table.num_rows):
            uses = None
        else:
            distinct, _, _ = self._table.number(accesses.rows, self._read)
            groups, _ = self.numbering.of_rows(distinct)
            known = None if accesses.next_uses is None else accesses.next_uses(distinct)
            uses = None if known is None else [known[groups == it] for it in range(len(self.numbering.groups))]
        groups, local = self.numbering.of_rows(accesses.rows)
        parts = _parts(accesses, groups, local, len(self.numbering.groups))
        self._waiting[self._read] = _Read(
            accesses.sample_offsets, groups.astype(np.uint8), accesses.rows if self._num_workers > 1 else None,
            checksum_of(accesses.rows), self._num_workers,
        )  # fmt: skip
        self._read += 1
        if uses is None:
            return parts
        return [replace(part, next_uses=_given(use)) for part, use in zip(parts, uses, strict=True)]

    @contextmanager
    def named(self, number: int) -> Iterator[None]:
        """While a group's planner plans: a batch that does not fit is named by the group's width."""
        try:
            yield
        except BatchTooLargeError as error:
            group = self.numbering.groups[number]
            raise PlanError(
                f"step {error.step} touches {error.num_distinct} distinct rows of {group.name}, and "
                f"{group.capacity_rows} of the cache's {self.numbering.first_slot[-1]} slots are for these (tables "
                "share them as they share the rows of the first batch); raise cache.rows or lower train.batch_size in "
                "the run file (in Python cache_rows and the size of batches)"
            ) from None

    def joined(self, records: Sequence[Record]) -> Record:
        """One record of the groups' records of a step and worker."""
        first = records[0]
        read = self._waiting[first.step]
        read.num_records -= 1
        if not read.num_records:
            del self._waiting[first.step]
        groups, checksum = read.of_samples(first.samples)
        inverse = _inverse(groups, [(record.inverse, len(record.unique)) for record in records])
        return join(records, self.numbering, inverse, checksum)


def _inside(rows: Int64, num_rows: int) -> bool:
    return not len(rows) or (int(rows.min()) >= 0 and int(rows.max()) < num_rows)


def _given(uses: Int32) -> Callable[[Int64], Int32]:
    """A group's distinct rows come in the order in which they stand among all: so do their next uses."""
    return lambda rows: uses


def _parts(accesses: Accesses, groups: Int64, local: Int64, num_groups: int) -> list[Accesses]:
    """The accesses of each group, in its own numbers."""
    parts = []
    for number in range(num_groups):
        lookups = np.flatnonzero(groups == number)
        offsets = np.searchsorted(lookups, accesses.sample_offsets).astype(np.int32)
        parts.append(Accesses(local[lookups], offsets))
    return parts


def join(records: Sequence[Record], numbering: Numbering, inverse: Int32, digest: int) -> Record:
    """What all groups say, as one record: slots group after group, rows as the log numbers them."""
    for record in records:
        refuse_compared(record, "joined over row groups")

    def slots(column: Callable[[Record], Int32]) -> Int32:
        moved = [column(it) + np.int32(first) for it, first in zip(records, numbering.first_slot, strict=False)]
        return np.concatenate(moved)

    def rows(column: Callable[[Record], Int64]) -> Int64:
        return np.concatenate([numbering.rows_of(number, column(it)) for number, it in enumerate(records)])

    def plain(column: Callable[[Record], Int32]) -> Int32:
        return np.concatenate([column(it) for it in records])

    def transfers(column: Callable[[Record], Transfers]) -> Transfers:
        return Transfers(
            plain(lambda it: column(it).peer), slots(lambda it: column(it).slot), plain(lambda it: column(it).kind),
            plain(lambda it: column(it).deadline),
        )  # fmt: skip

    has_uses = all(len(it.evict.next_use) == len(it.evict) for it in records)
    return replace(
        records[0],
        unique=slots(lambda it: it.unique),
        inverse=inverse,
        fetch=Fetch(
            rows(lambda it: it.fetch.row), slots(lambda it: it.fetch.slot), plain(lambda it: it.fetch.version)
        ),
        not_before=max(record.not_before for record in records),
        apply=slots(lambda it: it.apply),
        evict=Evict(
            slots(lambda it: it.evict.slot), rows(lambda it: it.evict.row), plain(lambda it: it.evict.version),
            plain(lambda it: it.evict.next_use) if has_uses else np.empty(0, np.int32),
        ),
        digest=digest,
        recv=transfers(lambda it: it.recv),
        send=transfers(lambda it: it.send),
        drop=slots(lambda it: it.drop),
    )  # fmt: skip


def parted(record: Record, numbering: Numbering, lookups: Iterable[Int64 | slice]) -> list[Record]:
    """The records of the groups, in their own rows and slots; `lookups` says which lookups of the record are whose.

    A plan may come from an unknown author: a row in a slot of another group would reach memory that is not its own.
    """
    return [_part(record, numbering, number, at) for number, at in enumerate(lookups)]


def _part(record: Record, numbering: Numbering, number: int, lookups: Int64 | slice) -> Record:
    first = np.int32(numbering.first_slot[number])

    def chosen(slots: Int32) -> Int64:
        return np.flatnonzero(numbering.has_slot(number, slots))

    def rows(some: Int64) -> Int64:
        groups, local = numbering.of_rows(some)
        if (groups != number).any():
            raise PlanError(f"step {record.step}: the plan puts a row into a slot of another width; plan again")
        return local

    def transfers(some: Transfers) -> Transfers:
        at = chosen(some.slot)
        return Transfers(some.peer[at], some.slot[at] - first, some.kind[at], some.deadline[at])

    unique, fetch, evict = chosen(record.unique), chosen(record.fetch.slot), chosen(record.evict.slot)
    place = np.full(len(record.unique), -1, np.int32)
    place[unique] = np.arange(len(unique), dtype=np.int32)
    inverse = place[record.inverse[lookups]]
    if len(inverse) and int(inverse.min()) < 0:
        raise PlanError(f"step {record.step}: the plan looks a row up in a slot of another width; plan again")
    uses = record.evict.next_use
    return replace(
        record,
        unique=record.unique[unique] - first,
        inverse=inverse,
        fetch=Fetch(rows(record.fetch.row[fetch]), record.fetch.slot[fetch] - first, record.fetch.version[fetch]),
        apply=record.apply[chosen(record.apply)] - first,
        evict=Evict(
            record.evict.slot[evict] - first, rows(record.evict.row[evict]), record.evict.version[evict],
            uses[evict] if len(uses) else uses,
        ),
        recv=transfers(record.recv),
        send=transfers(record.send),
        drop=record.drop[chosen(record.drop)] - first,
    )  # fmt: skip
