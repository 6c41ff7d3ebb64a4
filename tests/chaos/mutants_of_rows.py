"""Mutants of what happens to rows between commits: guards, idempotent writes, what workers send each other, flushes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import judges
import numpy as np
from mutants import Mutant

from foresee.arrays import Int32, Int64
from foresee.engine import pipeline
from foresee.engine.cache import SlotTable
from foresee.engine.exchange import protocol
from foresee.engine.exchange.protocol import ExchangeProtocol, FinishBackground
from foresee.store import memory
from foresee.store.contract import Rows
from foresee.store.kernels import set_bits
from foresee.store.server import rows as server_rows
from foresee.store.server.applied import Applied
from foresee.testing.simulation import trainer

_sum, _update, _receive = protocol.sum_in_worker_order, ExchangeProtocol.update, ExchangeProtocol.receive_rows


def _all_ready(rows: Int64, expected: Int32, found: Int32, all_applied: bool) -> Any:
    return np.zeros(len(rows), np.bool_)


def _assign_anyway(rows: Int64, values: Any, state: Any, versions: Int32, base: Any, written: Any) -> None:
    width = values.shape[1]
    base[rows, :width] = values
    base[rows, width:-1] = state
    base.view(np.int32)[rows, -1] = versions
    set_bits(written, rows)


def _begin_by_joining(
    applied: Applied, run: str, worker: int, num_workers: int, first_step: int | None, *, opened: bool = False
) -> None:
    if run != applied.run:
        applied.begin(run, num_workers, first_step or 0, opened=False)


def _sum_own_first(rank: int, own: Any, added: Any, arrived: Any) -> Any:
    """The owner's gradient first, whoever it is."""
    order = sorted(range(len(added)), key=lambda worker: (worker != rank, worker))
    return _sum(0, own, [added[k] for k in order], [arrived[k] for k in order])


def _sum_reversed(rank: int, own: Any, added: Any, arrived: Any) -> Any:
    """From the last worker to the first, at every owner alike."""
    return _sum(len(added) - 1 - rank, own, added[::-1], arrived[::-1])


def _update_at_once(self: ExchangeProtocol, *arguments: Any) -> Iterator[Any]:
    """Does not wait for the background exchange of the step before."""
    phases = _update(self, *arguments)
    answer = None
    while True:
        try:
            request = phases.send(answer)
        except StopIteration:
            return
        answer = None if isinstance(request, FinishBackground) else (yield request)


def _receive_early(self: ExchangeProtocol, step: int, cache: Any) -> None:
    """Takes whatever has arrived, also what is for the step after."""
    for deadline in sorted(self._arrivals):
        _receive(self, deadline, cache)


def _adopt_as_stored(self: SlotTable, slots: Int32, rows: Int64) -> None:
    self.row[slots] = rows
    self.stored_version[slots] = np.iinfo(np.int32).max


def _nothing_changed(self: SlotTable, versions: Int32) -> Int32:
    return np.empty(0, np.int32)


def _changed_once(self: SlotTable, versions: Int32) -> Int32:
    """Only rows that the store never had: a row that changed again is forgotten."""
    slots = np.flatnonzero((self.row >= 0) & (versions > 0) & (self.stored_version <= 0)).astype(np.int32)
    self.stored_version[slots] = versions[slots]
    return slots


def _no_rows_on_their_way(self: ExchangeProtocol) -> list[tuple[Int64, Rows]]:
    return []


ROW_MUTANTS = [
    Mutant(
        name="reads do not wait for versions", rule="A read waits at the server until each row has its version.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(server_rows, "not_ready", _all_ready)],
    ),
    Mutant(
        name="reads do not wait for other workers",
        rule="A row of unknown version is read after every worker's write-backs of `not_before`.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(Applied, "all_reached", return_value=True)],
    ),
    Mutant(
        name="versions are not checked", rule="The reader refuses a row in another version than planned.",
        judge=judges.versions,
        patch=lambda: [mock.patch.object(pipeline, "check_versions", return_value=None)],
    ),
    Mutant(
        name="steps are fetched together too early",
        rule="A step joins the fetch of an earlier one only if what it needs is applied.",
        judge=judges.schedules,
        patch=lambda: [mock.patch.object(where, "may_be_fetched", return_value=True) for where in (pipeline, trainer)],
    ),
    Mutant(
        name="late writes overwrite", rule="A write with a lower version than the stored one is refused.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(memory, "assign_in_base", _assign_anyway)],
    ),
    Mutant(
        name="replaced trainers write", rule="Who writes for an older run is refused.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(Applied, "check_run", return_value=None)],
    ),
    Mutant(
        name="joining takes a run over", rule="A late message of a replaced trainer does not make its run current.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(Applied, "join", _begin_by_joining)],
    ),
    Mutant(
        name="gradients in another order", rule="An owner adds gradients in the order of workers.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(protocol, "sum_in_worker_order", _sum_own_first)],
    ),
    Mutant(
        name="gradients in reverse order", rule="An owner adds gradients from the first worker to the last.",
        judge=judges.sums, patch=lambda: [mock.patch.object(protocol, "sum_in_worker_order", _sum_reversed)],
    ),
    Mutant(
        name="background not awaited", rule="Rows leave only after the background exchange of the step before.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(ExchangeProtocol, "update", _update_at_once)],
    ),
    Mutant(
        name="rows arrive early", rule="A row takes its slot when its step begins, not when it arrives.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(ExchangeProtocol, "receive_rows", _receive_early)],
    ),
    Mutant(
        name="commit without a flush", rule="Rows in caches are at the servers before a commit.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(SlotTable, "changed", _nothing_changed)],
    ),
    Mutant(
        name="flush of new rows only", rule="A row that changed since it was last written is flushed again.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(SlotTable, "changed", _changed_once)],
    ),
    Mutant(
        name="rows on their way are not flushed", rule="A commit contains rows that are between two workers.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(ExchangeProtocol, "waiting", _no_rows_on_their_way)],
    ),
    Mutant(
        name="adopted rows count as stored", rule="A row that came from a peer is newer than the store's.",
        judge=judges.schedules, patch=lambda: [mock.patch.object(SlotTable, "adopt", _adopt_as_stored)],
    ),
]  # fmt: skip
