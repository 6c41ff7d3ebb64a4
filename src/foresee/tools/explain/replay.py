"""Records say slots; here they become rows again: a plan played through, step after step.

In: the records of a plan, with how far the planner had read when each was decided. Out: one `Played` for each step,
with the rows that every worker used, fetched, received, sent and gave up. Keeps what is in each slot, rows on their
way, and the write-backs that a guard can still be about: memory as the planner's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from foresee.arrays import Int64
from foresee.data.batch import BatchStream
from foresee.engine.next_uses import looking_ahead
from foresee.engine.planned_step import Advance, accesses_of, too_large
from foresee.plan import make_planner
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.record import Accesses, Header, Kind, Record

EMPTY = -1


@dataclass(frozen=True, slots=True)
class Decided:
    """A record, and the last step the planner knew when it decided what leaves after it."""

    record: Record
    known_until: int


def decided_records(stream: BatchStream, header: Header, advance: Advance | None = None) -> Iterator[Decided]:
    """Plans again, as the run does; a record comes out as soon as it is decided."""

    def accesses(num_steps: int) -> Iterator[Accesses]:
        for batch, _ in zip(stream.batches(header.first_step), range(num_steps), strict=False):
            yield accesses_of(batch)

    planner = make_planner(header, accesses)
    last = header.first_step + header.num_steps - 1
    # With several workers a record waits for one more step's transfers after its evictions are decided.
    late = int(header.num_workers > 1)
    with looking_ahead(stream, header) as with_uses:
        for step, touched in enumerate(accesses(header.num_steps), start=header.first_step):
            try:
                records = planner.push(with_uses(step, touched))
            except BatchTooLargeError as error:
                raise too_large(step, error.num_distinct, error.capacity_rows, stream) from None
            yield from (Decided(record, step - late) for record in records)
            if advance is not None:
                advance()
        yield from (Decided(record, last) for record in planner.finish())


@dataclass(frozen=True, slots=True)
class RowTransfer:
    """Rows, or gradients of rows, that go from one worker to another after a step."""

    kind: Kind
    source: int
    target: int
    sent_after: int
    deadline: int
    rows: Int64

    @property
    def critical(self) -> bool:
        """The step right after the one it was sent after waits for it."""
        return self.deadline == self.sent_after + 1


@dataclass(frozen=True, slots=True)
class FetchGuard:
    """Why the fetch of a record cannot be issued earlier."""

    not_before: int
    written: Int64
    """Rows of the fetch that were written back after that very step; none: it is the bound on staging, or the start."""


@dataclass(frozen=True, slots=True)
class Played:
    """One step of all workers, with rows instead of slots."""

    step: int
    records: Sequence[Record]
    known_until: int
    used: Sequence[Int64]
    """Distinct rows of each worker."""
    guards: Sequence[FetchGuard]
    arrived: Sequence[RowTransfer]
    """Copies and moves that this step uses."""
    sent: Sequence[RowTransfer]
    """Everything that leaves after this step, gradients included."""
    kept: Sequence[Int64]
    """What each worker's cache holds after the step."""


class Following:
    """Plays records; give all workers of a step at once."""

    def __init__(self, header: Header) -> None:
        self._slots = np.full((header.num_workers, header.capacity_rows), EMPTY, np.int64)
        self._transfers: deque[tuple[RowTransfer, Record]] = deque()
        self._writes: deque[tuple[int, Int64]] = deque(maxlen=header.fetch_ahead_steps + 2)
        """The rows written back after each of the last steps."""

    def play(self, records: Sequence[Record], known_until: int) -> Played:
        step = records[0].step
        arrived = self._arrivals(step)
        guards = [self._guard(record) for record in records]
        for record in records:
            self._slots[record.worker, record.fetch.slot] = record.fetch.row
        used = [self._slots[record.worker, record.unique] for record in records]
        sent = self._send(records)
        self._free(records)
        kept = [slots[slots != EMPTY] for slots in self._slots]
        return Played(step, records, known_until, used, guards, arrived, sent, kept)

    def _arrivals(self, step: int) -> list[RowTransfer]:
        due = [entry for entry in self._transfers if entry[0].deadline == step]
        self._transfers = deque(entry for entry in self._transfers if entry[0].deadline > step)
        for transfer, receiver in due:
            self._slots[transfer.target, receiver.recv.slot[_received(receiver, transfer)]] = transfer.rows
        return [transfer for transfer, _ in due]

    def _guard(self, record: Record) -> FetchGuard:
        written = [rows for step, rows in self._writes if step == record.not_before]
        rows = np.intersect1d(record.fetch.row, np.concatenate([np.empty(0, np.int64), *written]))
        return FetchGuard(record.not_before, rows)

    def _send(self, records: Sequence[Record]) -> list[RowTransfer]:
        """What leaves after the step. Sends to a peer stand in the order in which the peer lists them."""
        transfers = []
        for record in records:
            send, keys = record.send, np.stack([record.send.peer, record.send.kind, record.send.deadline])
            for peer, kind, deadline in np.unique(keys, axis=1).T.tolist():
                chosen = (send.peer == peer) & (send.kind == kind) & (send.deadline == deadline)
                rows = self._slots[record.worker, send.slot[chosen]]
                transfers.append(RowTransfer(Kind(kind), record.worker, peer, record.step, deadline, rows))
        self._transfers.extend(
            (transfer, records[transfer.target]) for transfer in transfers if transfer.kind != Kind.GRAD
        )
        return transfers

    def _free(self, records: Sequence[Record]) -> None:
        for record in records:
            moved = record.send.slot[record.send.kind == Kind.MOVE]
            for slots in (moved, record.evict.slot, record.drop):
                self._slots[record.worker, slots] = EMPTY
        self._writes.append((records[0].step, np.concatenate([record.evict.row for record in records])))


def _received(receiver: Record, transfer: RowTransfer) -> Int64:
    """Where in the receiver's list the rows of a transfer stand."""
    recv = receiver.recv
    mine = (recv.peer == transfer.source) & (recv.kind == transfer.kind) & (recv.deadline == transfer.deadline)
    return np.flatnonzero(mine)


def played_steps(header: Header, decided: Iterable[Decided]) -> Iterator[Played]:
    """A whole plan, one step after the other."""
    following, together = Following(header), []
    for one in decided:
        together.append(one)
        if len(together) == header.num_workers:
            yield following.play([other.record for other in together], together[0].known_until)
            together = []
