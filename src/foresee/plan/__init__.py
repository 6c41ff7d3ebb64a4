"""Planning: touches in, records out. Pure: no torch, no file, no clock, no thread, no global random state.

A planner is one line in PLANNERS. All of them write the same format (`record`), are counted by the same counter
(`count`) and proved by the same checker (`check`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from foresee.errors import PlanError
from foresee.plan.belady import Belady
from foresee.plan.lookahead import Lookahead
from foresee.plan.ranked_eviction import least_frequently_used, least_recently_used, static_hot_set
from foresee.plan.record import Accesses, Header, Planner, Record
from foresee.plan.resumed import ResumedPlan
from foresee.plan.upcoming import WINDOW_BYTES, WINDOW_STEPS
from foresee.plan.workers.ownership import Ownership
from foresee.plan.workers.placement import PLACEMENTS, LocationAware

PROFILE_STEPS = 100
"""How much of the stream the static planner looks at before it fixes its hot set."""

Profile = Callable[[int], Iterable[Accesses]]
"""Gives the touches of the first so many steps."""


def _lookahead(header: Header, profile: Profile) -> Planner:
    versions = bool(header.parameters.get("remember_versions", False))
    window, bound = header.parameters.get("window_steps"), window_bytes(header)
    if window is None:
        most = int(header.parameters.get("read_ahead_steps") or WINDOW_STEPS)
        return Lookahead(header, window_steps=most, window_bytes=bound, remember_versions=versions)
    return Lookahead(header, window_steps=int(window), window_bytes=bound, eager=True, remember_versions=versions)


def window_bytes(header: Header) -> int | None:
    """What the batches of the window may take; nothing bounds a window whose length was fixed, unless it is asked."""
    asked = header.parameters.get("window_bytes")
    if asked is not None:
        return int(asked)
    return WINDOW_BYTES if header.parameters.get("window_steps") is None else None


def _none(header: Header, profile: Profile) -> Planner:
    versions = bool(header.parameters.get("remember_versions", False))
    return Lookahead(header, window_steps=0, eager=True, remember_versions=versions)


PLANNERS: dict[str, Callable[[Header, Profile], Planner]] = {
    "none": _none,
    "static": lambda header, profile: static_hot_set(header, profile(PROFILE_STEPS)),
    "lru": lambda header, profile: least_recently_used(header),
    "lfu": lambda header, profile: least_frequently_used(header),
    "lookahead": _lookahead,
    "belady": lambda header, profile: Belady(header),
}


def make_planner(header: Header, profile: Profile) -> Planner:
    """The planner that the header names. `profile` is asked only by planners that look at the stream first."""
    if header.planner not in PLANNERS:
        raise PlanError(f"there is no planner {header.planner!r}; choose one of {', '.join(PLANNERS)}")
    begun = planned_from(header)
    if begun < header.first_step:
        whole = replace(
            header, first_step=begun, num_steps=header.num_steps + header.first_step - begun,
            parameters={**header.parameters, "planned_from": None},
        )  # fmt: skip
        return ResumedPlan(header, make_planner(whole, profile))
    if header.num_workers > 1:
        return _for_many(header)
    return PLANNERS[header.planner](header, profile)


def planned_from(header: Header) -> int:
    """The step whose touches a planner is given first: where the plan began, if it is entered in the middle."""
    begun = header.parameters.get("planned_from")
    return header.first_step if begun is None else min(header.first_step, max(0, int(begun)))


def _for_many(header: Header) -> Planner:
    placement = str(header.parameters.get("placement") or "location_aware")
    if header.planner not in ("lookahead", "none") or placement not in PLACEMENTS:
        raise PlanError(
            f"planner {header.planner!r} with placement {placement!r} cannot plan for {header.num_workers} workers; "
            f"choose lookahead or none, with one of {', '.join(PLACEMENTS)}"
        )
    versions = bool(header.parameters.get("remember_versions", False))
    place, positions = PLACEMENTS[placement], header.parameters.get("placement_positions")
    if positions is not None and placement == "location_aware":
        place = LocationAware(positions=_positions(str(positions)))
    window = header.parameters.get("window_steps")
    return Ownership(
        header, place, window_steps=WINDOW_STEPS if window is None else int(window), window_bytes=window_bytes(header),
        eager=header.planner == "none", remember_versions=versions,
    )  # fmt: skip


def _positions(listed: str) -> tuple[int, ...]:
    numbers = listed.split(",")
    if not all(number.isdecimal() and len(number) < 10 for number in numbers):
        raise PlanError(f"placement_positions {listed[:40]!r} are no positions; give numbers with commas between them")
    return tuple(map(int, numbers))


def plan(planner: Planner, trace: Iterable[Accesses]) -> Iterator[Record]:
    """The records of a whole trace, as they are decided."""
    for accesses in trace:
        yield from planner.push(accesses)
    yield from planner.finish()


__all__ = [
    "PLANNERS", "PROFILE_STEPS", "WINDOW_BYTES", "WINDOW_STEPS", "Lookahead", "make_planner", "plan", "planned_from",
    "window_bytes",
]  # fmt: skip
