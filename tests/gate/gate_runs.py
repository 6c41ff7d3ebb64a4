"""The runs of the gate: each trains something small in another way, and says what it left as digests by part.

Only the command line and the public API are called. A run is a function of (folder, data): the folder is its own, the
data are the logs and graphs that `prepare` made.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import collected
import forked
import numpy as np
import torch
import yaml
from collected import Parts
from raw_data import numbers, write_clicks, write_edges

import foresee

Run = Callable[[Path, Path], Parts]
RUNS: dict[str, Run] = {}
SMALL = {"bottom": [8], "top": [8]}


def run(name: str) -> Callable[[Run], Run]:
    """Add a run by its name."""

    def added(function: Run) -> Run:
        assert name not in RUNS
        RUNS[name] = function
        return function

    return added


# Data ----------------------------------------------------------------------------------------------------------------


def prepare(data: Path) -> Parts:
    """Make the logs and graphs that runs share. Returns their digests."""
    write_clicks(data / "clicks.csv")
    write_edges(data / "edges.tsv")
    categorical = [word for name in ("user", "film", "tags:mean:|", "country") for word in ("--categorical", name)]
    columns = (*categorical, "--dense", "age:standard", "--dense", "price:log1p:empty=0")
    prepared = ("prepare", "csv", "clicks.csv", *columns, "--split", "order")
    forked.foresee(*prepared, "--out", "clicks", "--label", "click", folder=data)
    labels = ("--label", "click", "--label", "rating:number", "--label", "device:classes=A|B|C", "--weight", "weight")
    forked.foresee(*prepared, "--out", "labels", *labels, folder=data)
    forked.foresee("graph", "prepare", "edges.tsv", "--out", "links", "--partitions", 7, folder=data)
    nodes = ("--num-nodes", 150, "--num-edges", 900, "--communities", 4, "--num-features", 6, "--labels")
    forked.foresee("graph", "synthetic", "--out", "nodes", *nodes, "--partitions", 5, folder=data)
    logs = {name: collected.files(data / name, leave_out=("bad-lines.txt",)) for name in ("clicks", "labels")}
    return {**logs, **{name: collected.files(data / name) for name in ("links", "nodes")}}


# Click logs, trained by commands -------------------------------------------------------------------------------------


def write_run(folder: Path, data: Path, log: str = "clicks", **sections: Any) -> None:
    """A run file in a folder; what the sections say takes the place of the defaults."""
    content: dict[str, Any] = {
        "log": str(data / log), "run": "run", "model": {"name": "dlrm", "dim": 4, "options": SMALL},
        "cache": {"rows": 140},
        "train": {"batch_size": 32, "num_threads": 1, "log_every_steps": 1, "evaluate_every_steps": 20},
        "report": {"timeline_steps": 0, "series_points": 0},
    }  # fmt: skip
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section} if isinstance(section, dict) else section
    (folder / "run.yaml").write_text(yaml.safe_dump(content))


def evaluated(folder: Path, *options: str) -> Any:
    """What `foresee evaluate --json` prints."""
    figures = json.loads(forked.foresee("evaluate", "run", "--split", "train", "--json", *options, folder=folder))
    return {key: value for key, value in figures.items() if key not in ("run", "log", *collected.TIMES)}


def trained(folder: Path, *stops: int, counts: bool = True) -> Parts:
    """Train, stopping and resuming at these steps, and collect everything."""
    resumed: tuple[str, ...] = ()
    for stop in stops:
        forked.foresee("train", "run.yaml", *resumed, "--stop-after", stop, folder=folder)
        resumed = ("--resume",)
    forked.foresee("train", "run.yaml", *resumed, folder=folder)
    forked.foresee("fold", "run", folder=folder)
    return {**collected.run(folder / "run", counts=counts), "evaluated": evaluated(folder)}


@run("dlrm, disk, rowwise adagrad, exported and scored")
def _(folder: Path, data: Path) -> Parts:
    write_run(folder, data)
    parts = trained(folder)
    forked.foresee("export", "run", "--out", "export", folder=folder)
    parts["export"] = collected.files(folder / "export", leave_out=("README.md", "export.json"))
    parts["export.json"] = collected.of_json(json.loads((folder / "export" / "export.json").read_text()))
    forked.foresee("score", "export", data / "clicks.csv", "--out", "scores.csv", folder=folder)
    parts["run file"] = collected.run_file(folder / "run")
    parts["scores"] = collected.digest((folder / "scores.csv").read_bytes())
    return parts


@run("deepfm, disk, adagrad, widths, clipped, resumed twice")
def _(folder: Path, data: Path) -> Parts:
    write_run(
        folder, data,
        model={"name": "deepfm", "dim": {"user": 6, "default": 3}, "options": {"deep": [8], "project": 4}},
        tables={"optimizer": {"name": "adagrad", "lr": 0.1}},
        train={"clip_norm": 0.05, "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.01}, "epochs": 2},
    )  # fmt: skip
    return trained(folder, 11, 50)


@run("dcn_v2, disk, bfloat16 stochastic, lazy adam, lru, fixed window")
def _(folder: Path, data: Path) -> Parts:
    write_run(
        folder, data, model={"name": "dcn_v2", "dim": 5, "options": {}}, cache={"planner": "lru"},
        tables={"dtype": "bfloat16", "optimizer": {"name": "lazy_adam", "lr": 0.02, "weight_decay": 0.001}},
    )  # fmt: skip
    return trained(folder)


@run("wide_and_deep, disk, float16 nearest, sgd with a schedule, no cache")
def _(folder: Path, data: Path) -> Parts:
    schedule = {"shape": "cosine", "warmup_steps": 4, "steps": 30, "floor": 0.01}
    optimizer = {"name": "sgd", "lr": 0.5, "schedule": schedule}
    write_run(
        folder, data, model={"name": "wide_and_deep", "dim": 4, "options": {}}, cache={"planner": "none"},
        tables={"dtype": "float16", "rounding": "nearest", "optimizer": optimizer},
        train={"schedule": {"name": "CosineAnnealingLR", "options": {"T_max": 40}}},
    )  # fmt: skip
    return trained(folder, 17)


@run("three tasks, weights, the best by rmse")
def _(folder: Path, data: Path) -> Parts:
    tasks = [
        {"label": "click"},
        {"label": "rating", "loss": "huber", "weight": 0.5},
        {"label": "device", "weight": 0.2},
    ]
    write_run(
        folder, data, "labels", tasks=tasks, cache={"planner": "belady"},
        train={"best": {"metric": "rating.rmse"}, "evaluate_every_steps": 10},
    )  # fmt: skip
    return {**trained(folder, 21), "best": evaluated(folder, "--best")}


@run("ncf, bf16 products, ranking by user, saved plan")
def _(folder: Path, data: Path) -> Parts:
    write_run(
        folder, data, model={"name": "ncf", "dim": 4, "options": {}},
        train={"precision": "bf16", "ranking": {"group": "user", "at": [2, 5]}},
    )  # fmt: skip
    forked.foresee("plan", "run.yaml", "--out", "plan.arrow", folder=folder)
    forked.foresee("train", "run.yaml", "--plan", "plan.arrow", folder=folder)
    found = {**collected.run(folder / "run"), "evaluated": evaluated(folder, "--group", "film", "--at", "3")}
    return {**found, "plan": collected.plan(folder / "plan.arrow")}


# Several workers -----------------------------------------------------------------------------------------------------


@run("2 workers, 2 servers, contiguous")
def _(folder: Path, data: Path) -> Parts:
    write_run(folder, data, distributed={"workers": 2, "servers": 2, "placement": "contiguous"})
    return trained(folder, counts=False)


@run("2 workers, 1 server, location aware, bfloat16, resumed")
def _(folder: Path, data: Path) -> Parts:
    write_run(
        folder, data, distributed={"workers": 2, "placement": "location_aware"}, tables={"dtype": "bfloat16"},
        cache={"rows": 110},
    )  # fmt: skip
    return trained(folder, 19, counts=False)


@run("2 workers, 2 servers, herald, widths, lazy adam, clipped, saved plan")
def _(folder: Path, data: Path) -> Parts:
    write_run(
        folder, data, distributed={"workers": 2, "servers": 2, "placement": "herald"}, train={"clip_norm": 0.1},
        model={"name": "dcn_v2", "dim": {"film": 3, "default": 5}, "options": {}},
        tables={"optimizer": {"name": "lazy_adam", "lr": 0.02}},
    )  # fmt: skip
    forked.foresee("plan", "run.yaml", "--out", "plan", folder=folder)
    forked.foresee("train", "run.yaml", "--plan", "plan", folder=folder)
    forked.foresee("fold", "run", folder=folder)
    plans = {path.name: collected.plan(path) for path in sorted((folder / "plan").glob("*.arrow"))}
    return {**collected.run(folder / "run", counts=False), "plans": collected.of_json(plans)}


# Loops of one's own --------------------------------------------------------------------------------------------------


def in_memory(tables: foresee.Tables) -> Parts:
    """Rows of tables of one width, by the store's public contract."""
    import typing

    rows_type = typing.get_type_hints(foresee.Store.read)["out"]
    rows = rows_type.empty(tables.layout.num_rows, tables.layout)
    tables.store.read(np.arange(tables.layout.num_rows, dtype=np.int64), rows)
    return {name: collected.digest(getattr(rows, name).tobytes()) for name in ("values", "state", "versions")}


