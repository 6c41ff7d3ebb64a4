"""What commits cost, and how long a run takes to be back after a part of it was killed.

`commit_overhead`: a DLRM of one process trains on tables on disk. Turns of equally many steps alternate, one without
and one with a commit at its beginning (rows of both turns, dense half, everything a run keeps); the rows are folded
into the base while the turn trains on. What a turn with a commit takes longer, over the time that a run leaves between
two commits by default (`engine.pace`), is the overhead.

`recovery_seconds_*`: `foresee train --workers 2 --servers 2`, as a person starts it. A trainer, a server and the
planner are killed in turn, several times each. Seconds from the kill to the first step after it, and that of the next
new step; the steps between the two, which are trained again, are not counted. A killed planner holds nobody up while
trainers have steps in hand, so for it the longest gap between two steps that follow counts.

Medians. Run: `.venv/bin/python benchmarks/commit.py`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from foresee.data import ClickLog, synthetic
from foresee.engine.step import Step
from foresee.run.build import build_model, open_log, open_tables, plan_header, train_stream
from foresee.run.build import make_run as make_steps
from foresee.run.callbacks import COST_SHARE, SECONDS_MIN, SaveCheckpoint
from foresee.run.config import RunConfig
from foresee.run.config_file import make_run
from foresee.run.dense_state import DenseHalf
from foresee.run.folder import RunFolder
from foresee.run.group import Alone

WAIT_SECONDS = 240.0
"""A bound for what fails; nothing waits for it."""
POLL_SECONDS = 0.005
TAIL_BYTES = 4096
PLANNER_WATCH_SECONDS = 3.0
ROLES = {"worker 1": "recovery_seconds_trainer", "server 0": "recovery_seconds_server",
         "planner": "recovery_seconds_planner"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6, help="turns without and with a commit")
    parser.add_argument("--turn-seconds", type=float, default=1.5, help="about what a turn takes")
    parser.add_argument("--kills", type=int, default=1, help="of each role")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foresee-commit-") as name:
        folder = Path(name)
        found: dict[str, float] = measure_commits(folder, arguments.pairs, arguments.turn_seconds)
        found.update(measure_recovery(folder, arguments.kills))
    print(json.dumps(found))


# Commits ---------------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """A run of one process, step by step."""

    config: RunConfig
    log: ClickLog
    seconds_of_commits: list[float]

    def turns(self) -> Generator[Turn, None, None]:
        """Turns until somebody stops asking for them."""
        model, stream = build_model(self.config, self.log), train_stream(self.config, self.log)
        half = DenseHalf.of(self.config, model, stream.num_steps)
        with open_tables(self.config, self.log) as tables:
            header = plan_header(self.config, self.log, stream)
            run = make_steps(self.config, self.log, stream, tables, header, num_threads=torch.get_num_threads())
            keep = SaveCheckpoint(self.config, run, half, Alone(model), RunFolder(self.config.run), [self._note])
            steps = iter(run)
            try:
                while True:
                    yield Turn(steps, model, half.optimizer, keep)
            finally:
                steps.close()

    def _note(self, line: dict[str, float]) -> None:
        self.seconds_of_commits.append(line["seconds"])


@dataclass
class Turn:
    """Some steps, one after the other."""

    steps: Iterator[Step]
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    keep: SaveCheckpoint

    def train(self, num_steps: int, *, commit: bool) -> float:
        begun = time.perf_counter()
        if commit:
            self.keep.keep()
        for _ in range(num_steps):
            step = next(self.steps)
            loss = binary_cross_entropy_with_logits(self.model(step.dense, step.embeddings), step.labels)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()
            step.update()
        return time.perf_counter() - begun


def measure_commits(folder: Path, num_pairs: int, turn_seconds: float) -> dict[str, float]:
    synthetic(folder / "log", num_samples=100_000, table_scale=0.02, valid_share=0.0)
    content = {
        "log": str(folder / "log"), "run": str(folder / "run"), "model": {"name": "dlrm", "dim": 16},
        "cache": {"share": 0.1}, "train": {"batch_size": 1024, "epochs": 50},
    }  # fmt: skip
    config = make_run(content, where="this benchmark")
    trainer = Trainer(config, open_log(config), [])
    (folder / "run").mkdir()
    turns = trainer.turns()
    warm = next(turns)
    warm.train(20, commit=True)
    num_steps = max(10, int(20 * turn_seconds / warm.train(20, commit=False)))
    pairs = []
    for number in range(num_pairs):
        seconds = {commit: next(turns).train(num_steps, commit=commit) for commit in (number % 2 == 0, number % 2 == 1)}
        pairs.append((seconds[False], seconds[True]))
    turns.close()
    extra = statistics.median(with_commit - without for without, with_commit in pairs)
    held_up = statistics.median(trainer.seconds_of_commits[1:])
    interval = max(SECONDS_MIN, held_up / COST_SHARE)
    for without, with_commit in pairs:
        print(f"{num_steps} steps: {without:.2f} s without a commit, {with_commit:.2f} s with one", file=sys.stderr)
    return {
        "commit_overhead": round(max(0.0, extra) / interval, 4),
        "commit_seconds": round(held_up, 4),
        "commit_interval_seconds": round(interval, 1),
    }


# Recovery --------------------------------------------------------------------------------------------------------


class Metrics:
    """When each step was done, by the lines of metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def step(self) -> int:
        with suppress(OSError, IndexError, ValueError, KeyError), open(self._path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return int(json.loads(file.read().splitlines()[-1])["step"])
        return 0

    def wait_beyond(self, step: int) -> float:
        """When a step after this one is done."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            if self.step() > step:
                return time.monotonic()
            time.sleep(POLL_SECONDS)
        raise TimeoutError(f"no further step within {WAIT_SECONDS:.0f} s; the last one was {self.step()}")


def measure_recovery(folder: Path, num_kills: int) -> dict[str, float]:
    synthetic(folder / "small", num_samples=40_000, table_scale=0.002, valid_share=0.0)
    run_file = folder / "recovery.yaml"
    run_file.write_text(
        f"log: {folder / 'small'}\nrun: {folder / 'recovered'}\nmodel: {{name: dlrm, dim: 8}}\n"
        "cache: {share: 0.5}\n"
        "train: {batch_size: 256, epochs: 1000, commit_every_steps: 40, log_every_steps: 1}\n"
        "distributed: {workers: 2, servers: 2, restarts_max: 1000}\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-m", "foresee", "train", str(run_file)], stdout=subprocess.DEVNULL, process_group=0
    )
    metrics = Metrics(folder / "recovered" / "metrics.jsonl")
    try:
        metrics.wait_beyond(60)
        seconds: dict[str, list[float]] = {role: [] for role in ROLES}
        for _ in range(num_kills):
            for role in ROLES:
                seconds[role].append(kill_and_time(folder / "recovered", role, metrics))
                print(f"{role}: {seconds[role][-1]:.2f} s", file=sys.stderr)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    return {name: round(statistics.median(seconds[role]), 2) for role, name in ROLES.items()}


def kill_and_time(run: Path, role: str, metrics: Metrics) -> float:
    """Seconds from the kill to training again, without the steps that are trained for the second time."""
    metrics.wait_beyond(metrics.step() + 10)
    before, died = metrics.step(), time.monotonic()
    os.kill(json.loads((run / "logs" / "parts.json").read_text())[role], signal.SIGKILL)
    if role == "planner":
        return longest_gap(metrics, died)
    while metrics.step() >= before and time.monotonic() < died + WAIT_SECONDS:
        before = max(before, metrics.step())
        time.sleep(POLL_SECONDS)
    kept = metrics.step()
    first = metrics.wait_beyond(kept)
    last_again = metrics.wait_beyond(before - 1) if before > kept + 1 else first
    new = metrics.wait_beyond(before)
    return first - died + (new - last_again)


def longest_gap(metrics: Metrics, died: float) -> float:
    """Between two steps, in the seconds after the planner died."""
    longest, last = 0.0, died
    while last < died + PLANNER_WATCH_SECONDS:
        now = metrics.wait_beyond(metrics.step())
        longest, last = max(longest, now - last), now
    return longest


if __name__ == "__main__":
    main()
