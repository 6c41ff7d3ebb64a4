"""Workers, stores and delays as test input: an order of reads and writes chosen beforehand, workers that are threads.

`schedule` and `ScheduledStore`: in, a store, the records of a plan, and a choice between reading and writing wherever
the rules leave one; out, the order in which all fetches and write-backs reach the store, and a store that makes the
threads of a real pipeline keep to it. Nothing sleeps: a call waits until its turn has come, so a race is a test input.
The rules are those of the plan and no others; records whose guard was weakened give schedules that a broken pipeline
could have run into. `ThreadMesh` and `SharedStore` are the exchange and the shared store of a cluster without one:
threads meet at barriers with a deadline, so sends and receives that do not match fail instead of hanging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Barrier, Condition
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from foresee.arrays import Int32, Int64
from foresee.engine.exchange.mesh import Finish, Lane
from foresee.errors import ConsistencyError
from foresee.plan.record import UNKNOWN_VERSION, Record
from foresee.store.contract import Rows, Store
from foresee.store.parts import StoreWrapper

TIMEOUT_SECONDS = 30.0

Kind = Literal["read", "write"]
KINDS: tuple[Kind, ...] = ("read", "write")
Choice = Callable[[], Kind]
"""Asked wherever both the next fetch and the next write-back may come."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One call of the store: the fetch, or the write-back, of a step."""

    kind: Kind
    step: int


Schedule = list[Turn]


def early_reads() -> Kind:
    """The hostile extreme: fetches as early, write-backs as late as the rules allow."""
    return "read"


def late_reads() -> Kind:
    """The other extreme: every write-back is applied before the next fetch."""
    return "write"


def schedule(records: Sequence[Record], choose: Choice) -> Schedule:
    """An order of all fetches and write-backs that the records allow. Steps that move nothing do not call the store."""
    reads = [record for record in records if len(record.fetch)]
    writes = [record for record in records if len(record.evict)]
    turns: Schedule = []
    num_read = num_written = 0
    while num_read < len(reads) or num_written < len(writes):
        read = reads[num_read] if num_read < len(reads) else None
        write = writes[num_written] if num_written < len(writes) else None
        may_read = read is not None and (write is None or write.step > read.not_before)
        may_write = write is not None and (read is None or read.step > write.step)
        assert may_read or may_write, "a fetch waits for a write-back of its own step or a later one: not a plan"
        kind = choose() if may_read and may_write else "read" if may_read else "write"
        if kind == "read" and read is not None:
            turns.append(Turn("read", read.step))
            num_read += 1
        elif write is not None:
            turns.append(Turn("write", write.step))
            num_written += 1
    return turns


