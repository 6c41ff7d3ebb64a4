"""Workers as threads of one process: the exchange and the shared store of a cluster, without one.

For tests of what many workers compute. Threads meet at barriers with a deadline, so a plan whose sends and receives do
not match fails instead of hanging.
"""

from __future__ import annotations

from threading import Barrier, Condition

import torch
from torch import Tensor

from foresee.base.arrays import Int32, Int64
from foresee.engine.exchange.mesh import Finish, Lane
from foresee.errors import ConsistencyError
from foresee.store.contract import Layout, Rows, Store

TIMEOUT_SECONDS = 30.0


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


class SharedStoreOfWorker:
    """One worker's face of a `SharedStore`: reads wait until every worker's write-backs are applied."""

    requests_cost = False

    def __init__(self, shared: SharedStore, rank: int) -> None:
        self._shared = shared
        self._rank = rank

    @property
    def layout(self) -> Layout:
        return self._shared.store.layout

    @property
    def committed_step(self) -> int:
        return self._shared.store.committed_step

    def read(self, rows: Int64, out: Rows) -> None:
        with self._shared.changed:
            self._shared.store.read(rows, out)

    def write(self, rows: Int64, source: Rows) -> None:
        with self._shared.changed:
            self._shared.store.write(rows, source)

    def read_guarded(self, rows: Int64, versions: Int32, not_before: int, out: Rows) -> None:
        with self._shared.changed:
            if not self._shared.changed.wait_for(lambda: min(self._shared.applied) >= not_before, TIMEOUT_SECONDS):
                raise ConsistencyError(f"the write-backs of step {not_before} are not applied: {self._shared.applied}")
            self._shared.store.read(rows, out)

    def write_step(self, step: int, rows: Int64, source: Rows) -> None:
        with self._shared.changed:
            self._shared.store.write(rows, source)
            self._shared.applied[self._rank] = max(step, self._shared.applied[self._rank])
            self._shared.changed.notify_all()

    def commit(self, step: int) -> None:
        """Commits are for all workers together: the test does them."""

    def close(self) -> None:
        pass
