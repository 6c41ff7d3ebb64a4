"""`foresee demo`: a synthetic click log, a DLRM trained from a plan with its tables on disk, and what came of it.

The log's labels come from a planted model, so the best AUC that anyone could reach is known and stands beside ours.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from foresee.errors import DataError
from foresee.run.config_file import load_run
from foresee.tools.cli.options import invocation
from foresee.tools.cli.terminal import show, terminal

if TYPE_CHECKING:
    from foresee.data.click_log import ClickLog
    from foresee.run.session import Outcome

VALID_SHARE = 0.05
TABLE_SCALE = 0.01
RUN_FILE = """\
# The run of `foresee demo`. Change it and try again: {command} train {folder}/run.yaml --replace
# Paths start at this file's folder; docs/run-file.md explains every key.
log: log
run: run

model:
  name: dlrm              # or deepfm, wide_and_deep, dcn_v2, ncf, or your own as package.module:Class
  dim: 16
  options: {{bottom: [64], top: [128, 64]}}

tables:
  store: disk             # rows live in run/tables; the cache below is all that is in memory
  optimizer: {{name: rowwise_adagrad, lr: 0.5, eps: 0.003}}   # eps keeps rows seen once from jumping
  init_scale: 0.02

cache:
  share: 0.1              # the cache holds a tenth of all rows
  planner: lookahead      # any other gives the same result and moves more rows; foresee plan lists them

train:
  batch_size: 2048
  optimizer: {{name: adam, lr: 0.002}}
  evaluate_every_steps: 100
  evaluate_samples_max: 20000
  num_threads: 1          # one core computes, the others read ahead, plan and move rows
"""


def demo(
    folder: Annotated[Path, typer.Option(help="Where the log, the run file and the run go.")] = Path("demo"),
    samples: Annotated[
        int,
        typer.Option(
            min=20_000, metavar="NUM", help="Samples of the log. More samples come closer to the best reachable AUC."
        ),
    ] = 1_000_000,
) -> None:
    """Watch a DLRM learn from a click log while its tables, larger than the cache, live on disk.

    Makes a synthetic log (kept for the next time), writes a run file for you
    to look at and change, trains, and compares the result with the best AUC
    that anyone could reach. About a minute on two cores.

    More samples come closer to it: the gap was 0.042 with 250,000 samples,
    0.026 with 500,000, 0.019 with 1,000,000 and 0.015 with 2,000,000.

    [bold]Examples[/]

      foresee demo
      foresee demo --samples 2000000
      foresee train demo/run.yaml --replace --set cache.planner=none
    """
    from foresee.run.build import open_tables
    from foresee.run.session import train

    console = terminal()
    log = _log(folder / "log", samples, console)
    run_file = folder / "run.yaml"
    if not run_file.exists():
        run_file.write_text(RUN_FILE.format(folder=folder, command=invocation()), "utf-8")
    console.print(f"\n[bold]2. Train[/] from {run_file}, tables on disk, a plan ahead of every step", highlight=False)
    config = load_run(run_file)
    outcome = train(config, replace=True, console=console)
    if not outcome.finished:
        raise typer.Exit(outcome.exit_code)
    with open_tables(config, log) as tables:
        layout = tables.layout
    console.print("\n[bold]3. Result[/]")
    show(console, _result(log, outcome, layout.row_bytes))
    elsewhere = "" if folder == Path("demo") else f" --folder {folder}"
    _suggest(
        console,
        {
            "The cache changes no bit of this. Train with and without it, and count the bytes that differ:": (
                f"verify {run_file} --steps 50"
            ),
            "See where the time went:": f"report {config.run}",
            "Another planner, same result:": f"train {run_file} --replace --set cache.planner=none",
            "Come closer to the best AUC:": f"demo{elsewhere} --samples {2 * samples}",
        },
    )
    show(console, f"Look around: {run_file}, {config.run}/metrics.jsonl")


def _suggest(console: Console, commands: dict[str, str]) -> None:
    """Commands on lines of their own, to be pasted as they are."""
    started = invocation()
    for words, command in commands.items():
        show(console, words, Text(f"    {started} {command}", "bold"))


def _log(path: Path, samples: int, console: Console) -> ClickLog:
    """The demo's log: the one that is there if it has as many samples, else a new one."""
    from foresee.data.click_log import ClickLog
    from foresee.data.synthetic import synthetic

    try:
        log = ClickLog.open(path)
        if sum(log.split_sizes.values()) == samples and log.best_auc:
            console.print(f"[bold]1. Log[/] {path} is there already, with {samples:,} samples", highlight=False)
            return log
    except DataError:
        pass
    console.print(f"[bold]1. Make a click log[/] of {samples:,} samples in {path}", highlight=False)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("samples", total=samples)
        return synthetic(
            path,
            num_samples=samples,
            table_scale=TABLE_SCALE,
            valid_share=VALID_SHARE,
            replace=True,
            progress=lambda _, done, total: progress.update(task, completed=done, total=total),
        )


def _result(log: ClickLog, outcome: Outcome, row_bytes: int) -> Table:
    assert outcome.valid is not None
    assert outcome.valid.auc is not None
    counters, best, ours = outcome.counters, log.best_auc["valid"], outcome.valid.auc
    moved, without = counters.num_fetched + counters.num_evicted, 2 * counters.num_unique
    table = Table(show_header=False)
    table.add_row("AUC on the valid split", Text(f"{ours:.4f}", "bold"), "how often a click beats a non-click")
    table.add_row("best reachable AUC", f"{best:.4f}", "knowing the model behind the clicks")
    table.add_row("gap", Text(f"{best - ours:.4f}", "bold"), "shrinks with more samples")
    table.add_section()
    table.add_row("rows in the tables", f"{log.num_rows:,}", f"{log.num_rows * row_bytes / 1e6:,.1f} MB on disk")
    table.add_row("rows in the cache", f"{counters.peak_slots:,}", f"{counters.peak_slots / log.num_rows:.0%} of them")
    table.add_row("hit rate", f"{counters.hit_rate:.1%}", "of a step's rows are cached already")
    table.add_row("waited for rows", f"{outcome.wait_share:.1%}", "of the time after the first step")
    table.add_row("first step", f"{outcome.ready_seconds:.0f} s", "compiling, reading ahead, planning")
    table.add_row("rows moved", f"{moved:,}", f"{moved / without:.0%} of the {without:,} without a cache")
    return table
