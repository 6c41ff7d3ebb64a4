"""Every kind of file we read, in small; each is broken in one place and opened as a person would.

A target writes good files once, then for every case puts one broken file in place, opens everything and reads all of
it. It returns normally or raises a ForeseeError; anything else is a failure. Where a checksum protects the content,
what was read without an error must be what was written.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hostile_mutations import Rng, mutate, mutate_json
from rich.console import Console
from torch import nn

from foresee.cluster.formats import read_jobs
from foresee.data import ClickLog, tiny
from foresee.engine.header import make_header
from foresee.engine.planned_step import planned_records
from foresee.plan.format.columns import batch_of
from foresee.plan.format.file import PlanFile, write_plan
from foresee.run import checkpoint
from foresee.run import folder as run_folder
from foresee.run.config import RunConfig
from foresee.run.config_file import load_run, make_run
from foresee.run.serving.export import export
from foresee.run.serving.exported import load_exported
from foresee.run.session import train
from foresee.store.contract import Rows
from foresee.store.disk import DiskStore, open_table
from foresee.store.layout import Layout, Table, read_layout, write_layout
from foresee.store.rpc.security import read_security, read_token
from foresee.store.server.shard import Share, disk_shard
from foresee.tools.fsck import check

Target = Callable[[Rng], None]
Open = Callable[[], Any]
DIRECTORY_SHARE, MISSING_SHARE = 0.02, 0.02
CHECK_SHARE = 0.2
"""How often `foresee check` looks at the damage first: it has to say a sentence about everything."""


class Files:
    """Some files, one of which is broken at a time."""

    def __init__(self, folder: Path, names: list[str], read: Open, *, exact: bool = False, whole: bool = False) -> None:
        """`exact`: whatever is read without an error is what was written. `whole`: reading may change the folder."""
        self._folder, self._names, self._read = folder, names, read
        self._good = {name: (folder / name).read_bytes() for name in names}
        self._everything = {it: it.read_bytes() for it in folder.rglob("*") if it.is_file()} if whole else {}
        self._expected = read() if exact else None

    def __call__(self, rng: Rng) -> None:
        name = self._names[int(rng.integers(len(self._names)))]
        path, good = self._folder / name, self._good[name]
        if self._everything:
            self._restore()
        try:
            self._break(rng, path, good)
            if rng.random() < CHECK_SHARE:
                check(self._folder if self._folder.name != "texts" else path)
            found = self._read()
            if self._expected is not None:
                assert found == self._expected, f"{name} was damaged, and other content was read without an error"
        finally:
            if path.is_dir():
                path.rmdir()
            path.write_bytes(good)

    @staticmethod
    def _break(rng: Rng, path: Path, good: bytes) -> None:
        way = rng.random()
        if way < DIRECTORY_SHARE + MISSING_SHARE:
            path.unlink()
            if way < DIRECTORY_SHARE:
                path.mkdir()
            return
        path.write_bytes(mutate_json(rng, good) if path.suffix == ".json" else mutate(rng, good))

    def _restore(self) -> None:
        """All bytes of the folder as they were, and nothing else."""
        for path in [it for it in self._folder.rglob("*") if it.is_file() and it not in self._everything]:
            path.unlink()
        for path, content in self._everything.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def file_targets(folder: Path) -> dict[str, Target]:
    """All kinds of files, made in a folder that is ours."""
    log = tiny(folder / "log", seed=3, num_samples=120)
    return {**_log_targets(log), **_plan_targets(folder, log), **_table_targets(folder), **_run_targets(folder, log),
            **_text_targets(folder)}  # fmt: skip


def _log_targets(log: ClickLog) -> dict[str, Target]:
    def read() -> str:
        opened = ClickLog.open(log.path)
        opened.check()
        return opened.digest

    def read_batches() -> None:
        for batch in ClickLog.open(log.path).batches(batch_size=20).batches():
            assert batch.num_samples == 20

    def read_vocabularies() -> None:
        opened = ClickLog.open(log.path)
        for table in opened.tables:
            opened.vocabulary(table.name)

    parts = sorted(it.name for it in log.path.glob("*-0*.parquet") if "vocabulary" not in it.name)
    vocabularies = sorted(it.name for it in log.path.glob("vocabulary*"))
    targets: dict[str, Target] = {
        "log parts": Files(log.path, parts, read, exact=True),
        "log batches": Files(log.path, ["log.json", *parts], read_batches),
        "log.json": Files(log.path, ["log.json"], read),
    }
    if vocabularies:
        targets["log vocabularies"] = Files(log.path, vocabularies, read_vocabularies)
    return targets


def _plan_targets(folder: Path, log: ClickLog) -> dict[str, Target]:
    stream = log.batches(batch_size=20)
    header = make_header(stream, planner="lookahead", cache_rows=100)
    write_plan(folder / "plan.arrow", header, planned_records(stream, header))

    def read() -> list[bytes]:
        plan = PlanFile.open(folder / "plan.arrow")
        return [batch_of(record).serialize().to_pybytes() for record in plan.records()]

    return {"plan file": Files(folder, ["plan.arrow"], read, exact=True)}


LAYOUT = Layout(tables=(Table("a", 40), Table("b", 23)), width=3, state_width=1, optimizer="x")


def _table_targets(folder: Path) -> dict[str, Target]:
    quiet, cut_short, shard = folder / "tables", folder / "interrupted", folder / "shard"
    for path in (quiet, cut_short):
        with closing(DiskStore.create(path, LAYOUT)) as store:
            _write_some(store, 1)
            store.commit(1)
            if path == cut_short:
                _write_some(store, 2)
                interrupt_commit(store, 2)
    with closing(disk_shard(shard, LAYOUT, Share(1, 2))) as made:
        made.commit(3)

    def read(path: Path) -> list[bytes]:
        with closing(DiskStore.open(path)) as store:
            found = Rows.empty(63, LAYOUT)
            store.read(np.arange(63), found)
            return [found.values.tobytes(), found.state.tobytes(), found.versions.tobytes()]

    def view() -> None:
        np.array(open_table(quiet, "a"))

    def serve() -> None:
        disk_shard(shard, None, Share(1, 2)).close()

    def names(path: Path) -> list[str]:
        return sorted(str(it.relative_to(path)) for it in path.rglob("*") if it.is_file() and it.name != "lock")

    return {
        "tables": Files(quiet, names(quiet), lambda: read(quiet), whole=True),
        "tables with an interrupted commit": Files(cut_short, names(cut_short), lambda: read(cut_short), whole=True),
        "a log": Files(cut_short, ["log.bin", "chunks-2.bin"], lambda: read(cut_short), whole=True, exact=True),
        "a table as an array": Files(quiet, names(quiet), view),
        "a shard": Files(shard, ["shard.json"], serve, whole=True),
    }


class Interrupted(Exception):  # noqa: N818 - what happened
    """The process would be gone here."""


def interrupt_commit(store: DiskStore, step: int) -> None:
    """Commits, and is gone before the folder is folded."""

    def stop(*arguments: Any) -> None:
        raise Interrupted

    store._journal.fold = stop  # type: ignore[method-assign]
    store.commit(step)


def _write_some(store: DiskStore, version: int) -> None:
    rows = np.arange(version, 60, 3)
    source = Rows.empty(len(rows), LAYOUT)
    source.values[:], source.state[:], source.versions[:] = version, 0.5, version
    store.write(rows, source)


def _run_targets(folder: Path, log: ClickLog) -> dict[str, Target]:
    config = trained_run(log, folder / "run")
    description = export(config.run, folder / "export")
    step = int(description["step"])

    def load() -> list[bytes]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        optimizer = torch.optim.Adam(model.parameters())
        checkpoint.load(folder / "checkpoints", 7, model, optimizer)
        return [it.detach().numpy().tobytes() for it in model.parameters()]

    def score() -> None:
        exported = load_exported(folder / "export")
        exported.score([{**dict.fromkeys([it.name for it in exported.dense], 0.5),
                         **{it.name: [] if it.multi_valued else 0 for it in exported.features}}])  # fmt: skip

    def look() -> None:
        found = run_folder.open_run(config.run)
        run_folder._identity(config.run)
        run = run_folder.RunFolder(found.run)
        for line in run.read_metrics():
            assert isinstance(line, dict)
        run.forget_metrics_after(step)

    _write_checkpoint(folder / "checkpoints")
    kept = folder / "checkpoints"
    of_checkpoint = sorted(str(it.relative_to(kept)) for it in kept.rglob("*") if it.is_file())
    of_export = sorted(it.name for it in (folder / "export").iterdir() if it.name != "README.md")
    return {
        "a checkpoint": Files(kept, of_checkpoint, load, exact=True),
        "an exported model": Files(folder / "export", of_export, score),
        "a run folder": Files(config.run, ["config.yaml", "run.json", "metrics.jsonl"], look, whole=False),
    }


def trained_run(log: ClickLog, run: Path) -> RunConfig:
    config = make_run(
        {
            "log": str(log.path), "run": str(run), "model": {"dim": 4, "options": {"bottom": [4], "top": [4]}},
            "cache": {"rows": 150}, "train": {"batch_size": 24, "num_threads": 1, "log_every_steps": 1},
        },
        where="chaos",
    )  # fmt: skip
    train(config, console=Console(file=io.StringIO()))
    return config


def _write_checkpoint(folder: Path) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    checkpoint.save(folder, 7, model, optimizer)


TRACES = {
    "jobs.csv": "id,gpus,seconds,regimes,arrival,weight,user,done\na,2,600,,5,2,ann,60\nb,1,,11x62.5;10x40,0,,bob,\n",
    "jobs.json": json.dumps({"jobs": [{"id": 1, "gpus": 2, "regimes": [[3, 10.0]]}, {"id": 2, "gpus": 1, "seconds": 6}],
                             }),
    "sacct.txt": "JobID|User|Submit|Start|End|State|AllocTRES\n"
    "1|ann|2024-01-01T00:00:00|2024-01-01T00:01:00|2024-01-01T00:05:00|COMPLETED|gres/gpu=2\n",
    "philly.csv": "timestamp,job_id,num_gpus,duration\n2017-10-01 00:00:00,a,2,60\n",
    "kueue.json": json.dumps({"apiVersion": "v1", "items": [{
        "kind": "Workload", "metadata": {"name": "w", "creationTimestamp": "2024-01-01T00:00:00Z"},
        "spec": {"podSets": [{"count": 1, "template": {"spec": {"containers": [
            {"resources": {"requests": {"nvidia.com/gpu": "2"}}}]}}}]}}]}),
    "shockwave.json": json.dumps({
        "gpus": 4, "round_seconds": 60, "dataset_size": {"LM": 100}, "steps_per_second": {"LM (batch size 20)|1": 3.0},
        "jobs": [{"id": 0, "model": "LM", "batch_size": 20, "gpus": 1, "mode": "static", "arrival": 0, "steps": 10,
                  "exclusive_seconds": 60, "regimes": [[20, 1, 60.0]]}]}),
}  # fmt: skip
TOKEN = "0123456789abcdef0123456789abcdef"


def _text_targets(folder: Path) -> dict[str, Target]:
    texts = folder / "texts"
    texts.mkdir()
    for name, text in TRACES.items():
        (texts / name).write_text(text)
    write_layout(texts / "layout.json", LAYOUT)
    (texts / "run.yaml").write_text("log: log\nrun: run\ncache: {rows: 150}\ntrain: {batch_size: 24, epochs: 1}\n")
    (texts / "token").write_text(TOKEN)
    (texts / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")

    def token() -> None:
        if (texts / "token").is_file():
            (texts / "token").chmod(0o600)
        read_token(texts / "token", {})

    targets: dict[str, Target] = {
        "a layout file": Files(texts, ["layout.json"], lambda: read_layout(texts / "layout.json")),
        "a run file": Files(texts, ["run.yaml"], lambda: load_run(texts / "run.yaml")),
        "a token file": Files(texts, ["token"], token),
        "a key": Files(texts, ["key.pem"], lambda: read_security(texts / "key.pem", texts / "key.pem", None)),
    }
    for name in TRACES:
        targets[f"a cluster trace, {name}"] = Files(texts, [name], lambda name=name: read_jobs(texts / name))  # type: ignore[misc]
    return targets


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
