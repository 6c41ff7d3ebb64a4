"""`foresee graph train | plan | layout | verify | evaluate | export | neighbours | report`: one function each.

What needs torch is imported when a command is invoked, so that help stays quick.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from foresee.io import logs
from foresee.io.units import counted, in_megabytes
from foresee.io.urls import place, sent, shown
from foresee.tools.cli.options import Logged, RunPlace, Set
from foresee.tools.cli.terminal import show, terminal

RunFile = Annotated[
    Path, typer.Argument(metavar="RUN.YAML", help="The run: graph, model, order, tables, training. See docs/graphs.md.")
]
Best = Annotated[bool, typer.Option("--best", help="As of the best evaluation instead of the last commit.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def _config(run_file: Path, overrides: list[str] | None) -> Any:
    from foresee.graph.config import GraphConfig
    from foresee.run.config_file import load

    return load(GraphConfig, run_file, overrides or ())


def train(
    run_file: RunFile,
    overrides: Set = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last commit; same bytes at the end.")
    ] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Start anew, over the run that is in the folder.")] = False,
    stop_after: Annotated[
        int | None,
        typer.Option("--stop-after", min=1, metavar="STEPS", help="Stop after so many steps, and keep them."),
    ] = None,
    log_level: Logged = logs.LogLevel.WARNING,
) -> None:
    """Train embeddings of a graph's nodes, or networks over them, from disk as in memory.

    Edges, negatives and neighbours are drawn ahead from seeds, every row is
    planned, and the result is that of memory to the byte; only the order of
    the edges is a choice. Ranks the valid split, keeps the state at intervals,
    at the end, and when you press Ctrl-C.

    [bold]Examples[/]

      foresee graph train run.yaml
      foresee graph train run.yaml --set order.buffer=8 --set train.epochs=20
      foresee graph train run.yaml --resume

    [bold]A run file[/] has at least this; docs/graphs.md explains every key:

      graph: data/fb15k-237   # made by `foresee graph prepare`
      run: runs/first         # tables, checkpoints, metrics.jsonl
    """
    from foresee.graph.task import train as run_training

    logs.configure(log_level, "train")
    outcome = run_training(_config(run_file, overrides), resume=resume, replace=replace, stop_after=stop_after)
    raise typer.Exit(outcome.exit_code)


def plan(
    run_file: RunFile,
    overrides: Set = None,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="NUM", help="Plan so many steps. Left out: the first epoch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """What a run would read from its tables, by rows and by whole partitions, without running it.

    [bold]Examples[/]

      foresee graph plan run.yaml
      foresee graph plan run.yaml --set order.name=beta --set order.buffer=4
    """
    from dataclasses import asdict

    from foresee.tools.forecast import expect

    found = expect(_config(run_file, overrides), steps)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    console = terminal()
    epoch = f"an epoch has {counted(found.steps_of_epoch, 'step')} in {counted(found.num_states, 'state')}"
    reads = f"{epoch} and brings in {counted(found.partition_reads, 'partition')}"
    show(console, found.order, reads, f"the cache has {found.capacity_rows:,} of {found.num_rows:,} rows")
    table = Table("unit", title=f"moved in the first {found.num_steps:,} steps")
    for heading in ("rows read", "of the table", "read", "written back", ""):
        table.add_column(heading, justify="right")
    for unit in found.units:
        cells = ["-"] * 4
        if unit.counters is not None:
            read, written = in_megabytes(unit.bytes_read), in_megabytes(unit.bytes_written)
            cells = [f"{unit.counters.num_fetched:,}", f"{unit.table_share:.2f} ×", read, written]
        table.add_row(unit.name, *cells, "chosen" if unit.chosen else "" if unit.counters else "does not fit")
    show(console, table, found.why)
    if found.num_reads:
        share = f"{found.stale_reads / found.num_reads:.1%} of the rows are read before updates of batches in flight"
        mean = found.missing_updates / max(1, found.stale_reads)
        show(console, f"{share}; such a read misses {mean:.2f} on average, {found.missing_updates_max} at most")


def layout(
    run_file: RunFile,
    overrides: Set = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where it goes.")] = Path("layout.json"),
) -> None:
    """Describe the rows of a graph's nodes for embedding servers: `foresee serve --layout`.

    A run that has them as tables.store then trains with its rows there.

    [bold]Examples[/]

      foresee graph layout run.yaml
      foresee serve --layout layout.json --folder shard-0 --port 4444
      foresee graph train run.yaml --set tables.store=grpc://127.0.0.1:4444
    """
    from foresee.graph import build
    from foresee.store.layout import write_layout

    config = _config(run_file, overrides)
    tables = build.table_layout(config, build.open_graph(config))
    write_layout(out, tables)
    size = in_megabytes(tables.num_rows * tables.row_bytes)
    state = f"{tables.width} values and {tables.state_width} of state ({tables.optimizer})"
    show(terminal(), f"{out}: {tables.num_rows:,} nodes, each of {state}: {size} when every row is written")


def verify(
    run_file: RunFile,
    steps: Annotated[int, typer.Option(min=1, metavar="NUM", help="How many steps to train on each side.")] = 100,
    overrides: Set = None,
) -> None:
    """Train the first steps plainly in memory and as the run has it, and compare every byte.

    The run's own folder is neither read nor written: its tables are made in a temporary folder (TMPDIR says where).

    [bold]Exit codes[/]: 0 no byte differs, 1 some do, 2 something in your input is wrong.
    """
    from foresee.tools.verify import verify_graph as run_verification

    with tempfile.TemporaryDirectory(prefix="foresee-verify-") as folder:
        found = run_verification(_config(run_file, overrides), Path(folder) / "tables", num_steps=steps)
    moved = f"{found.counters.num_fetched:,} rows were read and {found.counters.num_evicted:,} written back"
    show(terminal(), found.in_words(), moved)
    raise typer.Exit(int(not found.equal))


def evaluate(
    run: RunPlace,
    split: Annotated[str, typer.Option(help="Split of the graph: valid, test or train.")] = "valid",
    samples: Annotated[int | None, typer.Option(min=1, metavar="NUM", help="Only so many edges or nodes.")] = None,
    best: Best = False,
    as_json: AsJson = False,
) -> None:
    """MRR and Hits@k of a run's edges, or accuracy and F1 of its nodes, as of its last commit.

    Candidates stream through in blocks: memory does not grow with the graph. Ties count as half unless the run file
    says otherwise (evaluation.ties). Only reads the run.

    [bold]Examples[/]

      foresee graph evaluate runs/first --split test
    """
    from foresee.graph.trained import brought_graph_run, open_trained

    with open_trained(brought_graph_run(place(run)), best=best) as trained:
        found, step = trained.evaluate(split, samples_max=samples), trained.step
    if as_json:
        print(json.dumps({"run": shown(run), "step": step, "split": split, **found.as_dict()}))
        return
    show(terminal(), f"{shown(run)} after step {step:,}, {split} split", found.in_words())


def export(
    run: RunPlace,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Folder to make; or a URL, as s3://bucket/vectors.")],
    form: Annotated[str, typer.Option("--format", help="safetensors, npy or word2vec.")] = "safetensors",
    best: Best = False,
) -> None:
    """Write vectors of all nodes, names and weights as plain files: safetensors, npy or word2vec's text.

    [bold]Examples[/]

      foresee graph export runs/first --out vectors --format npy
    """
    from foresee.graph.queries import export as run_export
    from foresee.graph.trained import brought_graph_run, open_trained

    with (
        open_trained(brought_graph_run(place(run)), best=best) as trained,
        sent(place(out), marker="export.json") as target,
    ):
        found = run_export(trained, target, form)  # type: ignore[arg-type]
    show(
        terminal(),
        f"{shown(out)}: vectors of {found['num_nodes']:,} nodes, {found['width']} wide, after step {found['step']:,}",
    )


def neighbours(
    run: RunPlace,
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of a node, as in the edges that were prepared.")],
    relation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Likely tails for this relation, instead of similar nodes.")
    ] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Likely heads: the node is their tail.")] = False,
    tails: Annotated[bool, typer.Option("--tails", help="Likely tails, where edges have no relations.")] = False,
    known: Annotated[bool, typer.Option("--known", help="Also edges that the graph has already.")] = False,
    by: Annotated[str, typer.Option(help="Similar by cosine or by dot.")] = "cosine",
    index: Annotated[
        bool, typer.Option("--index", help="Similar nodes from an index of FAISS, made once: quick, near, not exact.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, metavar="NUM", help="How many.")] = 10,
    best: Best = False,
    as_json: AsJson = False,
) -> None:
    """The nodes most like a node, or its likely tails or heads, from tables on disk: exact, unless --index is given.

    [bold]Examples[/]

      foresee graph neighbours runs/first /m/02mjmr
      foresee graph neighbours runs/first /m/02mjmr --relation /people/person/profession
    """
    from foresee.errors import UsageError
    from foresee.graph.queries import likely_ends, most_similar, similar_by_index
    from foresee.graph.trained import brought_graph_run, open_trained

    if by not in ("cosine", "dot"):
        raise UsageError(f"--by: found {by!r}; give cosine or dot")
    if index and (relation is not None or heads or tails or best):
        raise UsageError("--index: it is of similar nodes at the last commit; leave it out for tails, heads and --best")
    with open_trained(brought_graph_run(place(run)), best=best) as trained:
        number = trained.node(node)
        if relation is not None or heads or tails:
            kind = 0 if relation is None else trained.relation(relation)
            found = likely_ends(trained, number, kind, top=top, heads=heads, known=known)
        else:
            similar = similar_by_index if index else most_similar
            found = similar(trained, number, top=top, by=by)  # type: ignore[arg-type]
        answers = list(zip(trained.names_of(found.nodes), found.scores.tolist(), strict=True))
    if as_json:
        print(json.dumps([{"node": name, "score": score} for name, score in answers]))
        return
    table = Table("node", "score")
    for name, score in answers:
        table.add_row(name, f"{score:.4f}")
    show(terminal(), table)


def report(
    run: RunPlace,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.HTML", help="Where the page goes. Left out: RUN/report.html.")
    ] = None,
) -> None:
    """Make one HTML page of a run: buckets filling in order, swaps, bytes read, loss and MRR.

    Needs no network, follows a light or dark setting, fits a phone, and prints.

    [bold]Examples[/]

      foresee graph report runs/first
    """
    from foresee.graph.trained import brought_graph_run
    from foresee.io.optional import need
    from foresee.tools.report.graph import open_run, sections_of
    from foresee.tools.report.page import write_page

    need("plotly")
    folder = brought_graph_run(place(run), tables=False)
    found, target = open_run(folder), out or folder / "report.html"
    done = f"{found.records.steps_done:,} of {found.records.num_steps:,} steps, order {found.order}."
    write_page(target, f"{shown(run)} · {found.task}", sections_of(found), done)
    show(terminal(), f"{target}: {target.stat().st_size / 1e6:.1f} MB, open it in a browser")


def demo(
    folder: Annotated[Path, typer.Option(metavar="FOLDER", help="Where graph, run file and runs go.")] = Path(
        "demo-graph"
    ),
    num_nodes: Annotated[int, typer.Option(min=1000, metavar="NUM", help="Nodes of the graph.")] = 20_000,
    num_edges: Annotated[int, typer.Option(min=1000, metavar="NUM", help="Edges of the graph.")] = 250_000,
    epochs: Annotated[int, typer.Option(min=1, metavar="NUM", help="Passes over the edges.")] = 5,
) -> None:
    """Watch a knowledge graph learn from disk, then in memory, and end with the same figures.

    Makes a synthetic graph (kept for the next time), writes a run file for you to look at and change, and trains it
    twice. About two minutes on two cores.
    """
    from foresee.tools.cli.demo import graph_demo

    folder.mkdir(parents=True, exist_ok=True)
    outcomes = graph_demo(folder, terminal(), num_nodes=num_nodes, num_edges=num_edges, epochs=epochs)
    raise typer.Exit(max(it.exit_code for it in outcomes))


COMMANDS = (train, plan, layout, verify, evaluate, export, neighbours, report, demo)
