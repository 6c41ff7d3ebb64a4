"""Two workers that learn several labels with weights, and clip: as one process does, with figures of whole batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from warm_commands import Commands

from foresee.data import Categorical, ClickLog, Columns, Csv, Dense, Label, PrepareOptions, prepare
from foresee.run.folder import open_run
from foresee.run.serving.export import trained
from foresee.tools.report.run_records import read_run


@pytest.fixture
def log(tmp_path: Path) -> ClickLog:
    rng = np.random.default_rng(1)
    lines = ["user,film,age,click,rating,importance"]
    for _ in range(500):
        user, film = rng.integers(0, 30), rng.integers(0, 40)
        rating = 1 + (user + film) % 5
        lines.append(f"{user},{film},{user % 5},{int(rating > 3)},{rating},{0.5 + film % 3}")
    (tmp_path / "raw.csv").write_text("\n".join(lines) + "\n")
    columns = Columns(
        labels=(Label(name="click"), Label(name="rating", kind="number")), weight="importance",
        dense=(Dense(name="age"),), categorical=(Categorical(name="user"), Categorical(name="film")),
    )  # fmt: skip
    source = Csv(files=(tmp_path / "raw.csv",), columns=columns)
    return prepare(source, tmp_path / "log", PrepareOptions(split="random", valid_share=0.2)).log


def _lines(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def test_two_workers_learn_what_one_does(commands: Commands, tmp_path: Path, log: ClickLog) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "log: log\nrun: one\ncache: {rows: 60}\n"
        "model: {name: dlrm, dim: 4, options: {bottom: [8], top: [8]}}\n"
        "tables: {optimizer: {name: sgd, lr: 0.3}}\n"
        "train: {batch_size: 17, num_threads: 1, log_every_steps: 5, clip_norm: 0.4, optimizer: {name: sgd, lr: 0.1}}\n"
    )
    placed = ["distributed.workers=2", "distributed.servers=1", "distributed.placement=contiguous"]
    many = [f"run={tmp_path / 'two'}", *placed]
    for more in ([], [part for it in many for part in ("--set", it)]):
        code, text = commands.run("train", str(file), *more)
        assert code == 0, text
    rows = []
    for name in ("one", "two"):
        config = open_run(tmp_path / name)
        with trained(config, log) as tables:
            rows.append(np.concatenate([tables.values(table.name) for table in log.tables]))
    np.testing.assert_allclose(rows[1], rows[0], rtol=1e-3, atol=1e-5)

    one, two = (_lines(tmp_path / name, "train") for name in ("one", "two"))
    assert [line["step"] for line in one] == [line["step"] for line in two]
    for alone, together in zip(one, two, strict=True):  # over the samples of both, not over those of worker 0
        assert together["click.auc"] == pytest.approx(alone["click.auc"], abs=1e-3)
        assert together["rating.rmse"] == pytest.approx(alone["rating.rmse"], rel=1e-3)
        assert together["samples"] == alone["samples"]
    assert _lines(tmp_path / "two", "valid")[-1]["rating.rmse"] == pytest.approx(
        _lines(tmp_path / "one", "valid")[-1]["rating.rmse"], rel=1e-3
    )
    points = [point for worker in read_run(tmp_path / "two").workers for point in worker.points]
    assert two[-1]["rows_fetched"] == sum(point.fetched for point in points)
    assert len({worker.worker for worker in read_run(tmp_path / "two").workers}) == 2
