"""Several trainers: two of them share every batch, two embedding servers keep the rows, all on this machine.

    python examples/several_trainers.py

Runs `foresee train --workers 2 --servers 2`, which starts all parts and takes them down again, and then trains the
same log in one process: the two AUCs agree, as both train the same batches in the same order. docs/cluster.md says how
to start the parts on several machines.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from foresee.data import ClickLog, synthetic
from foresee.run.config_file import load_run
from foresee.run.session import train

RUN_FILE = """\
log: log
run: run
model: {name: dlrm, dim: 8, options: {bottom: [32], top: [64]}}
tables: {store: disk, optimizer: {name: adagrad, lr: 0.05}}
cache: {share: 0.3}
train: {batch_size: 512, num_threads: 1}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build") / "several_trainers")
    parser.add_argument("--samples", type=int, default=40_000)
    arguments = parser.parse_args()
    folder = arguments.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = synthetic(folder / "log", num_samples=arguments.samples, table_scale=0.002)
    (folder / "run.yaml").write_text(RUN_FILE)

    together = train_together(folder / "run.yaml")
    alone = train_alone(folder / "run.yaml", folder / "alone")
    print(f"{alone['steps']} steps of 512 samples on {log.num_rows:,} rows")
    print(f"two trainers, two servers: AUC {together['auc']:.4f}")
    print(f"one trainer, no server:    AUC {alone['auc']:.4f}")
    print(f"the best anyone could do:  AUC {best(log):.4f}")


def train_together(run_file: Path) -> dict[str, float]:
    """On the command line: foresee train run.yaml --workers 2 --servers 2"""
    command = [sys.executable, "-m", "foresee", "train", str(run_file), "--workers", "2", "--servers", "2"]
    subprocess.run(command, check=True)
    lines = [json.loads(line) for line in (run_file.parent / "run" / "metrics.jsonl").read_text().splitlines()]
    valid = [line for line in lines if line["kind"] == "valid"]
    return {"auc": valid[-1]["auc"]}


def train_alone(run_file: Path, run: Path) -> dict[str, float]:
    """The same run in this process."""
    outcome = train(load_run(run_file, [f"run={run}"]), console=Console(quiet=True))
    assert outcome.valid is not None
    assert outcome.valid.auc is not None
    return {"auc": outcome.valid.auc, "steps": outcome.steps_done}


def best(log: ClickLog) -> float:
    """Known, as the log is made up."""
    return log.best_auc["valid"]


if __name__ == "__main__":
    main()
