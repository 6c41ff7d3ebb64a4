"""`foresee compare`: every policy on a person's own log: rows, bytes, staleness, and the step they give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from foresee.cli import scenario
from foresee.cli.bars import bar
from foresee.cli.comparison_table import Record, as_text, introduction, record_of
from foresee.errors import DataError
from foresee.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.data.click_log import ClickLog
    from foresee.engine.comparison import Question, Sample

STEPS = 30
CURVE = "1x,1.5x,2.5x,4x"
"""Cache sizes for a page, where nobody names others."""


def compare(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="A prepared log: a folder that `foresee prepare` wrote.")],
    trainers: Annotated[str, typer.Option(metavar="N,N", help="Numbers of trainers to compare for.")] = "1,8",
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,SIZE",
            help="Slots of each trainer: rows (50000), a share of the rows that the steps touch (0.1), or a multiple "
            f"of what two steps need (2x). Default 0.1; with --page {CURVE}.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples a step of each trainer.")] = 256,
    steps: Annotated[
        str, typer.Option(metavar="NUM|all", help="Compare on so many steps from the start.")
    ] = str(STEPS),
    policies: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Only these policies. Default: all there are.")
    ] = None,
    staleness: Annotated[
        str, typer.Option(metavar="NUM,NUM", help="Updates that HET's replicas may be late by.")
    ] = "10,100",
    dim: Annotated[int, typer.Option(min=1, help="Columns of a row.")] = 64,
    optimizer: Annotated[str, typer.Option(help="Of the rows: its state travels with them.")] = "rowwise_adagrad",
    compute_ms: Annotated[float, typer.Option(help="Forward and backward of one trainer, its rows at hand.")] = 10.0,
    link_mbit: Annotated[float, typer.Option(help="Of every trainer and server, each way.")] = 1000.0,
    latency_us: Annotated[float, typer.Option(min=0, help="One way between two machines.")] = 100.0,
    servers: Annotated[
        int | None, typer.Option(min=1, help="That hold the rows. Default: as many as trainers.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of samples, as in a run.")] = 0,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the figures as CSV.")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw them: one HTML file.")] = None,
) -> None:
    """Every policy on your log, side by side, without training.

    Plans the first steps of the log once for each policy, cache size and number of trainers, and prints the share of
    rows found in the own cache, rows and bytes moved, those on the critical path, stale reads, and the step that a cost
    model predicts for your compute time and links. `belady` is the bound; `lookahead` is Foresee.

    [bold]Examples[/]

      foresee compare data/criteo
      foresee compare data/criteo --trainers 2,4,8 --compute-ms 8 --link-mbit 10000 --page compare.html
      foresee compare data/criteo --policies lookahead,lru,het --cache 50000 --steps all --csv compare.csv
    """
    from foresee.data.click_log import ClickLog
    from foresee.engine.comparison import Question, policies_named

    console, opened, num_steps = terminal(), ClickLog.open(log), scenario.number_of_steps(steps)
    network = {"compute_ms": compute_ms, "link_mbit": link_mbit, "latency_us": latency_us}
    question = Question(
        policies=policies_named(scenario.words(policies or ""), scenario.numbers(staleness, "--staleness", least=0)),
        caches=scenario.cache_sizes(cache or (CURVE if page is not None else "0.1")),
        layout=scenario.row_layout(opened, dim, optimizer),
        speeds=scenario.network_speeds(**network, servers=servers),
    )
    workers = scenario.numbers(trainers, "--trainers")
    samples = [_sample(opened, count, batch_size, num_steps, seed, console) for count in workers]
    records = _records(samples, question, batch_size, console)
    setting = scenario.network_words(**network, servers=servers)
    show(console, *as_text(str(log), samples, records, batch_size, setting))
    if csv is not None:
        from foresee.report.comparison import as_csv

        scenario.write_text(csv, as_csv(records))
        show(console, f"wrote {csv}")
    if page is not None:
        from foresee.report.comparison import write_comparison_page

        about = introduction(str(log), samples, batch_size)
        write_comparison_page(page, f"Policies on {log.name}", records, introduction=about, setting=setting)
        show(console, f"drew {page}")


def _sample(
    log: ClickLog, num_trainers: int, batch_size: int, num_steps: int | None, seed: int, console: Console
) -> Sample:
    from foresee.engine.comparison import take_sample

    global_size, has = num_trainers * batch_size, log.split_sizes.get("train", 0)
    if has < 2 * global_size:
        raise DataError(
            f"{log.path}: its train split has {has:,} samples, too few for two steps of {num_trainers} trainers with "
            f"{batch_size} samples each; lower --batch-size or --trainers"
        )
    stream = log.batches(batch_size=global_size, seed=seed)
    total = min(stream.num_steps, num_steps or stream.num_steps)
    with bar(console, f"reading for {num_trainers}", total) as advance:
        return take_sample(stream, num_trainers, num_steps, advance)


def _records(samples: list[Sample], question: Question, batch_size: int, console: Console) -> list[Record]:
    from foresee.engine.comparison import compare as compared
    from foresee.engine.comparison import num_plans

    with bar(console, "comparing", num_plans(samples, question)) as advance:
        return [record_of(outcome, batch_size) for outcome in compared(samples, question, advance)]
