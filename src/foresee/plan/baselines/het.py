"""HET: replicas may be stale, by at most `staleness` updates each way.

A row at the store counts the updates it got, one for each lookup. A worker remembers the count it knows, and its own
updates since its last push. Before a step it pulls a row it does not hold, or whose count at the store is more than
`staleness` ahead of what it knows; after a step it pushes what it trained and has more than `staleness` own updates of.
So a read misses at most staleness updates at the store and staleness at each other worker: workers x staleness. With
staleness 0 it is exact. Workers wait for each other after every step (BSP); sample i goes to worker i mod workers.

A dirty victim is pushed before its slot is used again, which is one step earlier than in the published code.
"""

from __future__ import annotations

from foresee.plan.baselines.additive import Additive, BoundedStaleness
from foresee.plan.policy import USERS_MAX, Policy, Profile
from foresee.plan.record import Header


def het(header: Header, staleness: int) -> Additive:
    """HET's planner. Only with staleness 0 is it exact."""
    return Additive(header, BoundedStaleness(header.num_workers, staleness))


def compared(header: Header, profile: Profile) -> Additive:
    return het(header, header.options.staleness)


POLICY = Policy(
    name="het",
    meaning="replicas may be stale by so many updates",
    colour="#b59a2f",
    compared=compared,
    additive=True,
    takes_staleness=True,
    workers_max=USERS_MAX,
)
