"""What a policy is: a way to decide which rows stay, with all that lists, tables, plots and sentences say of it.

In: a header, and a profile for policies that look at some steps before they begin. Out: a planner. A policy stands in
one file of `policies/` and one line of its registry; from outside, `register` or an entry point adds one. Everything
else asks the registry: nobody compares names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from foresee.plan.record import Accesses, Header, Planner

PROFILE_STEPS = 100
"""How much of the stream a policy looks at that fixes its hot set before it begins."""
USERS_MAX = 63
"""Workers whose users of a row fit into a signed number, as planners that are there to be compared with count them."""

Profile = Callable[[int], Iterable[Accesses]]
"""Gives the accesses of the first so many steps."""
MakePlanner = Callable[[Header, Profile], Planner]
Order = Callable[[Header, Sequence[Accesses]], Sequence[Accesses]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One policy. A number of workers that has no `Make…` is one that the policy does not support."""

    name: str
    meaning: str
    """What it does, for the captions of `foresee plan` and `foresee compare`."""
    colour: str
    """Of its lines and bars, as `#3b82c4`."""
    alone: MakePlanner | None = None
    """For one worker; the engine runs it, and all such policies train to the same bytes."""
    together: MakePlanner | None = None
    """For several workers; the engine runs it."""
    compared: MakePlanner | None = None
    """For any number of workers where the engine runs it not: to be counted and checked beside the others."""
    additive: bool = False
    """Workers of `compared` add their own updates at the store, where owners assign otherwise."""
    takes_staleness: bool = False
    """`compared` heeds options.staleness, and is exact only without."""
    workers_min: int = 1
    workers_max: int | None = None
    order: Order | None = None
    """The same samples in the order that the policy wants; None: that of the log."""
    is_bound: bool = False
    """No policy fetches less, and nobody can train it in several processes: all caches count as one."""
    keeps_nothing: bool = False
    """Every row leaves after its step."""
    foresight_steps: int | None = 0
    """Steps beyond the planned one by whose next uses it decides; None: all to the end."""
    leaves_first: str | None = None
    """Which row leaves a full cache first, where it does not look ahead: half a sentence for `foresee explain`."""

    @property
    def rule(self) -> str | None:
        """The half sentence of a policy that does not look ahead, whether it gave one or not; None: it looks ahead."""
        if self.foresight_steps != 0 or self.keeps_nothing:
            return None
        return self.leaves_first or "the rows that it ranks lowest leave first"

    def absence(self, num_workers: int) -> str | None:
        """Why it does not exist for so many workers, as half a sentence; None if it does."""
        if num_workers < self.workers_min:
            return "decides between trainers, and there is only one"
        if self.workers_max is not None and num_workers > self.workers_max:
            return f"is planned for up to {self.workers_max} trainers"
        if not (self.compared or self.is_bound or (self.together if num_workers > 1 else self.alone)):
            return "is planned for one trainer only" if num_workers > 1 else "is planned for several trainers only"
        return None

    def planner_to_compare(self, header: Header, profile: Profile) -> Planner:
        """The planner whose records are counted beside those of others; for one worker the engine's own if there is."""
        order = (self.alone, self.compared) if header.num_workers == 1 else (self.compared, self.together)
        make = next(make for make in order if make is not None)
        return make(header, profile)
