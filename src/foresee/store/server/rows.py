"""Reads and writes of one shard under their guards. Knows nothing of wires.

In: row ids with what the plan expects of them, and rows to assign. Out: chunks of rows, each as soon as all its rows
are ready. A chunk is gathered first and judged by the versions that were found; what is not ready is read again when
something was applied. Many read together, a writer is alone (`SharedLock`), each for one chunk at a time, so a version
is never seen before its row is complete. A waiting writer goes before readers that come later; a parked read holds no
lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from threading import Condition, Lock

import numpy as np

from foresee.arrays import Int32, Int64
from foresee.errors import UsageError
from foresee.io import failpoints
from foresee.io.failpoints import failpoint
from foresee.store.commits import Instruction, Message, OpenAt, Part, decide
from foresee.store.contract import Rows
from foresee.store.server.applied import Applied, not_ready
from foresee.store.server.shard import Shard
from foresee.store.server.status import Counters
from foresee.store.sharding import scatter


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What a read has to wait for."""

    expected: Int32
    """For each row its version, or UNKNOWN_VERSION."""
    not_before: int
    """Step whose write-backs must be applied before a row of unknown version is read."""
    deadline: float
    """time.monotonic() at which the waiting ends with an error."""
    is_gone: Callable[[], bool] = lambda: False
    """Whether nobody waits for the answer any more."""
    run: str | None = None
    """Which run reads."""


class RowService:
    """One shard, read and written by many threads."""

    def __init__(self, shard: Shard, applied: Applied, counters: Counters, *, incarnation: str = "") -> None:
        self.shard, self.applied, self.counters = shard, applied, counters
        self.incarnation = incarnation
        self._lock, self._deciding = SharedLock(), Lock()

    def read(self, rows: Int64, out: Rows) -> None:
        with self._lock.shared():
            self.shard.read(rows, out)
        self._count_read(len(rows))

    def read_guarded(self, rows: Int64, guard: Guard, out: Rows) -> None:
        """Fills `out` once every row is ready."""
        generation, waiting = self._attempt(rows, guard, out)
        if len(waiting):
            with self.counters.parked():
                self._wait_for(rows, waiting, generation, guard, out)
        self._count_read(len(rows))

    def write(self, rows: Int64, source: Rows, *, run: str | None = None, next_use: Int32 | None = None) -> None:
        """On return the rows are applied and may be read. `run`: who writes, if only this run may."""
        with self._lock.exclusive():
            # Here and not before: another run may begin while this write waits.
            if run is not None:
                self.applied.check_run(run)
            self.shard.write(rows, source, next_use)
            failpoint(failpoints.ROWS_APPLIED)
        self.applied.rows_written()
        self.counters.add(rows_written=len(rows), bytes_written=len(rows) * self.shard.layout.row_bytes)

    def commit(self, step: int) -> int:
        if step < self.shard.committed_step:
            raise UsageError(f"step {step} cannot be committed: step {self.shard.committed_step} already is")
        with self._deciding:
            self.shard.commit(step)
            self.applied.committed(step)
        return self.shard.committed_step

    @property
    def part(self) -> Part:
        """What this server is, as the decisions of commits see it."""
        applied = self.applied
        return replace(
            self.shard.parts[0],
            incarnation=self.incarnation,
            run=applied.run,
            epoch=applied.epoch,
            opened_at=applied.opened_at,
            started=applied.started,
        )

    def obey(self, message: Message, *, num_workers: int = 1) -> Part:
        """Carries out what is decided about a message; what it refuses is a StoreError. Returns what came of it."""
        with self._deciding:
            decision = decide(self.part, message)
            decision.check()
            if isinstance(message, OpenAt):
                self._open(decision.instructions, message, num_workers)
            else:
                self._carry_out(decision.instructions)
            return self.part

    def _open(self, instructions: Sequence[Instruction], message: OpenAt, num_workers: int) -> None:
        """Nobody reads or writes meanwhile, and from then on only the new run does."""
        if message.run == self.applied.run:
            return
        with self._lock.exclusive():
            self._carry_out(instructions)
            self.applied.begin(message.run, num_workers, message.step, opened=True, started=message.started)
        failpoint(failpoints.RUN_OPENED)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            self.shard.carry_out(instruction)
        self.applied.committed(self.shard.committed_step)

    def _attempt(self, rows: Int64, guard: Guard, out: Rows) -> tuple[int, Int64]:
        """Reads, and says which positions are not ready. Both watermarks are taken before the rows: what is applied
        in between makes a row newer, never older, and wakes the wait that follows."""
        generation = self.applied.generation
        all_applied = self.applied.all_reached(guard.not_before)
        with self._lock.shared():
            if guard.run is not None:
                self.applied.check_run(guard.run)
            self.shard.read(rows, out)
        waiting = not_ready(rows, guard.expected, out.versions, not_before=guard.not_before, all_applied=all_applied)
        return generation, np.flatnonzero(waiting)

    def _wait_for(self, rows: Int64, waiting: Int64, generation: int, guard: Guard, out: Rows) -> None:
        """Reads the positions that are not ready again and again, each time after something was applied."""
        begun = time.monotonic()
        while len(waiting):

            def sentence(waiting: Int64 = waiting) -> str:
                first = waiting[0]
                wanted, found = guard.expected[first], out.versions[first]
                need = f"version {wanted} (stored: {found})" if wanted >= 0 else f"step {guard.not_before} by all"
                return (
                    f"row {rows[first]} and {len(waiting) - 1} more were not ready after "
                    f"{time.monotonic() - begun:.1f} s: needs {need}; {self.applied.sentence()}"
                )

            self.applied.wait_for_change(generation, guard.deadline, is_gone=guard.is_gone, waiting_for=sentence)
            some = Rows.empty(len(waiting), self.shard.layout)
            part = replace(guard, expected=guard.expected[waiting])
            generation, still = self._attempt(rows[waiting], part, some)
            scatter(some, waiting, out)
            waiting = waiting[still]

    def _count_read(self, num_rows: int) -> None:
        self.counters.add(rows_read=num_rows, bytes_read=num_rows * self.shard.layout.row_bytes)


class SharedLock:
    """Not reentrant."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_readers = 0
        self._num_writers_waiting = 0
        self._writing = False
        self._sharing = _Sharing(self)

    def shared(self) -> AbstractContextManager[None]:
        return self._sharing

    def take_shared(self) -> None:
        with self._changed:
            while self._writing or self._num_writers_waiting:
                self._changed.wait()
            self._num_readers += 1

    def give_shared(self) -> None:
        with self._changed:
            self._num_readers -= 1
            if not self._num_readers:
                self._changed.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._changed:
            self._num_writers_waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._num_readers)
            finally:
                self._num_writers_waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()


class _Sharing:
    """A reader's side, with nothing to remember: all chunks of all reads go through the same one."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.take_shared()

    def __exit__(self, *_: object) -> None:
        self._lock.give_shared()
