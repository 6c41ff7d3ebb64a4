"""The tables of `foresee compare`: what every policy would move on the same steps in the same cache.

In: outcomes. Out: flat records, which the CSV and the page are made of too, and these as tables for a terminal. What
does not exist is a dash with a number, and the reason below the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from foresee.engine.comparison import Outcome, Sample

Record = dict[str, str | int | float | None]
OURS = "lookahead"
HEAD = ("policy", "hit rate", "rows", "critical", "MB", "critical MB", "stale", "step ms", "limited by")
EXPLANATION = (
    "hit rate: rows found in the trainer's own cache; rows and MB: over a wire in a step, all trainers together; "
    "critical: cannot travel while an earlier step computes; stale: reads that miss an update; lookahead: Foresee; "
    "belady: the bound on rows fetched and written, all caches as one"
)


def record_of(outcome: Outcome, batch_size: int) -> Record:
    """One flat record; None where there is no figure."""
    figures = outcome.figures
    setting: Record = {
        "policy": outcome.policy.name,
        "trainers": outcome.num_workers,
        "cache": str(outcome.cache),
        "cache_rows": outcome.cache_rows,
        "batch_size": batch_size,
        "why_missing": outcome.reason,
    }
    if figures is None:
        empty = ("steps", "hit_rate", "rows_per_step", "critical_rows_per_step", "bytes_per_step")
        more = ("critical_bytes_per_step", "stale_reads", "step_ms", "bottleneck")
        return setting | dict.fromkeys((*empty, *more))
    prediction = figures.prediction
    return setting | {
        "steps": figures.num_steps,
        "hit_rate": figures.hit_rate,
        "rows_per_step": figures.rows.total,
        "critical_rows_per_step": figures.rows.critical,
        "bytes_per_step": figures.bytes_moved,
        "critical_bytes_per_step": figures.bytes_critical,
        "stale_reads": figures.stale_share,
        "step_ms": None if prediction is None else 1e3 * prediction.step_seconds,
        "bottleneck": None if prediction is None else prediction.bottleneck,
    }


def introduction(log: str, samples: Sequence[Sample], batch_size: int) -> str:
    """What was compared, as a sentence."""
    steps = samples[-1]
    whole = all(len(sample.steps) == sample.num_steps_all for sample in samples)
    which = "all" if whole else "the first"
    return (
        f"{log}: {which} {len(steps.steps):,} steps of {batch_size:,} samples a trainer, in a run's order; "
        f"the log has {steps.num_steps_all:,} such steps for {_trainers(steps.num_workers)}."
    )


def as_text(log: str, samples: Sequence[Sample], records: Sequence[Record], batch_size: int, setting: str) -> list[
    RenderableType
]:  # fmt: skip
    """What a person reads."""
    parts: list[RenderableType] = [introduction(log, samples, batch_size)]
    by_workers = {sample.num_workers: sample for sample in samples}
    for trainers, cache in dict.fromkeys((record["trainers"], record["cache"]) for record in records):
        some = [record for record in records if (record["trainers"], record["cache"]) == (trainers, cache)]
        parts += _one_table(by_workers[int(str(trainers))], some)
    return [*parts, EXPLANATION, setting]


def _one_table(sample: Sample, records: Sequence[Record]) -> list[RenderableType]:
    cache_rows = int(str(records[0]["cache_rows"]))
    raised = cache_rows == sample.two_steps_rows
    title = (
        f"{_trainers(sample.num_workers)}, cache of {cache_rows:,} of {sample.num_touched:,} touched rows each"
        f"{' (what two steps need)' if raised else ''}, {sample.num_unique:,.0f} distinct rows a step"
    )
    table = Table(*HEAD)
    for column in table.columns[1:-1]:
        column.justify = "right"
    reasons = list(dict.fromkeys(str(record["why_missing"]) for record in records if record["why_missing"]))
    for record in records:
        note = record["why_missing"]
        cells = [f"– [{reasons.index(str(note)) + 1}]"] if note else _cells(record)
        table.add_row(str(record["policy"]), *cells, style="bold" if record["policy"] == OURS else None)
    return ["", title, table, *(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))]


def _cells(record: Record) -> list[str]:
    def shown(name: str, form: str, scale: float = 1.0) -> str:
        value = record[name]
        return "–" if value is None else format(float(value) * scale, form)

    return [
        shown("hit_rate", ".1%"),
        shown("rows_per_step", ",.0f"),
        shown("critical_rows_per_step", ",.0f"),
        shown("bytes_per_step", ",.2f", 1e-6),
        shown("critical_bytes_per_step", ",.2f", 1e-6),
        shown("stale_reads", ".0%"),
        shown("step_ms", ",.1f"),
        str(record["bottleneck"] or "–"),
    ]


def _trainers(count: int) -> str:
    return "1 trainer" if count == 1 else f"{count} trainers"
