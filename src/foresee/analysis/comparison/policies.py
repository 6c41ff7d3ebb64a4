"""The steps that are compared, held in memory, and the cache sizes that make sense for them.

In: a stream of batches. Out: its first steps as touches, how many rows they touch, and how many slots two neighbouring
steps need: below that some of the published protocols cannot work at all. Memory grows with the steps taken.

What can be compared: every policy by name, how it is planned for one trainer or several, and where it is not there.

A policy is a planner with a staleness. For one trainer `none`, `static`, `lru`, `lfu`, `lookahead` and `belady` are the
planners of `foresee plan`; everything else is one of `WORKER_PLANNERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from foresee.data.batch import BatchStream
from foresee.engine.planned_step import accesses_of
from foresee.errors import PlanError
from foresee.plan import PLANNERS, PROFILE_STEPS, make_planner
from foresee.plan.belady import Belady
from foresee.plan.record import Accesses, Header, Planner
from foresee.plan.workers import WORKER_PLANNERS
from foresee.plan.workers.fae import group, hot_rows


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Slots of each trainer as a person says it: `50000` rows, `0.1` of the rows touched, `2x` what two steps need."""

    size: float
    in_two_steps: bool = False

    @classmethod
    def parse(cls, word: str) -> CacheSize:
        """Raises ValueError for anything else."""
        in_two_steps = word.endswith("x")
        size = float(word.removesuffix("x"))
        if not (1 if in_two_steps else 0) <= size < 1 << 40 or size == 0:
            raise ValueError(word)
        return cls(size, in_two_steps)

    @property
    def is_raised(self) -> bool:
        """Whether it is made as large as two steps need; a number of rows is taken at its word."""
        return self.in_two_steps or self.size <= 1

    def __str__(self) -> str:
        return f"{self.size:g}x" if self.in_two_steps else f"{self.size:g}" if self.size <= 1 else f"{self.size:.0f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The first steps of a stream, for so many trainers."""

    num_workers: int
    steps: Sequence[Accesses]
    num_steps_all: int
    """Of the whole stream."""
    num_rows: int
    num_touched: int
    """Different rows of all steps together."""
    num_unique: float
    """Distinct rows of a step, in the mean."""
    two_steps_rows: int
    """Distinct rows of two neighbouring steps, at most: the smallest cache that works for every policy."""
    stream: BatchStream

    def profile(self, num_steps: int) -> Iterator[Accesses]:
        """The first steps, also beyond those that are compared, for policies that look at some before they begin."""
        return map(accesses_of, islice(self.stream.batches(), num_steps))

    def rows_of(self, cache: CacheSize) -> int:
        """Slots of each trainer."""
        if not cache.is_raised:
            return int(cache.size)
        whole = self.two_steps_rows if cache.in_two_steps else self.num_touched
        return max(self.two_steps_rows, int(cache.size * whole))


def take_sample(
    stream: BatchStream, num_workers: int, num_steps: int | None, advance: Callable[[], None] | None = None
) -> Sample:
    """Reads the first steps; all of them without a number."""
    steps, distinct = [], []
    wanted = stream.num_steps if num_steps is None else min(num_steps, stream.num_steps)
    for batch, _ in zip(stream.batches(), range(wanted), strict=False):
        steps.append(accesses_of(batch))
        distinct.append(np.unique(batch.rows))
        if advance is not None:
            advance()
    pairs = [len(np.union1d(first, second)) for first, second in pairwise(distinct)] or [len(distinct[0])]
    return Sample(
        num_workers=num_workers,
        steps=steps,
        num_steps_all=stream.num_steps,
        num_rows=stream.num_rows,
        num_touched=len(np.unique(np.concatenate(distinct))),
        num_unique=float(np.mean([len(rows) for rows in distinct])),
        two_steps_rows=max(pairs),
        stream=stream,
    )


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


def ordered_for(policy: Policy, steps: Sequence[Accesses], capacity_rows: int) -> Sequence[Accesses]:
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


def _short_profile(steps: Sequence[Accesses]) -> Sequence[Accesses]:
    return steps[: max(1, len(steps) // PROFILE_SHARE)]
