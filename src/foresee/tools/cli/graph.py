"""`foresee graph`: prepare and the commands that follow it, each a short function that calls one other and shows.

In: files and options. Out: tables and sentences on the terminal, folders where asked for. Options of `prepare` are the
annotated fields of `Tables` and `GraphOptions`. What needs torch imports it when it is invoked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.table import Table

from foresee.graph.folder import DESCRIPTION_FILE, GraphFolder
from foresee.graph.formats import Tables, open_source
from foresee.graph.options import GraphOptions
from foresee.graph.prepare import GraphReport, prepare_graph
from foresee.graph.synthetic import Synthetic, synthetic_graph
from foresee.io.folders import hidden_folder
from foresee.io.units import counted
from foresee.io.urls import place, sent, shown
from foresee.tools.cli import graph_runs
from foresee.tools.cli.options import REQUIRED, options_of, with_parameters
from foresee.tools.cli.terminal import show, terminal, terminal_progress

app = typer.Typer(
    help="Graphs whose nodes outgrow memory: prepare edges, then train, evaluate and ask, all from disk.",
    no_args_is_help=True,
)

PREPARE = r"""Turn edges into a prepared graph: TSV, CSV, Parquet, .npz, a tar archive, or a folder as OGB has them.

    Two columns are head and tail, three head, relation and tail, four a weight more; or name them. Sorted on disk:
    memory does not grow with the number of edges or of names.

        foresee graph prepare FB15k-237.tar.gz --out data/fb15k-237

        foresee graph prepare links.tsv.gz --out data/links --valid-share 0.05 --test-share 0.05 --partitions 16

        foresee graph prepare edges.parquet --out data/paid --head payer --tail payee --weight amount

        foresee graph prepare dataset/ogbn_arxiv --out data/arxiv --train-nodes-first
    """
SYNTHETIC = """Make a graph of any size from a seed: a power law with planted communities, its best score known.

        foresee graph synthetic --out data/demo --num-nodes 1000000 --num-edges 10000000 --num-relations 20
    """

OUT = Annotated[
    str, typer.Option(metavar="FOLDER", help="Folder of the prepared graph; or a URL, as s3://bucket/graph.")
]


def _prepare_command() -> Callable[..., None]:
    """The command, with an option for each field that has a text."""
    own, shared = options_of(Tables), options_of(GraphOptions)
    defaults = {option.name: option.convert(option.default) for option in own}
    files = Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Edges, as files or their URLs. Text may be plain, gzip, bzip2, xz or zstd."
        ),
    ]

    def prepare(**given: Any) -> None:
        settings = {option.name: option.value(given) for option in own}
        settings = {name: value for name, value in settings.items() if value != defaults[name]}
        options = GraphOptions(**{option.name: option.value(given) for option in shared})
        out = place(given["out"])
        with sent(out, marker=DESCRIPTION_FILE, replace=options.replace) as target:
            with hidden_folder(target, "unpacked") as temporary, terminal_progress() as progress:
                source = open_source(tuple(map(place, given["files"])), temporary, settings)
                report = prepare_graph(source, target, options, progress)
            _show(report, shown(out))

    derived = [(option.name, option.annotation, option.default) for option in (*own, *shared)]
    return with_parameters(prepare, [("files", files, REQUIRED), ("out", OUT, REQUIRED), *derived])


def _show(report: GraphReport, out: str) -> None:
    console, graph = terminal(), report.graph
    show(console, f"{out}: {_sizes(graph)}", _table(graph), *report.notes)
    if report.bad_lines_file is not None:
        were = "was" if report.num_bad == 1 else "were"
        name = report.bad_lines_file.name
        show(console, f"{counted(report.num_bad, 'bad line')} {were} set aside in {out}/{name}")


def _sizes(graph: GraphFolder) -> str:
    words = [counted(graph.num_nodes, "node"), counted(sum(graph.num_edges.values()), "edge")]
    words += [counted(graph.num_relations, "relation")] if graph.num_relations else []
    words += [counted(graph.num_features, "feature")] if graph.num_features else []
    words += [f"{graph.num_classes:,} classes"] if graph.num_classes else []
    return "; ".join([*words, counted(graph.num_partitions, "partition")])


def _table(graph: GraphFolder) -> Table:
    table = Table("split")
    for heading in ("edges", "nodes") if graph.num_split_nodes else ("edges",):
        table.add_column(heading, justify="right")
    for name in dict.fromkeys([*graph.num_edges, *graph.num_split_nodes]):
        cells = [f"{graph.num_edges.get(name, 0):,}", f"{graph.num_split_nodes.get(name, 0):,}"]
        table.add_row(name, *cells[: 2 if graph.num_split_nodes else 1])
    return table


def _synthetic_command() -> Callable[..., None]:
    own, shared = options_of(Synthetic), options_of(GraphOptions)

    def synthetic(**given: Any) -> None:
        source = Synthetic(**{option.name: option.value(given) for option in own})
        options = GraphOptions(**{option.name: option.value(given) for option in shared})
        out = place(given["out"])
        with sent(out, marker=DESCRIPTION_FILE, replace=options.replace) as target:
            with terminal_progress() as progress:
                report = synthetic_graph(source, target, options, progress)
            _show(report, shown(out))
        best = ", ".join(f"{name} {value:.4f}" for name, value in report.graph.best.items())
        show(terminal(), f"nobody can do better on average than {best}" if best else "nothing is held out")

    derived = [(option.name, option.annotation, option.default) for option in (*own, *shared)]
    return with_parameters(synthetic, [("out", OUT, REQUIRED), *derived])


app.command("prepare", help=PREPARE, no_args_is_help=True)(_prepare_command())
app.command("synthetic", help=SYNTHETIC)(_synthetic_command())
for _command in graph_runs.COMMANDS:
    app.command()(_command)
