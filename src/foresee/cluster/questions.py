"""What people ask of a plan: what if, why, and what fairness costs.

In: a plan and a change, a job's id, or jobs and a cluster. Out: both plans side by side and whom the change helps or
hurts; sentences that say when a job starts, whom it waits for, whether that is fair, and how much room is left; or one
point for each fairness of the guarded policy, and one for each other policy.
Never: change the plan, give reasons it does not contain, or recommend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from foresee.cluster.estimators import DEFAULT_ESTIMATOR, assumed_error, estimator_named
from foresee.cluster.job import Cluster, Job, in_words
from foresee.cluster.metrics import UNFAIR_ABOVE, Metrics, measure
from foresee.cluster.plan import Fate, Plan, make_plan
from foresee.cluster.policies import policy_named
from foresee.cluster.policies.guarded import DEFAULT_FAIRNESS, Guarded
from foresee.cluster.simulation import Order, simulate
from foresee.errors import PlanError
from foresee.io.units import counted

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


NAMED_MAX = 3


def explain(plan: Plan, id: str) -> str:
    fate = plan.fate(id)
    parts = [_timing(fate), _waiting(plan, fate), _reason(plan, fate), _pieces(fate), _fairness(plan, fate)]
    return " ".join(filter(None, [*parts, _room(plan, fate)]))


def _timing(fate: Fate) -> str:
    job = fate.job
    needs = f"Job {job.id} needs {counted(job.gpus, 'GPU')} for {in_words(job.left_seconds)}."
    if fate.is_running:
        since, end = in_words(fate.start_seconds), in_words(fate.finish_seconds)
        return f"{needs} It has been running since {since} and ends at {end}."
    return (
        f"{needs} It arrives at {in_words(job.arrival_seconds)}, starts at {in_words(fate.start_seconds)} and ends at "
        f"{in_words(fate.finish_seconds)}."
    )


def _waiting(plan: Plan, fate: Fate) -> str:
    if fate.is_running:
        return f"It waited {in_words(fate.wait_seconds)} and keeps its GPUs."
    waited = [
        round
        for round in plan.run.rounds
        if round.start_seconds >= fate.job.arrival_seconds and round.start_seconds < fate.start_seconds
    ]
    if not waited:
        return "It starts with the first round after its arrival."
    ahead = Counter(id for round in waited for id in round.ids)
    sooner = [id for id in ahead if plan.fates[id].finish_seconds <= fate.finish_seconds]
    shorter = sum(plan.fates[id].job.left_seconds < fate.job.left_seconds for id in ahead)
    weight = {id: rounds * plan.fates[id].job.gpus for id, rounds in ahead.items()}
    named = sorted(weight, key=lambda id: -weight[id])[:NAMED_MAX]
    return (
        f"It waits {counted(len(waited), 'round')} while {counted(len(ahead), 'other job')} "
        f"{'holds' if len(ahead) == 1 else 'hold'} the GPUs: {shorter} "
        f"with less work than it, {len(ahead) - shorter} with more; {len(sooner)} of them end before it. "
        f"Most of that GPU time goes to {', '.join(named)}."
    )


def _reason(plan: Plan, fate: Fate) -> str:
    """Why it runs when it first does, and why others ran before, in the words of the policy that has any."""
    if fate.is_running:
        return ""
    first = next((round for round in plan.run.rounds if fate.job.id in round.ids), None)
    if first is None or not first.reasons:
        return ""
    held = Counter(
        reason
        for round in plan.run.rounds
        if fate.job.arrival_seconds <= round.start_seconds < fate.start_seconds
        for reason in round.reasons.values()
    )
    why = f"It starts because {first.reasons[fate.job.id]}."
    return f"{why} Of those it waits for most ran because, for each, {held.most_common(1)[0][0]}." if held else why


def _pieces(fate: Fate) -> str:
    if fate.num_pieces == 1:
        return "It goes on to its end." if fate.job.runs_at_begin else "Once started it runs to its end."
    return f"It is set aside {counted(fate.num_pieces - 1, 'time')} and pays for {counted(fate.num_starts, 'start')}."


def _fairness(plan: Plan, fate: Fate) -> str:
    verdict = "later than" if fate.rho > 1.005 else "as soon as" if fate.rho > 0.995 else "sooner than"
    unfair = " and counts as unfair" if fate.rho > UNFAIR_ABOVE else ""
    return (
        f"ρ is {fate.rho:.2f}: it ends {verdict} an equal share of the cluster would let it{unfair} "
        f"({fate.rho_themis:.2f} by the contention it meets itself)."
    )


def _room(plan: Plan, fate: Fate) -> str:
    room = plan.run.makespan_seconds - fate.finish_seconds
    if room < plan.cluster.round_seconds:
        return "It is among the last to end: delaying it delays the end of the plan."
    return f"It could end {in_words(room)} later without delaying the end of the plan."


FAIRNESS = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    name: str
    metrics: Metrics
    undominated: bool = False
    """No other point is at least as good in JCT, makespan and worst ρ and better in one."""


def frontier(
    jobs: Iterable[Job],
    cluster: Cluster,
    *,
    policies: Sequence[str] = (),
    fairness: Sequence[float] = FAIRNESS,
    estimator: str = DEFAULT_ESTIMATOR,
    start_seconds: float = 0.0,
    on_point: Callable[[str], None] | None = None,
) -> list[Point]:
    jobs = tuple(jobs)
    orders: dict[str, Order] = {_name(value): Guarded(cluster, fairness=value) for value in fairness}
    orders |= {name: policy_named(name)(cluster) for name in policies}
    points = []
    for name, order in orders.items():
        if on_point:
            on_point(name)
        run = simulate(
            jobs,
            cluster,
            order,
            estimator=estimator_named(estimator),
            start_seconds=start_seconds,
            assumed_error=assumed_error(estimator),
        )
        points.append(Point(name=name, metrics=measure(run)))
    return [Point(name=p.name, metrics=p.metrics, undominated=not _beaten(p, points)) for p in points]


def _name(fairness: float) -> str:
    return f"guarded, fairness {fairness:g}{' (default)' * (fairness == DEFAULT_FAIRNESS)}"


def _beaten(point: Point, points: Sequence[Point]) -> bool:
    mine = _figures(point)
    return any(
        all(other <= own for other, own in zip(_figures(rival), mine, strict=True)) and _figures(rival) != mine
        for rival in points
    )


def _figures(point: Point) -> tuple[float, float, float]:
    return point.metrics.jct_mean_seconds, point.metrics.makespan_seconds, point.metrics.worst_rho
