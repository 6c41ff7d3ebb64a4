"""What values of two bytes cost in accuracy: AUC with `tables.dtype` bfloat16 and float16 less that of float32.

Two logs and their models: the log and the run of `foresee demo` (DLRM, row-wise Adagrad), and MovieLens-100k (NCF,
Adagrad, user and film alone; a rating of 4 or 5 is positive) from $FORESEE_DATA or ../shared/data. For each seed (of
initial values, of the dense weights and of the order of samples) all sides train the same batches from the same float32
initial values, rounded; AUC is that of the whole held-out split after the last step. Nothing is timed.

The default trains three seeds on 200,000 samples of the demo and one epoch of MovieLens, float32 against bfloat16 with
stochastic rounding. `--full` has a million samples and four epochs, and all dtypes and roundings. The last line is one
JSON object: `auc_difference_demo` and `auc_difference_movielens` (bfloat16, stochastic, mean over seeds), the least of
any seed, and for each side its mean AUC and difference.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console

from accuracy import DATA, SUBJECTS
from foresee.data import ClickLog, synthetic
from foresee.run.config import RunConfig
from foresee.run.session import train

FLOAT32, BFLOAT16 = ("float32", "stochastic"), ("bfloat16", "stochastic")
ALL_SIDES = (FLOAT32, BFLOAT16, ("bfloat16", "nearest"), ("float16", "stochastic"), ("float16", "nearest"))
RUNS: dict[str, dict[str, Any]] = {
    "demo": {
        "model": {"name": "dlrm", "dim": 16, "options": {"bottom": [64], "top": [128, 64]}},
        "tables": {"optimizer": {"name": "rowwise_adagrad", "lr": 0.5, "eps": 0.003}, "init_scale": 0.02},
        "train": {"batch_size": 2048, "optimizer": {"name": "adam", "lr": 0.002}},
    },
    "movielens": {
        "model": {"name": "ncf", "dim": 16, "options": {"deep": [32, 16]}},
        "tables": {"optimizer": {"name": "adagrad", "lr": 0.05}, "init_scale": 0.05},
        "train": {"batch_size": 256, "optimizer": {"name": "adam", "lr": 0.002}},
    },
}
Side = tuple[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--full", action="store_true", help="a million samples, four epochs, all dtypes and roundings")
    parser.add_argument("--seeds", type=int, default=3, help="so many seeds")
    parser.add_argument("--logs", nargs="+", choices=RUNS, default=list(RUNS), help="only these logs")
    options = parser.parse_args()
    figures: dict[str, Any] = {"num_seeds": options.seeds}
    with tempfile.TemporaryDirectory(prefix="foresee-half-") as folder:
        for name in options.logs:
            if name == "movielens" and not (DATA / "movielens" / "ml-100k.inter").exists():
                print(f"there is no MovieLens in {DATA}: left out", file=sys.stderr)
                continue
            figures |= differences(name, Path(folder), options)
    print(json.dumps(figures))


def differences(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Trains all sides on one log, prints a line for each, returns the figures."""
    log = log_of(name, folder / f"log-{name}", full=options.full)
    sides = ALL_SIDES if options.full else (FLOAT32, BFLOAT16)
    aucs: dict[Side, list[float]] = {side: [] for side in sides}
    for seed in range(options.seeds):
        for side in sides:
            aucs[side].append(auc_of(name, log, folder / "run", side, seed, epochs=4 if options.full else 1))
    found: dict[str, Any] = {}
    for side in sides:
        less = [auc - exact for auc, exact in zip(aucs[side], aucs[FLOAT32], strict=True)]
        auc, mean = statistics.mean(aucs[side]), statistics.mean(less)
        print(f"{name} {' '.join(side)}: AUC {auc:.5f}, difference {mean:+.5f} "
              f"(seeds {min(less):+.5f} to {max(less):+.5f})", flush=True)  # fmt: skip
        found["_".join(side)] = {"auc": round(auc, 6), "difference": round(mean, 6)}
        if side == BFLOAT16:
            figures = {f"auc_difference_{name}": round(mean, 6),
                       f"auc_difference_{name}_least": round(min(less), 6)}  # fmt: skip
    return {**figures, name: found}


def log_of(name: str, folder: Path, *, full: bool) -> ClickLog:
    if name == "movielens":
        return SUBJECTS["movielens"].prepare(folder)
    return synthetic(folder, num_samples=1_000_000 if full else 200_000, seed=0, table_scale=0.01)


def auc_of(name: str, log: ClickLog, folder: Path, side: Side, seed: int, *, epochs: int) -> float:
    """Of the whole held-out split, after the last step."""
    run = RUNS[name]
    dtype, rounding = side
    config = RunConfig.model_validate({
        "log": log.path, "run": folder, "model": run["model"], "cache": {"share": 1.0},
        "tables": {**run["tables"], "store": "memory", "seed": seed, "dtype": dtype, "rounding": rounding},
        "train": {**run["train"], "seed": seed, "epochs": epochs if name == "movielens" else 1, "num_threads": 1},
    })  # fmt: skip
    outcome = train(config, replace=True, console=Console(file=io.StringIO()))
    auc = outcome.valid.auc
    if auc is None:
        sys.exit(f"{name}: the held-out split has labels of one kind only")
    return float(auc)


if __name__ == "__main__":
    main()
