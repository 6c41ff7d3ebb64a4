"""Plans for several workers. A planner is one line in WORKER_PLANNERS; all write the same records, counted alike.

    none         every row is fetched for every step and written back after it
    lru, lfu     every worker its own cache, updates pushed after every step, changed rows pulled again
    static       the same with a hot set from a profile
    replicated   every worker caches everything, gradients are summed over all of them (Bagpipe's published code)
    owner        a row belongs to one worker and moves with use; samples in equal slices
    herald       placement by what a worker trained last, updates pushed on demand (Herald, exact)
    het          replicas that may be stale by a bounded number of updates (HET)
    fae          a fixed hot set for hot batches, no cache for the others (FAE)
    lookahead    ours: ownership, with samples placed where that saves transfers

`check_plan` proves a plan by the rules of its protocol, and of HET's counts the stale reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from foresee.plan.check import Verdict, check
from foresee.plan.check_additive import check_additive
from foresee.plan.record import Accesses, Counters, Header, Planner, Record
from foresee.plan.workers.fae import StaticHotSet, hot_rows
from foresee.plan.workers.herald import herald
from foresee.plan.workers.het import het
from foresee.plan.workers.ownership import Ownership
from foresee.plan.workers.placement import contiguous, location_aware
from foresee.plan.workers.replicated import Replicated
from foresee.plan.workers.write_through import lfu_each, lru_each, static_each

WORKER_PLANNERS: dict[str, Callable[[Header, Iterable[Accesses]], Planner]] = {
    "none": lambda header, profile: Ownership(header, contiguous, eager=True, remember_versions=True),
    "static": lambda header, profile: static_each(header, profile),
    "lru": lambda header, profile: lru_each(header),
    "lfu": lambda header, profile: lfu_each(header),
    "replicated": lambda header, profile: Replicated(header),
    "owner": lambda header, profile: Ownership(header, contiguous),
    "herald": lambda header, profile: herald(header),
    "het": lambda header, profile: het(header, _staleness(header)),
    "fae": lambda header, profile: StaticHotSet(header, hot_rows(profile, header.capacity_rows)),
    "lookahead": lambda header, profile: Ownership(header, location_aware),
}
"""The profile is a part of the trace; only planners that look at it before they start read it."""
ADDITIVE = frozenset({"static", "lru", "lfu", "herald", "het"})
"""Those whose workers add their own updates at the store."""


def check_plan(
    header: Header, trace: Iterable[Accesses], records: Iterable[Record], counters: Counters | None
) -> Verdict:
    """Plays a plan through by the rules of its planner's protocol."""
    if header.planner in ADDITIVE:
        exact = header.planner != "het" or _staleness(header) == 0
        return check_additive(header, trace, records, counters, exact=exact)
    return check(header, trace, records, counters)


def _staleness(header: Header) -> int:
    return int(header.parameters.get("staleness") or 0)
