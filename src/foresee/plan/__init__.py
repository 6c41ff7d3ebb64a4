"""Planning: accesses in, records out.

A planner reads a stream of batches and gives one `Record` per step and worker (`record`): what to fetch, send, receive,
apply and evict, and in which cache slot. `lookahead` plans for one worker, `ownership` and `placement` for several;
`baselines` holds planners for comparison. `registry` lists them, `count` counts their traffic, `check` proves a plan
right and is written independently of all planners.

Pure: no torch, file, clock, thread or global random state. Only `format` reads and writes files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from foresee.errors import PlanError
from foresee.plan.baselines.check_additive import check_additive
from foresee.plan.check import check
from foresee.plan.check_step import Verdict
from foresee.plan.grouped import grouped
from foresee.plan.in_flight import InFlight
from foresee.plan.lookahead import Lookahead
from foresee.plan.policy import PROFILE_STEPS, MakePlanner, Policy, Profile
from foresee.plan.record import Accesses, Counters, Header, Planner, PlannerOptions, Record
from foresee.plan.registry import all_policies, find, is_trainable, register, trainable, unregister
from foresee.plan.resumed import ResumedPlan
from foresee.plan.upcoming import WINDOW_BYTES, WINDOW_FIRST_BYTES, WINDOW_STEPS, window_bytes
from foresee.plan.variants import Partitions, ReadOnly


def make_planner(header: Header, profile: Profile) -> Planner:
    """The planner that the header names, for the engine. `profile` is asked only by those that look at it first."""
    if not is_trainable(header.planner):
        raise PlanError(f"there is no planner {header.planner!r}; choose one of {', '.join(trainable())}")
    begun = planned_from(header)
    if begun < header.first_step:
        whole = replace(
            header, first_step=begun, num_steps=header.num_steps + header.first_step - begun,
            options=replace(header.options, planned_from=None),
        )  # fmt: skip
        return ResumedPlan(header, make_planner(whole, profile))
    policy = find(header.planner)
    make = policy.alone if header.num_workers == 1 else policy.together
    if make is None:
        raise PlanError(
            f"planner {header.planner!r} cannot plan for {header.num_workers} workers; choose one of "
            f"{', '.join(trainable(header.num_workers))}"
        )
    if header.groups and header.options.staleness:
        raise PlanError("batches in flight are planned for rows of one width; leave staleness out, or give one width")
    if header.groups:
        return grouped(header, _made_by(make), profile)
    return _made_by(make)(header, profile)


def _made_by(make: MakePlanner) -> MakePlanner:
    """The planner of one row group, in the variant that its header wants."""

    def made(header: Header, profile: Profile) -> Planner:
        inside = replace(header, options=replace(header.options, staleness=0))
        planner = Partitions(inside, make, profile) if header.options.partition_rows > 1 else make(inside, profile)
        if header.options.read_only:
            return ReadOnly(header, planner)
        return InFlight(header, planner) if header.options.staleness else planner

    return made


def planned_from(header: Header) -> int:
    """The step whose accesses a planner is given first: where the plan began, if it is entered in the middle."""
    begun = header.options.planned_from
    return header.first_step if begun is None else min(header.first_step, max(0, begun))


def plan(planner: Planner, trace: Iterable[Accesses]) -> Iterator[Record]:
    """The records of a whole trace, as they are decided."""
    for accesses in trace:
        yield from planner.push(accesses)
    yield from planner.finish()


def check_plan(
    header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None
) -> Verdict:
    """Plays a plan that was made to be compared through, by the rules of its policy's protocol."""
    policy = find(header.planner)
    if policy.additive and not (header.num_workers == 1 and policy.alone):
        exact = not policy.takes_staleness or header.options.staleness == 0
        return check_additive(header, trace, records, counters, exact=exact)
    return check(header, trace, records, counters)


__all__ = [
    "PROFILE_STEPS", "WINDOW_BYTES", "WINDOW_FIRST_BYTES", "WINDOW_STEPS", "Lookahead", "PlannerOptions", "Policy",
    "all_policies", "check_plan", "find", "is_trainable", "make_planner", "plan", "planned_from", "register",
    "trainable", "unregister", "window_bytes",
]  # fmt: skip
