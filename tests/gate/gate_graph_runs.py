"""The runs of the gate that train over graphs, from disk, from memory and from servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import collected
import forked
import yaml
from collected import Parts
from gate_runs import run


def write_graph_run(folder: Path, data: Path, graph: str = "links", **sections: Any) -> None:
    """A run file of a graph in a folder. Rows or partitions are given: left out, they follow from a measurement."""
    content: dict[str, Any] = {
        "graph": str(data / graph), "run": "run", "model": {"dim": 8}, "negatives": {"num_chunks": 2, "num_nodes": 10},
        "cache": {"unit": "rows"},
        "train": {"batch_size": 64, "epochs": 2, "num_threads": 1, "log_every_steps": 1},
        "report": {"timeline_steps": 0, "series_points": 0},
    }  # fmt: skip
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section} if isinstance(section, dict) else section
    (folder / "run.yaml").write_text(yaml.safe_dump(content))


def graph_trained(folder: Path, *stops: int, rows: str | None = "run/tables") -> Parts:
    """Train over a graph, stopping and resuming at these steps, and collect everything."""
    resumed: tuple[str, ...] = ()
    for stop in stops:
        forked.foresee("graph", "train", "run.yaml", *resumed, "--stop-after", stop, folder=folder)
        resumed = ("--resume",)
    forked.foresee("graph", "train", "run.yaml", *resumed, folder=folder)
    parts: Parts = {} if rows is None else collected.tables(folder / rows)
    figures = json.loads(forked.foresee("graph", "evaluate", "run", "--split", "test", "--json", folder=folder))
    figures = {key: value for key, value in figures.items() if key not in ("run", "graph", *collected.TIMES)}
    return {**parts, **collected.checkpoint(folder / "run"), **collected.metrics(folder / "run"), "evaluated": figures}


@run("graph: distmult, partitions of a ring on disk, resumed, exported")
def _(folder: Path, data: Path) -> Parts:
    write_graph_run(folder, data, order={"partitions": 7, "buffer": 2}, cache={"unit": "partitions"})
    parts = graph_trained(folder, 8)
    forked.foresee("graph", "export", "run", "--out", "vectors", "--format", "npy", folder=folder)
    exported = collected.files(folder / "vectors", leave_out=("README.md",))
    return {**parts, "run file": collected.run_file(folder / "run"), "export": exported}


@run("graph: complex, all in one state, rows, logistic loss, in flight")
def _(folder: Path, data: Path) -> Parts:
    write_graph_run(
        folder, data, model={"decoder": "complex", "loss": "logistic", "n3": 0.001},
        train={"staleness_bound": 3},
    )  # fmt: skip
    return graph_trained(folder, 7)


@run("graph: transe on two servers, bfloat16")
def _(folder: Path, data: Path) -> Parts:
    tables = {"dtype": "bfloat16"}
    write_graph_run(folder, data, model={"decoder": "transe", "loss": "margin"}, tables=tables, order={"buffer": 3})
    forked.foresee("graph", "layout", "run.yaml", folder=folder)
    serve = ("serve", "--layout", "layout.json", "--num-shards", 2)
    one = forked.serving(*serve, "--folder", "rows/0", "--shard", 0, "--port-file", "port0", folder=folder)
    two = forked.serving(*serve, "--folder", "rows/1", "--shard", 1, "--port-file", "port1", folder=folder)
    with one, two:
        for name in ("port0", "port1"):
            forked.wait_for(folder / name)
        ports = [(folder / name).read_text().strip() for name in ("port0", "port1")]
        servers = ",".join(f"grpc://127.0.0.1:{port}" for port in ports)
        write_graph_run(
            folder, data, model={"decoder": "transe", "loss": "margin"}, tables={**tables, "store": servers},
            order={"buffer": 3},
        )  # fmt: skip
        parts = graph_trained(folder, rows=None)
    forked.foresee("fold", "rows/0", "rows/1", folder=folder)
    return {**parts, **collected.tables(folder / "rows")}


@run("graph: graph_sage over features, classes of nodes")
def _(folder: Path, data: Path) -> Parts:
    model = {
        "task": "nodes",
        "encoder": "graph_sage",
        "inputs": "features",
        "fanouts": [4, 3],
        "encoder_options": {"hidden": [8]},
    }
    write_graph_run(folder, data, "nodes", model=model, train={"batch_size": 16})
    return graph_trained(folder, rows=None)


@run("graph: gat over embeddings on disk, neighbours in the buffer")
def _(folder: Path, data: Path) -> Parts:
    model = {"task": "nodes", "encoder": "gat", "fanouts": [4], "neighbours": "buffer", "encoder_options": {"heads": 2}}
    write_graph_run(folder, data, "nodes", model=model, train={"batch_size": 16}, order={"partitions": 5, "buffer": 3})
    return graph_trained(folder, 5)
