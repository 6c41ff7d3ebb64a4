"""`foresee graph demo`: a knowledge graph trained from disk, then in memory, and both figures side by side: equal.

In: a folder. Out: a synthetic graph whose best reachable score is known (kept for the next time), a run file to look at
and change, and two runs of it: tables on disk with a quarter of them in the buffer, and all in memory. Both have the
same order of edges and the same draws, so they end with the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foresee.errors import DataError
from foresee.graph.config import GraphConfig
from foresee.graph.folder import GraphFolder
from foresee.graph.options import GraphOptions
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.graph.task import train
from foresee.run.config_file import load
from foresee.run.session import Outcome
from foresee.tools.cli.terminal import show, terminal_progress

RUN_FILE = """\
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


def demo(folder: Path, console: Console, *, num_nodes: int, num_edges: int, epochs: int) -> tuple[Outcome, Outcome]:
    """Makes the graph, trains it twice and shows both; the outcomes from disk and in memory."""
    graph = _graph(folder / "graph", num_nodes, num_edges, console)
    run_file = folder / "run.yaml"
    if not run_file.exists():
        run_file.write_text(RUN_FILE.format(partitions=PARTITIONS, epochs=epochs), "utf-8")
    console.print(f"\n[bold]2. Train from disk[/], as {run_file} has it", highlight=False)
    from_disk = train(load(GraphConfig, run_file), replace=True, console=console)
    if not from_disk.finished:
        return from_disk, from_disk
    console.print("\n[bold]3. Train the same in memory[/]", highlight=False)
    elsewhere = [f"run={folder / 'run-in-memory'}", "tables.store=memory", "cache.share=1.0"]
    in_memory = train(load(GraphConfig, run_file, elsewhere), replace=True, console=console)
    if in_memory.finished:
        console.print("\n[bold]4. Result[/]")
        show(console, _result(graph, from_disk, in_memory))
    return from_disk, in_memory


def _graph(path: Path, num_nodes: int, num_edges: int, console: Console) -> GraphFolder:
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


def _result(graph: GraphFolder, from_disk: Outcome, in_memory: Outcome) -> Table:
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
