"""All policies side by side on the first steps of a log: what each would move, and what a step would take.

In: a stream, whose first steps are held in memory (`Sample`), cache sizes that make sense for them, and policies by
name. Out: one outcome for each number of trainers, cache and policy, as it is found. Rows are counted by
`plan/count.py` as everywhere, final write-backs included; seconds are predicted by `plan/cost` from the second half of
the steps, when caches are filled, and without the last one, which writes everything back. What does not exist for so
many trainers is an outcome with a reason. Never: a run. Nothing is trained and no table is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from foresee.data.batch import BatchStream
from foresee.engine.header import FETCH_AHEAD_STEPS
from foresee.engine.planned_step import Advance, accesses_of, driven
from foresee.plan import all_policies, find
from foresee.plan.baselines.ranked_eviction import BatchTooLargeError
from foresee.plan.count import CRITICAL, RECEIVED, Counting, Measuring, Reading, RowsMoved, Volumes, rows_moved
from foresee.plan.policy import Policy
from foresee.plan.record import Accesses, Counters, Header, Planner, PlannerOptions, Record
from foresee.store.layout import Layout
from foresee.tools.cost import Prediction, RowBytes, Speeds, predict, transfer_bytes

SpeedsFor = Callable[[int], Speeds]
"""The speeds of a cluster of so many trainers."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One line of a comparison: a policy, with a staleness if it takes one."""

    policy: Policy
    staleness: int = 0

    @property
    def name(self) -> str:
        return f"{self.policy.name} {self.staleness}" if self.policy.takes_staleness else self.policy.name


def policies_named(names: Iterable[str], staleness: Sequence[int]) -> list[Candidate]:
    """Those of these names, or all, in the registry's order; once for each staleness where a policy takes one."""
    wanted = {find(name).name for name in names}
    chosen = []
    for policy in all_policies():
        if not wanted or policy.name in wanted:
            bounds = staleness if policy.takes_staleness else (0,)
            chosen += [Candidate(policy=policy, staleness=bound) for bound in bounds]
    return chosen


