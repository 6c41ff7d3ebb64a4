"""`foresee demo` and `foresee graph demo`: synthetic data, a model trained with tables on disk, and what came of it.

Labels and edges come from a planted model, so the best figures that can be reached are known and stand beside ours.
The data is kept for the next time, and the run file is there to look at and change.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from foresee.errors import DataError
from foresee.run.config_file import load_run
from foresee.tools.cli.options import invocation
from foresee.tools.cli.terminal import show, terminal, terminal_progress

if TYPE_CHECKING:
    from foresee.data.click_log import ClickLog
    from foresee.graph.folder import GraphFolder
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


GRAPH_RUN_FILE = """\
graph: graph                # made by `foresee graph synthetic`, or by `foresee graph prepare` from your edges
run: run                    # tables, checkpoints, metrics.jsonl
model: {{decoder: distmult, dim: 32}}
negatives: {{num_chunks: 10, num_nodes: 200}}
order: {{name: ring, buffer: 8}}  # of {partitions} partitions; only another order changes the result
tables: {{store: disk}}     # or memory
train: {{batch_size: 1000, epochs: {epochs}}}
"""
PARTITIONS = 29
"""2 m (c - 1) + 1 with a buffer of 8: the ring then reads least."""


def graph_demo(
    folder: Path, console: Console, *, num_nodes: int, num_edges: int, epochs: int
) -> tuple[Outcome, Outcome]:
    """Make the graph, train it twice and show both; return the outcomes from disk and in memory.

    Both runs have the same order of edges and the same draws, so they end with the same bytes.
    """
    from foresee.graph.config import GraphConfig
    from foresee.graph.task import train
    from foresee.run.config_file import load

    graph = _graph(folder / "graph", num_nodes, num_edges, console)
    run_file = folder / "run.yaml"
    if not run_file.exists():
        run_file.write_text(GRAPH_RUN_FILE.format(partitions=PARTITIONS, epochs=epochs), "utf-8")
    console.print(f"\n[bold]2. Train from disk[/], as {run_file} has it", highlight=False)
    from_disk = train(load(GraphConfig, run_file), replace=True, console=console)
    if not from_disk.finished:
        return from_disk, from_disk
    console.print("\n[bold]3. Train the same in memory[/]", highlight=False)
    elsewhere = [f"run={folder / 'run-in-memory'}", "tables.store=memory", "cache.share=1.0"]
    in_memory = train(load(GraphConfig, run_file, elsewhere), replace=True, console=console)
    if in_memory.finished:
        console.print("\n[bold]4. Result[/]")
        show(console, _graph_result(graph, from_disk, in_memory))
    return from_disk, in_memory


def _graph(path: Path, num_nodes: int, num_edges: int, console: Console) -> GraphFolder:
    from foresee.graph.folder import GraphFolder
    from foresee.graph.options import GraphOptions
    from foresee.graph.synthetic import Synthetic, synthetic_graph

    try:
        graph = GraphFolder.open(path)
        if graph.num_nodes == num_nodes and sum(graph.num_edges.values()) == num_edges:
            console.print(f"[bold]1. Graph[/] {path} is there already", highlight=False)
            return graph
    except DataError:
        pass
    console.print(f"[bold]1. Make a graph[/] of {num_nodes:,} nodes and {num_edges:,} edges", highlight=False)
    source = Synthetic(num_nodes=num_nodes, num_edges=num_edges, num_relations=10, communities=20)
    options = GraphOptions(partitions=PARTITIONS, valid_share=0.02, test_share=0.02, replace=path.exists())
    with terminal_progress(console) as progress:
        return synthetic_graph(source, path, options, progress).graph


def _graph_result(graph: GraphFolder, from_disk: Outcome, in_memory: Outcome) -> Table:
    table = Table("", "from disk", "in memory")
    figures: list[tuple[str, Any, Any]] = [
        ("valid MRR", from_disk.valid.mrr, in_memory.valid.mrr),
        ("valid Hits@10", from_disk.valid.hits[10], in_memory.valid.hits[10]),
    ]
    for name, one, other in figures:
        table.add_row(name, f"{one:.6f}", f"{other:.6f}{'  equal' if one == other else '  NOT EQUAL'}")
    reads = [f"{it.counters.num_fetched / graph.num_nodes:.2f} × the table" for it in (from_disk, in_memory)]
    table.add_row("rows read", *reads)
    table.add_row("seconds", f"{from_disk.seconds:.0f}", f"{in_memory.seconds:.0f}")
    best = graph.best.get("valid_mrr_filtered")
    if best is not None:
        table.add_row("MRR that nobody can beat", f"{best:.6f}", "")
    return table
