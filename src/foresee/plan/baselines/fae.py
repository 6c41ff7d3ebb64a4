"""FAE: a fixed set of hot rows, held by every worker while samples that touch nothing else are trained.

The hot set is fixed before training from the frequencies of a profile: as many rows as a cache holds. A sample is hot
if all of its rows are; `group` puts cold samples first and hot ones after them, as the published code does for an epoch
(the paper interleaves them by a rule that depends on the test loss, which no plan can know). So the order of samples
is not that of the log, which is FAE's price.

    cold step   no cache: every worker fetches its rows; one user of each gets the others' gradients and writes it back
    hot step    every worker holds all hot rows; the gradients of those touched are summed over all workers, at once
    between     all hot rows go to every worker before the first hot step, and back after the last, each worker a part

A worker's cold rows cost twice their number either way: read and gradient at the store, as in FAE, or as here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError, row_frequencies
from foresee.plan.baselines.recency import Numbering, Share, shares_of, users_of, widened
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import Accesses, ComparedRecord, Evict, Fetch, Header, Kind, Record, Reduce, Transfers


def hot_rows(profile: Iterable[Accesses], capacity_rows: int) -> Int64:
    """The rows in most batches of the profile, ascending, as many as fit."""
    rows, counts = row_frequencies(profile)
    rows, counts = rows[1:], counts[1:]
    return np.sort(rows[np.argsort(-counts, kind="stable")[:capacity_rows]])


def group(trace: Sequence[Accesses], hot: Int64) -> list[Accesses]:
    """The same samples in batches of the same sizes, those that touch a row outside the hot set first."""
    rows = np.concatenate([accesses.rows for accesses in trace])
    lengths = np.concatenate([np.diff(accesses.sample_offsets) for accesses in trace]).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    cold_before = np.concatenate([[0], np.cumsum(~np.isin(rows, hot))])
    is_hot = cold_before[starts[1:]] == cold_before[starts[:-1]]
    order = np.argsort(is_hot, kind="stable")
    ends = np.cumsum([accesses.num_samples for accesses in trace])
    return [_gather(rows, starts, part) for part in np.split(order, ends[:-1])]


def _gather(rows: Int64, starts: Int64, samples: Int64) -> Accesses:
    parts = [rows[starts[sample] : starts[sample + 1]] for sample in samples]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])]).astype(np.int32)
    return Accesses(np.concatenate([np.empty(0, np.int64), *parts]), offsets)


class StaticHotSet:
    """Plans one phase after the other, as the batches come. Never forgets a row."""

    def __init__(self, header: Header, hot: Int64) -> None:
        if len(hot) > header.capacity_rows:
            raise BatchTooLargeError(header.first_step, len(hot), header.capacity_rows)
        self.header = header
        self._numbering = Numbering(header.num_rows)
        self._hot = np.unique(self._numbering.number(hot, header.first_step))
        """Their numbers are 0, 1, ..., and these are their slots too."""
        self._version = np.zeros(len(hot), np.int32)
        self._written_at = np.full(len(hot), -1, np.int32)
        self._next = header.first_step
        self._open: list[Record] = []
        """The last hot step, if the hot rows are still with the workers."""

    def push(self, accesses: Accesses) -> list[Record]:
        step, workers = self._next, self.header.num_workers
        numbers = self._numbering.number(accesses.rows, step)
        self._version = widened(self._version, len(self._numbering.rows), 0)
        self._written_at = widened(self._written_at, len(self._numbering.rows), -1)
        placed = (np.arange(accesses.num_samples) * workers // max(1, accesses.num_samples)).astype(np.int32)
        shares = shares_of(accesses, numbers, placed, workers)
        self._next += 1
        if len(numbers) and numbers.max() < len(self._hot):
            return self._hot_step(step, shares)
        return self._end_phase() + self._cold_step(step, shares)

    def finish(self) -> list[Record]:
        return self._end_phase()

    def _hot_step(self, step: int, shares: list[Share]) -> list[Record]:
        closed, begins = self._open, not self._open
        touched, _ = users_of(shares)
        reduce = Reduce(touched.astype(np.int32), np.full(len(touched), step + 1, np.int32))
        fetched = self._hot if begins else np.empty(0, np.int64)
        nothing = np.empty(0, np.int32)
        self._open = [
            replace(
                self._record(step, worker, share, fetched, fetched.astype(np.int32)),
                unique=share.distinct.astype(np.int32),
                apply=nothing,
                reduce=reduce,
            )
            for worker, share in enumerate(shares)
        ]
        self._version[touched] = step + 1
        return closed

    def _end_phase(self) -> list[Record]:
        """The hot rows go back to the store after the last hot step."""
        parts = np.array_split(self._hot, self.header.num_workers)
        closed = []
        for record, part in zip(self._open, parts, strict=False):
            evict = Evict(part.astype(np.int32), self._numbering.rows[part], self._version[part])
            closed.append(replace(record, evict=evict, drop=np.setdiff1d(self._hot, part).astype(np.int32)))
            self._written_at[self._hot] = record.step
        self._open = []
        return closed

    def _cold_step(self, step: int, shares: list[Share]) -> list[Record]:
        distinct, users = users_of(shares)
        owner = np.bitwise_count((users & -users) - 1).astype(np.int32)  # the first user
        slots = np.full((self.header.num_workers, len(distinct)), -1, np.int32)
        for worker, share in enumerate(shares):
            if len(share.distinct) > self.header.capacity_rows:
                raise BatchTooLargeError(step, len(share.distinct), self.header.capacity_rows)
            slots[worker, np.searchsorted(distinct, share.distinct)] = np.arange(len(share.distinct))
        records = []
        for worker, share in enumerate(shares):
            record = self._record(step, worker, share, share.distinct, np.arange(len(share.distinct), dtype=np.int32))
            records.append(self._with_owners(record, distinct, owner, slots))
        self._version[distinct] = step + 1
        self._written_at[distinct] = step
        return records

    def _with_owners(self, record: Record, distinct: Int64, owner: Int32, slots: Int32) -> Record:
        """Adds who applies and writes back each row, and the gradients that go there."""
        mine = slots[record.worker]
        owned = owner == record.worker
        lent = (mine >= 0) & ~owned
        step, rows = record.step, self._numbering.rows[distinct[owned]]
        incoming = [np.flatnonzero(owned & (slots[peer] >= 0)) for peer in range(len(slots))]
        incoming[record.worker] = incoming[record.worker][:0]
        sources = np.concatenate([np.full(len(some), peer, np.int32) for peer, some in enumerate(incoming)])
        return replace(
            record,
            apply=mine[owned],
            evict=Evict(mine[owned], rows, np.full(len(rows), step + 1, np.int32)),
            drop=mine[lent],
            send=_gradients(owner[lent], mine[lent], step),
            recv=_gradients(sources, mine[np.concatenate(incoming)], step),
        )

    def _record(self, step: int, worker: int, share: Share, fetched: Int64, slots: Int32) -> ComparedRecord:
        written_at = int(self._written_at[fetched].max(initial=-1))
        return ComparedRecord(
            step=step,
            worker=worker,
            samples=share.samples,
            unique=slots,
            inverse=share.inverse,
            fetch=Fetch(self._numbering.rows[fetched], slots, self._version[fetched]),
            not_before=max(written_at, step - 1 - self.header.fetch_ahead_steps, -1),
            apply=slots,
            evict=Evict(),
            digest=share.digest,
        )


def _gradients(peer: Int32, slot: Int32, step: int) -> Transfers:
    kind = np.full(len(peer), Kind.GRAD, np.int32)
    return Transfers(peer, slot, kind, np.full(len(peer), step + 1, np.int32))


PROFILE_SHARE = 20
"""A twentieth of the steps is what FAE looks at before it begins."""


def _profile_steps(num_steps: int) -> int:
    return max(1, num_steps // PROFILE_SHARE)


def compared(header: Header, profile: Profile) -> StaticHotSet:
    return StaticHotSet(header, hot_rows(profile(_profile_steps(header.num_steps)), header.capacity_rows))


def order(header: Header, steps: Sequence[Accesses]) -> Sequence[Accesses]:
    """Samples that access only hot rows come last."""
    return group(steps, hot_rows(steps[: _profile_steps(len(steps))], header.capacity_rows))


POLICY = Policy(
    name="fae",
    meaning="a hot set for hot batches, samples reordered",
    colour="#d06fa0",
    compared=compared,
    workers_max=USERS_MAX,
    order=order,
)