class ScheduledStore(StoreWrapper):
    """A store whose calls wait for their turn. Calls beyond the schedule (a flush at the end) pass at once.

    A read that gives another version than its record predicts is counted, and ends the schedule: a pipeline that checks
    versions stops there, and what it still has to write must not wait for reads that will never come.
    """

    def __init__(
        self, store: Store, records: Sequence[Record], choose: Choice, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self.turns = schedule(records, choose)
        self.num_done = 0
        """How many turns were taken; all of them when a run has ended well."""
        self.num_stale = 0
        """Rows read in another version than predicted."""
        super().__init__(store)
        self._predicted = {record.step: record.fetch.version for record in records}
        self._timeout_seconds = timeout_seconds
        self._changed = Condition()
        self._places = {kind: [i for i, turn in enumerate(self.turns) if turn.kind == kind] for kind in KINDS}
        self._calls = dict.fromkeys(KINDS, 0)
        self._over = False

    def read(self, rows: Int64, out: Rows) -> None:
        with self._turn("read") as turn:
            self.inner.read(rows, out)
            if turn is not None:
                self._compare(turn, out)

    def write(self, rows: Int64, source: Rows) -> None:
        with self._turn("write"):
            self.inner.write(rows, source)

    def close(self) -> None:
        self._end()
        self.inner.close()

    def _compare(self, turn: Turn, out: Rows) -> None:
        predicted = self._predicted[turn.step]
        stale = int(np.count_nonzero((predicted != UNKNOWN_VERSION) & (predicted != out.versions)))
        if stale:
            self.num_stale += stale
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    @contextmanager
    def _turn(self, kind: Kind) -> Iterator[Turn | None]:
        place = self._wait(kind)
        try:
            yield None if place is None else self.turns[place]
        except BaseException:
            self._end()
            raise
        with self._changed:
            self.num_done += place is not None
            self._changed.notify_all()

    def _wait(self, kind: Kind) -> int | None:
        """The place of this call in the schedule, once it has come; None for a call beyond it."""
        with self._changed:
            call, self._calls[kind] = self._calls[kind], self._calls[kind] + 1
            if self._over or call >= len(self._places[kind]):
                return None
            place = self._places[kind][call]
            if not self._changed.wait_for(lambda: self._over or self.num_done == place, self._timeout_seconds):
                raise ConsistencyError(
                    f"the {kind} of step {self.turns[place].step} waited {self._timeout_seconds:.0f} s for its turn, "
                    f"but {self.turns[self.num_done]} never came; the pipeline does not follow these records"
                )
            return None if self._over else place


class Meeting:
    """What the workers of one test share."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.barriers = [Barrier(num_workers, timeout=TIMEOUT_SECONDS) for _ in Lane]
        self.parts: list[list[list[Tensor]]] = [[[] for _ in range(num_workers)] for _ in Lane]

    def abort(self) -> None:
        """A worker failed: nobody waits for it."""
        for barrier in self.barriers:
            barrier.abort()


class ThreadMesh:
    """One worker of a `Meeting`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.rank = rank
        self.num_workers = meeting.num_workers
        self._meeting = meeting

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        return lambda: self._swap(lane, sent, sizes, expected)

    def _swap(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Tensor:
        parts, barrier = self._meeting.parts[lane], self._meeting.barriers[lane]
        parts[self.rank] = list(torch.split(sent.clone(), sizes))
        barrier.wait()
        received = [parts[peer][self.rank] for peer in range(self.num_workers)]
        barrier.wait()
        if [len(part) for part in received] != expected:
            raise ConsistencyError(f"worker {self.rank} expects parts of {expected}, gets {list(map(len, received))}")
        return torch.cat(received)


class SharedStore:
    """A store that several workers of one process use, each through its own `for_worker`."""

    def __init__(self, store: Store, num_workers: int) -> None:
        self.store = store
        self.applied = [store.committed_step - 1] * num_workers
        self.changed = Condition()

    def for_worker(self, rank: int) -> SharedStoreOfWorker:
        return SharedStoreOfWorker(self, rank)


class SharedStoreOfWorker(StoreWrapper):
    """One worker's face of a `SharedStore`: reads wait until every worker's write-backs are applied."""

    requests_cost = False

    def __init__(self, shared: SharedStore, rank: int) -> None:
        super().__init__(shared.store)
        self._shared = shared
        self._rank = rank

    def read(self, rows: Int64, out: Rows) -> None:
        with self._shared.changed:
            self.inner.read(rows, out)

    def write(self, rows: Int64, source: Rows) -> None:
        with self._shared.changed:
            self.inner.write(rows, source)

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, out: Rows) -> None:
        with self._shared.changed:
            if not self._shared.changed.wait_for(lambda: min(self._shared.applied) >= not_before, TIMEOUT_SECONDS):
                raise ConsistencyError(f"the write-backs of step {not_before} are not applied: {self._shared.applied}")
            self.inner.read(rows, out)

    def write_step(self, step: int, rows: Int64, source: Rows, next_use: Int32 | None = None) -> None:
        with self._shared.changed:
            self.inner.write(rows, source)
            self._shared.applied[self._rank] = max(step, self._shared.applied[self._rank])
            self._shared.changed.notify_all()

    def commit(self, step: int) -> None:
        """Commits are for all workers together: the test does them."""

    def close(self) -> None:
        pass
