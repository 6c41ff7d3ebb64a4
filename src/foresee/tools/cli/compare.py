"""`foresee compare`: every policy on a person's own log: rows, bytes, staleness, and the step they give.

In: a log and a setting. Out: flat records of outcomes, which the CSV and the page are made of too, and these as tables
for a terminal with what each policy means below them. What does not exist is a dash with a number, and the reason below
the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType

from foresee.errors import DataError
from foresee.io.urls import shown
from foresee.tools.cli import scenario
from foresee.tools.cli.options import Log, bar, grouped
from foresee.tools.cli.scenario import Links, Output, RowForm
from foresee.tools.cli.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.data.click_log import ClickLog
    from foresee.tools.comparison import Outcome, Question, Sample
    from foresee.tools.report.frame import Record, Value

STEPS = 30
CURVE = "1x,1.5x,2.5x,4x"
"""Cache sizes for a page, where nobody names others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What is compared."""

    trainers: Annotated[str, typer.Option(metavar="N,N", help="Numbers of trainers to compare for.")] = "1,8"
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,SIZE",
            help="Slots of each trainer: rows (50000), a share of the rows that the steps touch (0.1), or a multiple "
            f"of what two steps need (2x). Default 0.1; with --page {CURVE}.",
        ),
    ] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a step of each trainer.")] = 256
    steps: Annotated[str, typer.Option(metavar="NUM|all", help="Compare on so many steps from the start.")] = str(STEPS)
    policies: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Only these policies. Default: all there are.")
    ] = None
    staleness: Annotated[str, typer.Option(metavar="NUM,NUM", help="Updates that HET's replicas may be late by.")] = (
        "10,100"
    )


@grouped
def compare(
    log: Log,
    compared: Compared,
    rows: RowForm,
    links: Links,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of samples, as in a run.")] = 0,
    *,
    output: Output,
) -> None:
    """Every policy on your log, side by side, without training.

    Plans the first steps of the log once for each policy, cache size and number of trainers, and prints the share of
    rows found in the own cache, rows and bytes moved, those on the critical path, stale reads, and the step that a cost
    model predicts for your compute time and links. `belady` is the bound; `lookahead` is Foresee.

    [bold]Examples[/]

      foresee compare data/criteo
      foresee compare data/criteo --trainers 2,4,8 --compute-ms 8 --link-mbit 10000 --page compare.html
      foresee compare data/criteo --policies lookahead,owner,het --cache 50000 --steps all --csv compare.csv
    """
    from foresee.data.click_log import ClickLog
    from foresee.tools.cli.plan_comparison import meanings_of
    from foresee.tools.comparison import Question, policies_named

    console, opened, num_steps = terminal(), ClickLog.open(log), scenario.number_of_steps(compared.steps)
    staleness = scenario.numbers(compared.staleness, "--staleness", least=0)
    question = Question(
        candidates=policies_named(scenario.words(compared.policies or ""), staleness),
        caches=scenario.cache_sizes(compared.cache or (CURVE if output.page is not None else "0.1")),
        layout=rows.layout(opened),
        speeds=links.speeds(),
    )
    workers = scenario.numbers(compared.trainers, "--trainers")
    batch_size = compared.batch_size
    samples = [_sample(opened, count, batch_size, num_steps, seed, console) for count in workers]
    records, setting = _records(samples, question, batch_size, console), links.in_words()
    about = introduction(shown(log), samples, batch_size)
    meanings = meanings_of(candidate.policy for candidate in question.candidates)
    show(console, about, *_tables(samples, records), meanings, EXPLANATION, setting)
    if output.csv is not None:
        from foresee.tools.report.comparison import KEYS
        from foresee.tools.report.frame import as_csv

        scenario.write_text(output.csv, as_csv(records, KEYS))
        show(console, f"wrote {output.csv}")
    if output.page is not None:
        from foresee.tools.report.comparison import write_comparison_page

        title = f"Policies on {PurePath(shown(log)).name}"
        write_comparison_page(output.page, title, records, introduction=about, setting=setting)
        show(console, f"drew {output.page}")


def _sample(
    log: ClickLog, num_trainers: int, batch_size: int, num_steps: int | None, seed: int, console: Console
) -> Sample:
    from foresee.tools.comparison import take_sample

    global_size, has = num_trainers * batch_size, log.split_sizes.get("train", 0)
    if has < 2 * global_size:
        raise DataError(
            f"{log.folder.place}: its train split has {has:,} samples, too few for two steps of {num_trainers} "
            f"trainers with {batch_size} samples each; lower --batch-size or --trainers"
        )
    stream = log.batches(batch_size=global_size, seed=seed)
    total = min(stream.num_steps, num_steps or stream.num_steps)
    with bar(console, f"reading for {num_trainers}", total) as advance:
        return take_sample(stream, num_trainers, num_steps, advance)


def _records(samples: list[Sample], question: Question, batch_size: int, console: Console) -> list[Record]:
    from foresee.tools.comparison import compare as compared
    from foresee.tools.comparison import num_plans

    with bar(console, "comparing", num_plans(samples, question)) as advance:
        return [record_of(outcome, batch_size) for outcome in compared(samples, question, advance)]


EXPLANATION = (
    "hit rate: rows found in the trainer's own cache; rows and MB: over a wire in a step, all trainers together; "
    "critical: cannot travel while an earlier step computes; stale: reads that miss an update; a bound is on rows "
    "fetched and written, all caches as one"
)


def record_of(outcome: Outcome, batch_size: int) -> dict[str, Value]:
    """One flat record; None where there is no figure."""
    figures = outcome.figures
    setting: dict[str, Value] = {
        "policy": outcome.candidate.name,
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


def _tables(samples: Sequence[Sample], records: Sequence[Record]) -> list[RenderableType]:
    parts: list[RenderableType] = []
    by_workers = {sample.num_workers: sample for sample in samples}
    for trainers, cache in dict.fromkeys((record["trainers"], record["cache"]) for record in records):
        some = [record for record in records if (record["trainers"], record["cache"]) == (trainers, cache)]
        parts += _one_table(by_workers[int(str(trainers))], some)
    return parts


def _one_table(sample: Sample, records: Sequence[Record]) -> list[RenderableType]:
    from foresee.plan.registry import DEFAULT
    from foresee.tools.report.comparison import COLUMNS
    from foresee.tools.report.frame import Frame

    cache_rows = int(str(records[0]["cache_rows"]))
    raised = cache_rows == sample.two_steps_rows
    title = (
        f"{_trainers(sample.num_workers)}, cache of {cache_rows:,} of {sample.num_touched:,} touched rows each"
        f"{' (what two steps need)' if raised else ''}, {sample.num_unique:,.0f} distinct rows a step"
    )
    reasons = list(dict.fromkeys(str(record["why_missing"]) for record in records if record["why_missing"]))
    noted = []
    for record in records:
        if record["why_missing"]:
            mark = f"– [{reasons.index(str(record['why_missing'])) + 1}]"
            record = {**record, COLUMNS[1].key: mark, **dict.fromkeys([column.key for column in COLUMNS[2:]], "")}
        noted.append(record)
    table = Frame(COLUMNS, noted).table(lambda record: "bold" if record["policy"] == DEFAULT.name else None)
    return ["", title, table, *(f"[{number}] {reason}" for number, reason in enumerate(reasons, start=1))]


def _trainers(count: int) -> str:
    return "1 trainer" if count == 1 else f"{count} trainers"