def weights(model: torch.nn.Module) -> str:
    """Digest of the dense weights."""
    return collected.digest(*(it.detach().numpy().tobytes() for it in model.state_dict().values()))


def in_process(function: Callable[[Path, Path], Parts], folder: Path, data: Path) -> Parts:
    """The result of a function in a process of its own."""
    found = folder / "found.json"
    forked.call(lambda: found.write_text(json.dumps(function(folder, data))), folder)
    content: Parts = json.loads(found.read_text())
    return content


@run("own loop over a log, memory, gradients of rows clipped")
def _(folder: Path, data: Path) -> Parts:
    return in_process(_log_loop, folder, data)


def _log_loop(folder: Path, data: Path) -> Parts:
    log = foresee.ClickLog.open(data / "clicks")
    tables = foresee.Tables.in_memory(log, dim=4, optimizer=foresee.SGD(lr=0.3))
    torch.manual_seed(1)
    model = foresee.models.DLRM(log, dim=4, bottom=(8,), top=(8,))
    sgd, bce = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss()
    losses, norms = [], []
    for step in foresee.steps(log, tables, batch_size=40, cache_rows=150, epochs=2):
        loss = bce(model(step.dense, step.embeddings), step.labels)
        loss.backward()
        norms.append(float(step.clip_grad_norm(model.parameters(), max_norm=0.1)))
        sgd.step()
        sgd.zero_grad()
        step.update()
        losses.append(loss.item())
    return {
        **in_memory(tables),
        "dense": weights(model),
        "losses": collected.of_json([losses, norms]),
        "last loss": losses[-1],
    }


