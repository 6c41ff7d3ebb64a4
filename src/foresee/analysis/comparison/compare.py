"""Plans the same steps once for each policy, cache and number of trainers; counts what moves and predicts the step.

In: samples, one for each number of trainers, and a question. Out: one outcome for each combination, as it is found.
Rows are counted by `plan/count.py` as everywhere, final write-backs included; seconds are predicted by `plan/cost`
from the second half of the steps, when caches are filled, and without the last one, which writes everything back.
Never: a run. Nothing is trained and no table is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from foresee.analysis.comparison.policies import BOUND, CacheSize, Policy, Sample, absence, ordered_for, planner_for
from foresee.engine.header import FETCH_AHEAD_STEPS
from foresee.plan.cost import Prediction, RowBytes, Speeds, predict, transfer_bytes
from foresee.plan.count import CRITICAL, RECEIVED, Counting, Measuring, RowsMoved, Volumes, rows_moved
from foresee.plan.ranked_eviction import BatchTooLargeError
from foresee.plan.record import Accesses, Counters, Header, Record
from foresee.plan.staleness import Reading
from foresee.store.contract import Layout

Advance = Callable[[], None]
SpeedsFor = Callable[[int], Speeds]
"""The speeds of a cluster of so many trainers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is to be compared."""

    policies: Sequence[Policy]
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

    policy: Policy
    num_workers: int
    cache: CacheSize
    cache_rows: int
    figures: Figures | None
    reason: str | None = None
    """Why there are no figures."""


def num_plans(samples: Sequence[Sample], question: Question) -> int:
    """How many steps will be planned in all, for a bar."""
    return sum(len(sample.steps) for sample in samples) * len(question.caches) * len(question.policies)


def compare(samples: Iterable[Sample], question: Question, advance: Advance | None = None) -> Iterator[Outcome]:
    """One outcome for each number of trainers, cache and policy, in this order."""
    for sample in samples:
        for cache in question.caches:
            for policy in question.policies:
                yield _outcome(sample, cache, policy, question, advance or (lambda: None))


def _outcome(sample: Sample, cache: CacheSize, policy: Policy, question: Question, advance: Advance) -> Outcome:
    reason, figures, cache_rows = absence(policy, sample.num_workers), None, sample.rows_of(cache)
    if reason is None:
        try:
            figures = _figures(sample, cache_rows, policy, question, advance)
        except BatchTooLargeError as error:
            reason = f"needs a cache of {error.num_distinct:,} rows or more"
    workers = sample.num_workers
    return Outcome(
        policy=policy, num_workers=workers, cache=cache, cache_rows=cache_rows, figures=figures, reason=reason
    )


def header_of(sample: Sample, cache_rows: int, policy: Policy) -> Header:
    """What is to be planned."""
    return Header(
        planner=policy.planner,
        parameters={"staleness": policy.staleness},
        num_workers=sample.num_workers,
        capacity_rows=cache_rows,
        num_rows=sample.num_rows,
        first_step=0,
        num_steps=len(sample.steps),
        fetch_ahead_steps=FETCH_AHEAD_STEPS,
        stream_digest="comparison",
    )


def _figures(sample: Sample, cache_rows: int, policy: Policy, question: Question, advance: Advance) -> Figures:
    header, bound = header_of(sample, cache_rows, policy), policy.planner == BOUND
    num_workers = 1 if bound else sample.num_workers
    counting, measuring, reading = Counting(), Measuring(num_workers), Reading(num_workers, cache_rows)
    for record in counting.watch(_records(policy, header, sample, advance)):
        measuring.add(record)
        if policy.staleness:
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
        prediction=None if bound else predicted(policy, volumes, row_bytes, question.speeds(num_workers)),
    )


def predicted(policy: Policy, volumes: Volumes, row_bytes: RowBytes, speeds: Speeds) -> Prediction:
    """A mean step, caches filled. FAE's phases differ, so of FAE all steps count."""
    trained = volumes.until_step(max(1, volumes.num_steps - 1))
    return predict(trained, row_bytes, speeds, first_step=0 if policy.planner == "fae" else trained.num_steps // 2)


def bytes_of(layout: Layout) -> RowBytes:
    return RowBytes(stored=layout.row_bytes, value=4 * layout.width)


def bytes_moved(counters: Counters, volumes: Volumes, row_bytes: RowBytes) -> tuple[float, float]:
    """(all, on the critical path) over all steps, each way counted once, as `rows_moved` counts rows."""
    between = transfer_bytes(volumes, row_bytes)[:, :, RECEIVED].sum(axis=(0, 1))  # [urgencies]
    ring = 2.0 * (volumes.num_workers - 1) / volumes.num_workers * row_bytes.value
    read = (counters.num_fetched + counters.num_refreshed) * row_bytes.stored
    written = counters.num_evicted * row_bytes.stored + counters.num_pushed * row_bytes.value
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
    steps: Sequence[Accesses] = ordered_for(policy, sample.steps, header.capacity_rows)
    planner = planner_for(policy, header, sample)
    for accesses in steps:
        yield from planner.push(accesses)
        advance()
    yield from planner.finish()
