"""Mutants of planners: guards, ownership and deadlines, pushes, and a planner that has to begin again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import mock

import judges
from mutants import Mutant

from foresee.arrays import Int64
from foresee.engine.planner_service import server
from foresee.plan import ownership_kernels, row_table
from foresee.plan.baselines.additive import BoundedStaleness
from foresee.plan.baselines.herald import OnDemand
from foresee.plan.lookahead import Lookahead
from foresee.plan.ownership import Ownership

_release, _depart_kernel, _evict = row_table.RowTable.release, ownership_kernels.send_rows, Ownership._evict
_to_push = OnDemand.to_push
_push, _finish = Lookahead.push, Lookahead.finish


def _release_early(self: Any, rows: Int64, versions: Any, *, step: int) -> None:
    _release(self, rows, versions, step=step - 1)


def _depart_early(
    held: Int64, owners: Any, step: int, free: Any, num_free: Any, slot_last: Any, shared_at: Any, sent: Any
) -> None:
    """Every row in the background, final or not."""
    _depart_kernel(held, owners, step, free, num_free, slot_last, shared_at, sent)
    sent[:] = step - 2


def _evict_unfinished(self: Ownership, after: Any, worker: int, victims: Any, next_use: Any) -> None:
    """A row is written back although its gradients are still on their way."""
    _evict(self, after, worker, victims, next_use)
    after.promoted.pop()


def _weaker(records: list[Any]) -> list[Any]:
    return [replace(record, not_before=max(-1, record.not_before - 1)) for record in records]


def _push_trained_only(
    self: OnDemand, worker: int, trained: Int64, distinct: Int64, users: Int64, replicas: Any
) -> Any:
    chosen = _to_push(self, worker, trained, distinct, users, replicas)
    return chosen[[row in set(trained.tolist()) for row in chosen.tolist()]] if len(chosen) else chosen


def _het_push_at_the_bound(
    self: BoundedStaleness, worker: int, trained: Int64, distinct: Int64, users: Int64, replicas: Any
) -> Any:
    return trained[replicas.pending[worker, trained] >= self._staleness]


def _het_pull_at_the_bound(self: BoundedStaleness, worker: int, rows: Int64) -> Any:
    return rows[self._stored[rows] - self._known[worker, rows] >= self._staleness]


class _FromWhatIsAsked(server.PlanSession):
    """Plans from the step that is asked for, instead of the run's first one."""

    def _begin(self, asked: int) -> None:
        first, end = asked, self.header.first_step + self.header.num_steps
        self.header = replace(self.header, first_step=first, num_steps=end - first)
        super()._begin(asked)


PLAN_MUTANTS = [
    Mutant(
        name="guards one step too early", rule="A fetch waits for the step after which its rows were written back.",
        judge=judges.plans,
        patch=lambda: [
            mock.patch.object(Lookahead, "push", lambda self, accesses: _weaker(_push(self, accesses))),
            mock.patch.object(Lookahead, "finish", lambda self: _weaker(_finish(self))),
        ],
    ),
    Mutant(
        name="write-backs remembered too early", rule="A planner remembers after which step a row was written back.",
        judge=judges.plans, patch=lambda: [mock.patch.object(row_table.RowTable, "release", _release_early)],
    ),
    Mutant(
        name="rows travel before they are final", rule="A row goes over after its last update is applied.",
        judge=judges.plans, patch=lambda: [mock.patch.object(ownership_kernels, "send_rows", _depart_early)],
    ),
    Mutant(
        name="write-back of unfinished rows", rule="A row's gradients are there before it is written back.",
        judge=judges.plans, patch=lambda: [mock.patch.object(Ownership, "_evict", _evict_unfinished)],
    ),
    Mutant(
        name="pushes of the current batch only", rule="A row is pushed when another worker needs it, trained or not.",
        judge=judges.additive_plans, patch=lambda: [mock.patch.object(OnDemand, "to_push", _push_trained_only)],
    ),
    Mutant(
        name="HET pushes at its bound", rule="A worker pushes what it has more than the bound of own updates of.",
        judge=judges.het_plans,
        patch=lambda: [mock.patch.object(BoundedStaleness, "to_push", _het_push_at_the_bound)],
    ),
    Mutant(
        name="HET pulls at its bound", rule="A worker pulls what the server is more than the bound ahead of.",
        judge=judges.het_plans,
        patch=lambda: [mock.patch.object(BoundedStaleness, "outdated", _het_pull_at_the_bound)],
    ),
    Mutant(
        name="plan again from the wrong step", rule="A planner that begins again plans from the run's first step.",
        judge=judges.planner_session, patch=lambda: [mock.patch.object(judges, "PlanSession", _FromWhatIsAsked)],
    ),
]  # fmt: skip
