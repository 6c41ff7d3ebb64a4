"""Stores that commit in two phases: the steps of `store.commits`, carried out by one part in this process.

In: a store that can say what it is (`parts`) and carry out instructions. Out: the three moves of a commit, prepare,
settle and open_at, each decided by the same function that decides for servers. `TwoPhaseStore` is what an engine needs
to commit rows together with a dense half, wherever the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from foresee.errors import StoreError
from foresee.store.commits import Instruction, Message, OpenAt, Part, Prepare, Settle, decide
from foresee.store.contract import Store


@runtime_checkable
class TwoPhaseStore(Store, Protocol):
    """A store whose commits belong together with something else."""

    @property
    def parts(self) -> Sequence[Part]:
        """What each part has, for `step_to_open`."""
        ...

    def prepare(self, step: int) -> None:
        """Makes everything written so far durable as the state after `step` steps; the last commit stays."""
        ...

    def settle(self, step: int) -> None:
        """The prepared step is the last commit; the one before can still be opened."""
        ...

    def open_at(self, step: int) -> None:
        """Goes to a commit that all parts have, and gives up everything after it."""
        ...


class SinglePart(Protocol):
    """A store that is one part."""

    @property
    def parts(self) -> Sequence[Part]: ...

    def carry_out(self, instruction: Instruction) -> None: ...


def prepare_part(store: SinglePart, step: int) -> None:
    _obey(store, Prepare(run=None, step=step, on=store.parts[0].committed))


def settle_part(store: SinglePart, step: int) -> None:
    _obey(store, Settle(run=None, step=step))


def open_part(store: SinglePart, step: int) -> None:
    part = store.parts[0]
    _obey(store, OpenAt(run="this process", incarnation=part.incarnation, epoch=part.epoch, step=step))


def _obey(store: SinglePart, message: Message) -> None:
    decision = decide(store.parts[0], message)
    if decision.refusal is not None:
        raise StoreError(decision.refusal)
    for instruction in decision.instructions:
        store.carry_out(instruction)
