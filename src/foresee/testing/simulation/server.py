"""A simulated embedding server: the real shard, guards and commit decisions, with calls instead of connections.

What survives its death is a `Disk`: the sealed commits, each a copy of all rows. How rows get onto a real disk, and
what is there if the power goes in between, is tested by the fake disk; here an instruction happens or does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foresee.arrays import Float32, Int32, Int64
from foresee.errors import ForeseeError, StoreUnavailableError
from foresee.store.commits import Discard, GoBack, Instruction, Part, Promote, Seal
from foresee.store.contract import Rows
from foresee.store.layout import Layout
from foresee.store.memory import MemoryStore, PreImages
from foresee.store.server.applied import Applied
from foresee.store.server.rows import Guard, RowService
from foresee.store.server.shard import Shard, Share
from foresee.store.server.shard import inner_layout as inner_layout
from foresee.store.server.status import Counters
from foresee.testing.simulation.world import Call, Process, World

Snapshot = tuple[Float32, Any]
"""All rows of a shard, and which of them were ever written."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer that the caller raises."""

    error: ForeseeError


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A worker is here."""

    run: str
    worker: int
    num_workers: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A guarded read."""

    run: str
    incarnation: str
    rows: Int64
    versions: Int32
    not_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The write-backs of a step."""

    run: str
    incarnation: str
    worker: int
    step: int
    chunks: list[tuple[Int64, Rows]]


@dataclass
class Disk:
    """What a server finds when it starts again."""

    part: Part = field(default_factory=Part)
    snapshots: dict[int, Snapshot] = field(default_factory=dict)

    def carry_out(self, instruction: Instruction, live: Snapshot) -> None:
        """One instruction happens as a whole or not at all."""
        part = self.part
        commits = (part.previous, part.committed, part.prepared)
        if isinstance(instruction, Seal):
            self.snapshots[instruction.step] = live
            commits = (part.previous, part.committed, instruction.step)
        elif isinstance(instruction, Promote):
            commits = (part.committed, instruction.step, None)
        elif isinstance(instruction, Discard):
            commits = (part.previous, part.committed, None)
        elif isinstance(instruction, GoBack):
            commits = (None, instruction.step, part.prepared)
        self.part = Part(previous=commits[0], committed=commits[1], prepared=commits[2])
        self.snapshots = {step: kept for step, kept in self.snapshots.items() if step in self.part.openable}


class DurableStore(MemoryStore):
    """The real store in memory, which also puts every commit on a `Disk`, and can begin from one."""

    def __init__(self, layout: Layout, disk: Disk, before_instruction: Callable[[], None]) -> None:
        super().__init__(layout, undoable=True)
        self._disk, self._before_instruction = disk, before_instruction
        self._part = disk.part
        for step in sorted(disk.part.openable):
            self._load(step)

    def carry_out(self, instruction: Instruction) -> None:
        self._before_instruction()
        self._disk.carry_out(instruction, (self._base.copy(), self._written.copy()))
        super().carry_out(instruction)

    def _load(self, step: int) -> None:
        """The next commit of the disk, with the way back to the one before."""
        undo = self._undo
        assert undo is not None
        undo[-1].keep(np.arange(self._layout.num_rows), self._base, self._written)
        self._base[:], self._written[:] = self._disk.snapshots.get(step, (0, 0))
        if step == min(self._disk.part.openable):
            undo.clear()
        undo.append(PreImages(self._layout.num_rows))


class Server(Process):
    """One process of one shard."""

    def __init__(
        self, world: World, disk: Disk, layout: Layout, share: Share, incarnation: str, *, died: Callable[[], None],
        opened: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        super().__init__(world, f"server {share.shard}")
        self._died, self._opened, self._layout = died, opened, layout
        self._parked: list[Call] = []
        self.applied = Applied(disk.part.committed)
        store = DurableStore(inner_layout(layout, share), disk, self._perhaps_die)
        self.service = RowService(Shard(store, layout, share), self.applied, Counters(), incarnation=incarnation)
        self._num_instructions = 0
        world.roles[self.name] = self

    def handle(self, call: Call) -> None:
        try:
            if call.kind == "read":
                self._read(call)
            elif call.kind == "write":
                self._write(call, 0)
            else:
                self.world.reply(call, self._act(call.kind, call.request))
        except ForeseeError as error:
            self.world.reply(call, Refused(error))
        except DiedInside:
            self.world.happened["server died inside a decision"] += 1
            self.world.say(f"{self.name} dies inside a decision")
            self.world.kill(self)
            self._died()

    def _act(self, kind: str, request: Any) -> Any:
        if kind == "describe":
            return self.service.part
        if kind == "join":
            self.applied.join(request.run, request.worker, request.num_workers, request.first_step, opened=True)
            return True
        message, num_workers = request
        self._num_instructions, run = 0, self.applied.run
        self.service.obey(message, num_workers=num_workers)
        if run != self.applied.run:
            self._opened(self.applied.run)
            self._look_at_parked()
        return True

    def _perhaps_die(self) -> None:
        """Between two instructions of one decision."""
        self._num_instructions += 1
        if self._num_instructions > 1 and self.world.hostility.faults_max and self.world.rng.random() < 0.04:
            raise DiedInside

    def _read(self, call: Call) -> None:
        request: ReadRequest = call.request
        self._check(request)
        out = Rows.empty(len(request.rows), self._layout)
        guard = Guard(expected=request.versions, not_before=request.not_before, deadline=0.0, run=request.run)
        _, waiting = self.service._attempt(request.rows, guard, out)
        if len(waiting):
            self.world.happened["read parked"] += 1
            self._parked.append(call)
        else:
            self.world.reply(call, out)

    def _write(self, call: Call, position: int) -> None:
        """Chunk by chunk, as they arrive; the step counts as applied with the last of them."""
        request: WriteRequest = call.request
        if not self.alive or self.world.put_off(self, self._write, call, position):
            return
        try:
            self._check(request)
            if position < len(request.chunks):
                self.service.write(*request.chunks[position], run=request.run)
            if position + 1 < len(request.chunks):
                self.world.at(self.world.delay(), self._write, call, position + 1)
            else:
                self.applied.raise_to(request.run, request.worker, request.step)
                self.world.reply(call, True)
        except ForeseeError as error:
            self.world.reply(call, Refused(error))
        self._look_at_parked()

    def _check(self, request: ReadRequest | WriteRequest) -> None:
        """What a connection is asked when it is opened."""
        if request.incarnation != self.service.incarnation:
            raise StoreUnavailableError("it was started again; resume the run")
        self.applied.check_run(request.run)

    def _look_at_parked(self) -> None:
        parked, self._parked = self._parked, []
        for call in parked:
            if call.answer is None and call.owner.alive:
                self.handle(call)


class DiedInside(BaseException):
    """The power went while a server carried out what it had decided."""


def rows_of_commit(disk: Disk, step: int, layout: Layout, share: Share) -> tuple[Int64, Rows]:
    """All rows of a shard as a commit on its disk has them; initial values are zero here."""
    rows = np.arange(share.shard, layout.num_rows, share.num_shards, dtype=np.int64)
    base, _ = disk.snapshots.get(step, (np.zeros((len(rows), layout.row_bytes // 4), np.float32), None))
    versions = base.view(np.int32)[:, -1]
    if share.num_shards > 1:  # a shard counts from one higher
        versions = np.maximum(versions - 1, 0)
    return rows, Rows(base[:, : layout.width], base[:, layout.width : -1], versions)
