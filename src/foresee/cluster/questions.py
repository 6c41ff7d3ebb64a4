"""What if: the same jobs under other conditions, or one job more.

In: a plan and a change. Out: both plans side by side, and whom the change helps or hurts.
Never: change the plan it was asked about.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from foresee.cluster.job import Cluster, Job
from foresee.cluster.plan import Plan, make_plan
from foresee.errors import PlanError

CHANGES = ("gpus", "policy", "estimator", "round", "restart", "servers", "penalty")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """One job's change."""

    id: str
    finish_before_seconds: float
    finish_after_seconds: float
    rho_before: float
    rho_after: float

    @property
    def later_seconds(self) -> float:
        return self.finish_after_seconds - self.finish_before_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    before: Plan
    after: Plan

    def shifts(self) -> list[Shift]:
        """Jobs of both plans whose end moves by more than a round, most delayed first."""
        both = [
            Shift(
                id=id,
                finish_before_seconds=fate.finish_seconds,
                finish_after_seconds=self.after.fates[id].finish_seconds,
                rho_before=fate.rho,
                rho_after=self.after.fates[id].rho,
            )
            for id, fate in self.before.fates.items()
            if id in self.after.fates
        ]
        moved = [shift for shift in both if abs(shift.later_seconds) > self.before.cluster.round_seconds]
        return sorted(moved, key=lambda shift: -shift.later_seconds)

    def hurt(self) -> list[Shift]:
        return [shift for shift in self.shifts() if shift.later_seconds > 0]

    def helped(self) -> list[Shift]:
        return [shift for shift in self.shifts() if shift.later_seconds < 0]


def what_if(plan: Plan, changes: Iterable[str]) -> Answer:
    """Changes such as `gpus=40` or `policy=srtf`, all applied together."""
    given = dict(_parse(change) for change in changes)
    cluster = _changed(plan.cluster, given)
    after = make_plan(
        plan.jobs,
        cluster,
        policy=given.get("policy", plan.policy),
        estimator=given.get("estimator", plan.estimator),
        start_seconds=plan.run.start_seconds,
    )
    return Answer(before=plan, after=after)


def admit(plan: Plan, jobs: Iterable[Job]) -> Answer:
    """The plan with more jobs in it; a job that does not say when it arrives arrives as the plan begins."""
    start = plan.run.start_seconds
    added = [replace(job, arrival_seconds=max(job.arrival_seconds, start)) for job in jobs]
    after = make_plan(
        [*plan.jobs, *added], plan.cluster, policy=plan.policy, estimator=plan.estimator, start_seconds=start
    )
    return Answer(before=plan, after=after)


def _parse(change: str) -> tuple[str, str]:
    name, separator, value = change.partition("=")
    if not separator or name not in CHANGES:
        raise PlanError(f"what-if {change!r} is not understood: give name=value with a name of {', '.join(CHANGES)}")
    return name, value


def _changed(cluster: Cluster, given: dict[str, str]) -> Cluster:
    try:
        return replace(
            cluster,
            gpus=int(given.get("gpus", cluster.gpus)),
            round_seconds=float(given.get("round", cluster.round_seconds)),
            restart_seconds=float(given.get("restart", cluster.restart_seconds)),
            gpus_per_server=int(given["servers"]) if "servers" in given else cluster.gpus_per_server,
            locality_penalty=float(given.get("penalty", cluster.locality_penalty)),
        )
    except ValueError as error:
        raise PlanError(f"a what-if value is not a number ({error}): give for example gpus=40") from error
