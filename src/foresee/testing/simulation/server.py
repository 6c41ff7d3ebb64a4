"""A simulated embedding server: the real shard, guards and commit decisions, with calls instead of connections.

What survives its death is a `Disk`: the sealed commits, each a copy of all rows. How rows get onto a real disk, and what
is there if the power goes in between, is tested by the fake disk; here a seal happens or does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foresee.errors import ForeseeError, StoreError
from foresee.store.commits import Discard, GoBack, Instruction, Message, Part, Promote, Seal, decide
from foresee.store.contract import Float32, Int32, Int64, Layout, Rows
from foresee.store.server.applied import Applied
from foresee.store.server.counters import Counters
from foresee.store.server.rows import Guard, RowService
from foresee.store.server.shard import Shard, Share, memory_shard
from foresee.testing.simulation.world import Call, Process, World

Snapshot = tuple[Float32, Any]
"""All rows of a shard, and which of them were ever written."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer that the caller raises."""

    error: ForeseeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """A worker is here."""

    run: str
    worker: int
    num_workers: int
    first_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A guarded read."""

    run: str
    incarnation: str
    rows: Int64
    versions: Int32
    not_before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
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
        part, was = self.part, (self.part.previous, self.part.committed, self.part.prepared)
        if isinstance(instruction, Seal):
            self.snapshots[instruction.step] = live
            was = (part.previous, part.committed, instruction.step)
        elif isinstance(instruction, Promote):
            was = (part.committed, instruction.step, None)
        elif isinstance(instruction, Discard):
            was = (part.previous, part.committed, None)
        elif isinstance(instruction, GoBack):
            was = (None, instruction.step, part.prepared)
        self.part = Part(previous=was[0], committed=was[1], prepared=was[2])
        self.snapshots = {step: kept for step, kept in self.snapshots.items() if step in self.part.openable}


class Server(Process):
    """One process of one shard."""

    def __init__(
        self, world: World, disk: Disk, layout: Layout, share: Share, incarnation: str, *, died: Callable[[], None],
        opened: Callable[[str | None], None],
    ) -> None:  # fmt: skip
        super().__init__(world, f"server {share.shard}")
        self._died, self._opened = died, opened
        self.disk, self._layout, self._share = disk, layout, share
        self.part = disk.part.after_restart(incarnation)
        self._parked: list[Call] = []
        self._load(self.part.newest)
        self._counters = Counters()
        self.applied = Applied(self.part.committed)
        self.service = RowService(self.shard, self.applied, self._counters)
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
            self.world.kill(self)
            self._died()

    def _act(self, kind: str, request: Any) -> Any:
        if kind == "describe":
            return self.part
        if kind == "join":
            self._check_run(request.run)
            self.applied.join(request.run, request.worker, request.num_workers, request.first_step)
            return True
        return self._decide(request)

    def _decide(self, message: Message) -> bool:
        decision = decide(self.part, message)
        if decision.refusal is not None:
            raise StoreError(decision.refusal)
        opened = decision.part.run != self.part.run
        for done, instruction in enumerate(decision.instructions):
            if done and self.world.rng.random() < 0.02 and self.world.hostility.faults_max:
                self.world.happened["server died inside a decision"] += 1
                raise DiedInside
            self.disk.carry_out(instruction, self._live())
        self.part = decision.part
        if opened:
            self._opened(self.part.run)
            self._load(self.part.committed)
            self.applied = Applied(self.part.committed)
            self.service = RowService(self.shard, self.applied, self._counters)
        return True

    def _read(self, call: Call) -> None:
        request: Reading = call.request
        self._check(request)
        out = Rows.empty(len(request.rows), self._layout)
        guard = Guard(expected=request.versions, not_before=request.not_before, deadline=0.0)
        _, waiting = self.service._attempt(request.rows, guard, out)
        if len(waiting):
            self.world.happened["read parked"] += 1
            self._parked.append(call)
        else:
            self.world.reply(call, out)

    def _write(self, call: Call, position: int) -> None:
        """Chunk by chunk, as they arrive; the step counts as applied with the last of them."""
        request: Writing = call.request
        if not self.alive or self.world.put_off(self, self._write, call, position):
            return
        try:
            self._check(request)
            if position < len(request.chunks):
                self.service.write(*request.chunks[position])
            if position + 1 < len(request.chunks):
                self.world.at(self.world.delay(), self._write, call, position + 1)
            else:
                self.applied.raise_to(request.run, request.worker, request.step)
                self.world.reply(call, True)
        except ForeseeError as error:
            self.world.reply(call, Refused(error))
        self._look_at_parked()

    def _check(self, request: Reading | Writing) -> None:
        if request.incarnation != self.part.incarnation:
            raise StoreError("it was started again; resume the run")
        self._check_run(request.run)

    def _check_run(self, run: str) -> None:
        if not self.part.accepts(run):
            raise StoreError(f"run {run!r} is not the one served here, which is {self.part.run!r}; end it")

    def _look_at_parked(self) -> None:
        parked, self._parked = self._parked, []
        for call in parked:
            if call.answer is None and call.owner.alive:
                self.handle(call)

    def _live(self) -> Snapshot:
        store = self.shard._store
        return store._base.copy(), store._written.copy()  # type: ignore[attr-defined]

    def _load(self, step: int) -> None:
        self.shard = shard_of(self.disk.snapshots.get(step), self._layout, self._share)


class DiedInside(Exception):  # noqa: N818 - an ending
    """The power went while a server carried out what it had decided."""


def shard_of(snapshot: Snapshot | None, layout: Layout, share: Share) -> Shard:
    """A shard as a commit left it; None: as it was made."""
    shard = memory_shard(layout, share)
    if snapshot is not None:
        base, written = snapshot
        shard._store._base[:], shard._store._written[:] = base, written  # type: ignore[attr-defined]
    return shard


def rows_of_snapshot(snapshot: Snapshot | None, layout: Layout, share: Share) -> tuple[Int64, Rows]:
    """All rows of a shard as a commit has them."""
    rows = np.arange(share.shard, layout.num_rows, share.num_shards, dtype=np.int64)
    out = Rows.empty(len(rows), layout)
    shard_of(snapshot, layout, share).read(rows, out)
    return rows, out
