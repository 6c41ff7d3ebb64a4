"""What can be compared: every policy by name, how it is planned for one trainer or several, and where it is not there.

A policy is a planner with a staleness. For one trainer `none`, `static`, `lru`, `lfu`, `lookahead` and `belady` are the
planners of `foresee plan`; everything else is one of `WORKER_PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from foresee.engine.comparison.sample import Sample
from foresee.errors import PlanError
from foresee.plan import PLANNERS, PROFILE_STEPS, make_planner
from foresee.plan.belady import Belady
from foresee.plan.record import Header, Planner, Touches
from foresee.plan.workers import WORKER_PLANNERS
from foresee.plan.workers.fae import group, hot_rows

OURS, BOUND = "lookahead", "belady"
PROFILE_SHARE = 20
"""A twentieth of the steps is what FAE looks at before it begins."""
BITS_MAX = 63
"""Trainers whose users of a row fit into a signed number, as the planners to be compared with count them."""
MEANINGS = {
    "none": "every step fetches all its rows",
    "static": "the hottest rows of a profile stay",
    "lru": "the row touched longest ago leaves",
    "lfu": "the row touched in the fewest steps leaves",
    "het": "replicas may be stale by so many updates",
    "fae": "a hot set for hot batches, samples reordered",
    "replicated": "every trainer caches everything, as in Bagpipe's published code",
    "owner": "a row belongs to one trainer and moves with use",
    "herald": "samples go where their rows were trained last",
    OURS: "Foresee",
    BOUND: "no policy fetches less",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One line of a comparison."""

    planner: str
    staleness: int = 0

    @property
    def name(self) -> str:
        return f"{self.planner} {self.staleness}" if self.planner == "het" else self.planner


def policies_named(names: Iterable[str], staleness: Sequence[int]) -> list[Policy]:
    """The policies of these names, in the order of `MEANINGS`; `het` once for each staleness."""
    wanted = list(names) or list(MEANINGS)
    for name in wanted:
        if name not in MEANINGS:
            raise PlanError(f"there is no policy {name!r}; choose some of {', '.join(MEANINGS)}")
    chosen = []
    for name in MEANINGS:
        if name in wanted:
            bounds = staleness if name == "het" else (0,)
            chosen += [Policy(planner=name, staleness=bound) for bound in bounds]
    return chosen


def absence(policy: Policy, num_workers: int) -> str | None:
    """Why a policy does not exist for so many trainers, as half a sentence; None if it does."""
    if num_workers == 1 and policy.planner in ("owner", "herald"):
        return "decides between trainers, and there is only one"
    if num_workers > BITS_MAX and policy.planner not in ("none", "owner", OURS, BOUND):
        return f"is planned for up to {BITS_MAX} trainers"
    return None


def ordered_for(policy: Policy, steps: Sequence[Touches], capacity_rows: int) -> Sequence[Touches]:
    """The steps as the policy wants them: FAE puts samples that touch only hot rows last, the others keep the order."""
    if policy.planner != "fae":
        return steps
    return group(steps, hot_rows(_short_profile(steps), capacity_rows))


def planner_for(policy: Policy, header: Header, sample: Sample) -> Planner:
    """The header's planner; a bound for several trainers has all their caches as one."""
    if policy.planner == BOUND:
        pooled = min(header.num_rows, header.num_workers * header.capacity_rows)
        return Belady(replace(header, num_workers=1, capacity_rows=pooled))
    if header.num_workers == 1 and policy.planner in PLANNERS:
        return make_planner(header, sample.profile)
    profile = sample.profile(PROFILE_STEPS) if policy.planner == "static" else _short_profile(sample.steps)
    return WORKER_PLANNERS[policy.planner](header, profile)


def _short_profile(steps: Sequence[Touches]) -> Sequence[Touches]:
    return steps[: max(1, len(steps) // PROFILE_SHARE)]