def planner_for(policy: Policy, header: Header, sample: Sample) -> Planner:
    """The policy's planner; a bound for several trainers has all their caches as one."""
    if policy.is_bound:
        pooled = min(header.num_rows, header.num_workers * header.capacity_rows)
        header = replace(header, num_workers=1, capacity_rows=pooled)
    return policy.planner_to_compare(header, sample.profile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be compared."""

    candidates: Sequence[Candidate]
    caches: Sequence[CacheSize]
    layout: Layout
    speeds: SpeedsFor


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one policy does, in the mean of all steps."""

    num_steps: int
    counters: Counters
    rows: RowsMoved
    """A step."""
    bytes_moved: float
    bytes_critical: float
    hit_rate: float
    stale_share: float
    """Of the distinct rows that trainers read."""
    prediction: Prediction | None
    """None for the bound, which nobody can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One policy in one setting."""

    candidate: Candidate
    num_workers: int
    cache: CacheSize
    cache_rows: int
    figures: Figures | None
    reason: str | None = None
    """Why there are no figures."""


def num_plans(samples: Sequence[Sample], question: Question) -> int:
    """How many steps will be planned in all, for a bar."""
    return sum(len(sample.steps) for sample in samples) * len(question.caches) * len(question.candidates)


def compare(samples: Iterable[Sample], question: Question, advance: Advance | None = None) -> Iterator[Outcome]:
    """One outcome for each number of trainers, cache and policy, in this order."""
    for sample in samples:
        for cache in question.caches:
            for candidate in question.candidates:
                yield _outcome(sample, cache, candidate, question, advance or (lambda: None))


def _outcome(sample: Sample, cache: CacheSize, candidate: Candidate, question: Question, advance: Advance) -> Outcome:
    reason, figures, cache_rows = candidate.policy.absence(sample.num_workers), None, sample.rows_of(cache)
    if reason is None:
        try:
            figures = _figures(sample, cache_rows, candidate, question, advance)
        except BatchTooLargeError as error:
            reason = f"needs a cache of {error.num_distinct:,} rows or more"
    workers = sample.num_workers
    return Outcome(
        candidate=candidate, num_workers=workers, cache=cache, cache_rows=cache_rows, figures=figures, reason=reason
    )


def header_of(sample: Sample, cache_rows: int, candidate: Candidate) -> Header:
    """What is to be planned."""
    return Header(
        planner=candidate.policy.name,
        options=PlannerOptions(staleness=candidate.staleness),
        num_workers=sample.num_workers,
        capacity_rows=cache_rows,
        num_rows=sample.num_rows,
        first_step=0,
        num_steps=len(sample.steps),
        fetch_ahead_steps=FETCH_AHEAD_STEPS,
        stream_digest="comparison",
    )


def _figures(sample: Sample, cache_rows: int, candidate: Candidate, question: Question, advance: Advance) -> Figures:
    header, policy = header_of(sample, cache_rows, candidate), candidate.policy
    num_workers = 1 if policy.is_bound else sample.num_workers
    counting, measuring, reading = Counting(), Measuring(num_workers), Reading(num_workers, cache_rows)
    for record in counting.watch(_records(policy, header, sample, advance)):
        measuring.add(record)
        if candidate.staleness:
            reading.add(record)
    volumes, row_bytes = measuring.volumes(), bytes_of(question.layout)
    rows, num_steps = rows_moved(counting.counters, num_workers), volumes.num_steps
    moved, critical = bytes_moved(counting.counters, volumes, row_bytes)
    return Figures(
        num_steps=num_steps,
        counters=counting.counters,
        rows=RowsMoved(rows.critical / num_steps, rows.total / num_steps),
        bytes_moved=moved / num_steps,
        bytes_critical=critical / num_steps,
        hit_rate=volumes.hit_rate,
        stale_share=reading.staleness.stale_share,
        prediction=None if policy.is_bound else predicted(policy, volumes, row_bytes, question.speeds(num_workers)),
    )


def predicted(policy: Policy, volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Prediction:
    """A mean step, caches filled; all steps where a policy orders them into phases, which differ."""
    trained = volumes.until_step(max(1, volumes.num_steps - 1))
    return predict(trained, row_bytes, speeds, first_step=0 if policy.order else trained.num_steps // 2)


def bytes_of(layout: Layout) -> RowBytes:
    return RowBytes(stored=layout.row_bytes, value=4 * layout.value_words, gradient=4 * layout.width)


def bytes_moved(counters: Counters, volumes: Volumes, row_bytes: RowBytes) -> tuple[float, float]:
    """(all, on the critical path) over all steps, each way counted once, as `rows_moved` counts rows."""
    between = transfer_bytes(volumes, row_bytes)[:, :, RECEIVED].sum(axis=(0, 1))  # [urgencies]
    ring = 2.0 * (volumes.num_workers - 1) / volumes.num_workers * row_bytes.gradient
    read = (counters.num_fetched + counters.num_refreshed) * row_bytes.stored
    written = counters.num_evicted * row_bytes.stored + counters.num_pushed * row_bytes.gradient
    num_written = max(1, counters.num_evicted + counters.num_pushed)
    total = float(between.sum()) + read + written + ring * counters.num_reduced
    critical = (
        float(between[CRITICAL])
        + counters.num_fetched_critical * row_bytes.stored
        + counters.num_written_critical * written / num_written
        + ring * counters.num_reduced_critical
    )
    return total, critical


def _records(policy: Policy, header: Header, sample: Sample, advance: Advance) -> Iterator[Record]:
    steps: Sequence[Accesses] = sample.steps if policy.order is None else policy.order(header, sample.steps)
    return driven(planner_for(policy, header, sample), steps, advance)
