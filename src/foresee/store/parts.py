"""Base classes of stores: one part, many parts, parts for reading only, and wrappers around another store.

They hold what the contract says of every store of that kind: `prepare`, `settle` and `open_at` follow the decisions of
`commits`, a store of many parts passes each call on to all of them, and a wrapper passes everything on. A store
overrides a method only where it does something else. Nothing here touches rows or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from foresee.arrays import Int64
from foresee.errors import UsageError
from foresee.io.disk_stats import DiskFigures
from foresee.store.commits import Instruction, Message, OpenAt, Part, Prepare, Settle, decide
from foresee.store.contract import Rows, disks_of
from foresee.store.layout import Layout


class OnePart:
    """A store that is one part. A subclass gives `parts` and `carry_out`."""

    @property
    def parts(self) -> Sequence[Part]:
        """Return what the store has, as a sequence of one part."""
        raise NotImplementedError

    def carry_out(self, instruction: Instruction) -> None:
        """Do what a decision of `commits` says."""
        raise NotImplementedError

    @property
    def committed_step(self) -> int:
        return self.parts[0].committed

    def commit(self, step: int) -> None:
        if step < self.committed_step:
            raise UsageError(f"step {step} cannot be committed: step {self.committed_step} already is")
        self.prepare(step)
        self.settle(step)

    def prepare(self, step: int) -> None:
        """Make what was written so far durable as the state after `step` steps, and keep the last commit."""
        self._decide(Prepare(run=None, step=step, on=self.parts[0].committed))

    def settle(self, step: int) -> None:
        """Make the prepared step the last commit."""
        self._decide(Settle(run=None, step=step))

    def open_at(self, step: int) -> None:
        """Go to one of the commits that are kept, and give up everything after it."""
        part = self.parts[0]
        self._decide(OpenAt(run="this process", incarnation=part.incarnation, epoch=part.epoch, step=step))

    def _decide(self, message: Message) -> None:
        decision = decide(self.parts[0], message)
        decision.check()
        for instruction in decision.instructions:
            self.carry_out(instruction)


class ManyParts:
    """A store of several two-phase stores, which commit together. A subclass gives `read` and `write`."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.members: tuple[Any, ...] = tuple(members)

    @property
    def committed_step(self) -> int:
        step: int = self.members[0].committed_step
        return step

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts of all members, in their order."""
        return tuple(part for member in self.members for part in member.parts)

    def commit(self, step: int) -> None:
        """Commit in all members or in none: every one is prepared before the first one is settled."""
        if step == self.committed_step:  # the same state again, with what was written since: nothing to decide
            for member in self.members:
                member.commit(step)
            return
        self.prepare(step)
        self.settle(step)

    def prepare(self, step: int) -> None:
        """Make the step durable in all members, and keep the last commit of each."""
        for member in self.members:
            member.prepare(step)

    def settle(self, step: int) -> None:
        for member in self.members:
            member.settle(step)

    def open_at(self, step: int) -> None:
        for member in self.members:
            member.open_at(step)

    def disks(self) -> list[DiskFigures]:
        """Return what the members have read from disks and written to them so far."""
        return [figures for member in self.members for figures in disks_of(member)]

    def close(self) -> None:
        for member in self.members:
            member.close()


class ReadOnly:
    """A store that refuses to be written and committed, with the sentence `refusal`."""

    refusal: str

    def write(self, rows: Int64, source: Rows) -> None:
        self.refuse()

    def commit(self, step: int) -> None:
        self.refuse()

    def prepare(self, step: int) -> None:
        self.refuse()

    def settle(self, step: int) -> None:
        self.refuse()

    def refuse(self) -> NoReturn:
        raise UsageError(self.refusal)


class StoreWrapper:
    """A store that passes every call on to the store `inner`."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def layout(self) -> Layout:
        layout: Layout = self.inner.layout
        return layout

    @property
    def committed_step(self) -> int:
        step: int = self.inner.committed_step
        return step

    def read(self, rows: Int64, out: Rows) -> None:
        self.inner.read(rows, out)

    def write(self, rows: Int64, source: Rows) -> None:
        self.inner.write(rows, source)

    def commit(self, step: int) -> None:
        self.inner.commit(step)

    def close(self) -> None:
        self.inner.close()


class PartWrapper(StoreWrapper, OnePart):
    """A part that passes every call on to the part `inner`; the two phases go through its own `carry_out`."""

    @property
    def parts(self) -> Sequence[Part]:
        """Return the commits that the part can be opened at."""
        parts: Sequence[Part] = self.inner.parts
        return parts

    def carry_out(self, instruction: Instruction) -> None:
        self.inner.carry_out(instruction)

    def disks(self) -> list[DiskFigures]:
        """Return what was read from the disk of `inner` and written to it; empty if it has none."""
        return disks_of(self.inner)