def sequences(films: int = 90, steps: int = 24, samples: int = 32) -> Iterator[tuple[Any, Any, Any]]:
    """Batches of (dense, ids by feature, labels): a candidate, and up to six films before it."""
    uniform = numbers(5)
    for _ in range(steps):
        candidate = np.array([int(next(uniform) ** 2 * films) for _ in range(samples)])
        lengths = [int(next(uniform) * 6) + 1 for _ in range(samples)]
        history = (np.array([int(next(uniform) * films) for _ in range(sum(lengths))]), np.cumsum([0, *lengths[:-1]]))
        labels = np.array([float(next(uniform) < 0.4) for _ in range(samples)], np.float32)
        yield np.zeros((samples, 0), np.float32), {"candidate": candidate, "watched": history}, labels


@run("own batches, sequences with DIN, disk, left and resumed from a checkpoint")
def _(folder: Path, data: Path) -> Parts:
    return in_process(_sequence_loop, folder, data)


def _sequence_loop(folder: Path, data: Path) -> Parts:
    config = foresee.EmbeddingBagConfig(
        name="films", num_embeddings=90, embedding_dim=4, feature_names=["candidate", "watched"], pooling="none"
    )
    bags = foresee.EmbeddingBags([config])
    losses: list[float] = []
    for stop in (9, None):
        torch.manual_seed(1 if stop else 2)
        model = foresee.models.DIN(4)
        adam, bce = torch.optim.Adam(model.parameters(), lr=0.01), torch.nn.BCEWithLogitsLoss()
        with foresee.Tables.on_disk(folder / "tables", bags, dim=4, optimizer=foresee.Adagrad(lr=0.1)) as tables:
            if stop is None:
                foresee.checkpoint.load(folder / "checkpoints", tables.store.committed_step, model, adam)
            source = foresee.Batches(bags, lambda epoch: sequences(), read_ahead_steps=8)
            steps = foresee.steps(source, tables, cache_rows=90)
            for step in steps:
                films = bags.keyed(step)
                watched = films["watched"]
                loss = bce(model(films["candidate"].values(), watched.values(), watched.lengths()), step.labels)
                loss.backward()
                adam.step()
                adam.zero_grad()
                step.update()
                losses.append(loss.item())
                if step.index + 1 == stop:
                    foresee.checkpoint.save(folder / "checkpoints", stop, model, adam)
                    break
            found = in_memory(tables)
    return {**found, "dense": weights(model), "losses": collected.of_json(losses), "num losses": len(losses)}


@run("two trainers of an own loop, rows in memory of trainer 0")
def _(folder: Path, data: Path) -> Parts:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = []
    for rank in range(2):
        environment = {**meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        started.append(forked.fork(lambda: _trainer(folder, data), folder / f"trainer-{rank}.txt", environment))
    codes = [forked.wait(process) for process in started]
    if any(codes):
        texts = [(folder / f"trainer-{rank}.txt").read_text()[-2000:] for rank in range(2)]
        raise forked.FailedError(f"trainers ended with {codes}:\n" + "\n".join(texts))
    found: Parts = json.loads((folder / "found.json").read_text())
    return found


def _trainer(folder: Path, data: Path) -> None:
    log = foresee.ClickLog.open(data / "clicks")
    torch.manual_seed(1)
    model = foresee.models.DLRM(log, dim=4, bottom=(8,), top=(8,))
    bce = torch.nn.BCEWithLogitsLoss()
    with foresee.Trainers(None, log, dim=4, optimizer=foresee.RowwiseAdagrad(lr=0.1)) as trainers:
        together = trainers.share(model)
        sgd, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
        for step in trainers.steps(log, cache_rows=120, batch_size=30):
            loss = bce(together(step.dense, step.embeddings), step.labels) * trainers.weight(step)
            loss.backward()
            sgd.step()
            sgd.zero_grad()
            step.update()
            losses.append(loss.item())
        if os.environ["RANK"] == "0":
            values = {it.name: collected.digest(trainers.tables.values(it.name).tobytes()) for it in log.tables}
            found = {"values": collected.of_json(values), "dense": weights(model), "losses": collected.of_json(losses)}
            (folder / "found.json").write_text(json.dumps(found))
