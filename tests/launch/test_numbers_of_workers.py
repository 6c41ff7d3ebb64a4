"""One, two and three workers learn the same to rounding, whatever the settings: a sum in another order, nothing else.

Recovery and caches are compared byte by byte elsewhere, between runs of equally many workers. An error that all of them
share, such as a norm or a mean over the wrong samples, shows only here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_results import rows_in_folders
from warm_commands import Commands

from foresee.data import Categorical, ClickLog, Columns, Csv, Dense, Label, PrepareOptions, prepare, tiny
from foresee.run.checkpoint import folder_of, read_tensors

BATCH_SIZE = 17  # divides by neither 2 nor 3: workers have unequal shares
NUM_WORKERS = (1, 2, 3)
ROWS, WEIGHTS = "tables.optimizer", "train.optimizer"
SGD: dict[str, Any] = {ROWS: {"name": "sgd", "lr": 0.3}, WEIGHTS: {"name": "sgd", "lr": 0.1}}
ADAM = {"name": "adamw", "lr": 0.01, "weight_decay": 0.1, "options": {"eps": 1e-3}}
WIDE = {"name": "dcn_v2", "dim": {"user": 6, "item": 3, "default": 2}, "options": {"num_cross": 1, "deep": [8]}}
COSINE = {"shape": "cosine", "warmup_steps": 4, "steps": 20}

SETTINGS: dict[str, dict[str, Any]] = {
    "contiguous": {"distributed.placement": "contiguous"},
    "herald": {"distributed.placement": "herald"},
    "location-aware": {},
    "adagrad": {ROWS: {"name": "adagrad", "lr": 0.05, "eps": 1e-3}},
    "rowwise-adagrad": {ROWS: {"name": "rowwise_adagrad", "lr": 0.05, "eps": 1e-3}},
    "lazy-adam": {ROWS: {"name": "lazy_adam", "lr": 0.01, "eps": 1e-3}},
    "adam-with-decay": {WEIGHTS: ADAM},
    "schedule": {"train.schedule": {"name": "CosineAnnealingLR", "options": {"T_max": 20}}},
    "row-schedule": {ROWS: {"name": "sgd", "lr": 0.3, "schedule": COSINE}},
    "widths": {"model": WIDE},
    "clipping": {"train.clip_norm": 0.05},
    "clipped-widths": {"model": WIDE, "train.clip_norm": 0.05},
    "tasks": {"log": "weighted", "tasks": [{"label": "click", "weight": 2.0}, {"label": "rating"}]},
    "sample-weights": {"log": "weighted"},
    "clipped-tasks": {"log": "weighted", "train.clip_norm": 0.2},
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ClickLog]:
    """With bags, some of them empty; and with two labels and weights of samples."""
    folder = tmp_path_factory.mktemp("numbers")
    rng, lines = np.random.default_rng(1), ["user,film,age,click,rating,importance"]
    for _ in range(500):
        user, film = rng.integers(0, 30), rng.integers(0, 40)
        lines.append(f"{user},{film},{user % 5},{int((user + film) % 5 > 2)},{1 + (user + film) % 5},{0.5 + film % 3}")
    (folder / "raw.csv").write_text("\n".join(lines) + "\n")
    columns = Columns(
        labels=(Label(name="click"), Label(name="rating", kind="number")), weight="importance",
        dense=(Dense(name="age"),), categorical=(Categorical(name="user"), Categorical(name="film")),
    )  # fmt: skip
    source = Csv(files=(folder / "raw.csv",), columns=columns)
    weighted = prepare(source, folder / "weighted", PrepareOptions(split="random", valid_share=0.2)).log
    return {"bags": tiny(folder / "bags", seed=5, num_samples=500), "weighted": weighted}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SETTINGS)
def test_more_workers_learn_the_same(commands: Commands, tmp_path: Path, logs: dict[str, ClickLog], name: str) -> None:
    file = tmp_path / "run.yaml"
    given = {"log": "bags", **SGD, **SETTINGS[name]}
    content: dict[str, Any] = {
        "log": str(logs[given.pop("log")].path), "run": "run", "cache": {"rows": 189},
        "model": {"name": "dlrm", "dim": 4, "options": {"bottom": [8], "top": [8]}},
        "train": {"batch_size": BATCH_SIZE, "num_threads": 1}, "tables": {}, "distributed": {},
    }  # fmt: skip
    for key, value in given.items():
        section, _, field = key.partition(".")
        content[section] = {**content[section], field: value} if field else value
    file.write_text(json.dumps(content))  # JSON is YAML
    found = []
    for workers in NUM_WORKERS:
        run = tmp_path / f"run-{workers}"
        code, text = commands.run("train", file, "--set", f"run={run}", "--set", f"distributed.workers={workers}")
        assert code == 0, text
        num_steps = json.loads((run / "_SUCCESS").read_text())["step"]
        rows = np.frombuffer(rows_in_folders(run)["values"], np.float32)
        tensors = read_tensors(folder_of(run / "checkpoints", num_steps) / "model.safetensors")
        found.append((rows, np.concatenate([tensors[it].numpy().ravel() for it in sorted(tensors)])))
    for rows, weights in found[1:]:
        np.testing.assert_allclose(rows, found[0][0], rtol=0, atol=1e-5)
        np.testing.assert_allclose(weights, found[0][1], rtol=0, atol=1e-5)
