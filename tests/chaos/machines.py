"""`make chaos-machines`: runs on Ray nodes in namespaces, each with its own disk, that lose processes, nodes and links.

In: how many losses. Out: one JSON object: runs that ended with other bytes than an undisturbed one of the launcher,
runs that did not go on, and the median of seconds from a loss to the next new step, after a process and after a node:
a step that nobody had done before, so that what was done since the last commit is done again by then.
A lost node loses its disk, and comes back empty; what it had of the run is in the run's storage.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))

from ray_cluster import HEAD, RayCluster, missing, ray_cluster

from foresee.data.synthetic import tiny
from foresee.launch.ray_engine import GIVE_UP_SECONDS
from foresee.run.build import open_log, open_tables
from foresee.run.folder import open_run
from foresee.store.contract import Rows

HANG_SECONDS = 150.0
EPOCHS, NUM_STEPS = 80, 2000
PARTS = ("server 0", "server 1", "planner", "worker 0", "worker 1")
SETTINGS = f"""
model: {{name: dlrm, dim: 4, options: {{bottom: [8], top: [8]}}}}
cache: {{rows: 100}}
train: {{batch_size: 16, epochs: {EPOCHS}, num_threads: 1, log_every_steps: 1, commit_every_seconds: 1}}
distributed: {{workers: 2, servers: 2, placement: contiguous, restarts_max: 1000}}
"""


class Hang(Exception):  # noqa: N818 - what happened
    """The run did not go on."""


class Disturbed:
    """A run on the cluster."""

    def __init__(self, cluster: RayCluster, number: int, *settings: str) -> None:
        self.cluster, self.run = cluster, cluster.own / "run"
        self.output, self.storage = cluster.shared / f"run-{number}.txt", cluster.shared / f"storage-{number}"
        file = cluster.shared / f"run-{number}.yaml"
        file.write_text(f"log: {cluster.shared}/log\nrun: {self.run}\nstorage: file://{self.storage}{SETTINGS}")
        words = ["train", str(file), "--on", "ray", "--address", cluster.address, "--replace", "--log-level", "info"]
        words += [word for it in settings for word in ("--set", it)]
        self.process = cluster.start(HEAD, [sys.executable, "-m", "foresee", *words], self.output)

    @property
    def logs(self) -> Path:
        return self.cluster.disk(HEAD) / "run" / "logs"

    def step(self) -> int:
        """The last step of any line of metrics on any node that worker 0 was on, this start of it only."""
        node = self.cluster.node_of(self.pid("worker 0"))
        file = self.cluster.disk(node) / "run" / "metrics.jsonl" if node else None
        try:
            lines = file.read_text().splitlines() if file else []
            return max((json.loads(it)["step"] for it in lines[-20:] if it.endswith("}")), default=0)
        except (OSError, ValueError):
            return 0

    def pid(self, part: str) -> int:
        try:
            return int(json.loads((self.logs / "parts.json").read_text()).get(part, 0))
        except (OSError, ValueError):
            return 0

    @property
    def over(self) -> bool:
        return self.process.poll() is not None

    def wait_for_others(self, lost: dict[str, int]) -> None:
        """Until other processes are in the place of these."""
        begun = time.monotonic()
        while any(self.pid(part) in (0, pid) for part, pid in lost.items()) and not self.over:
            if time.monotonic() - begun > HANG_SECONDS:
                raise Hang(self.output.read_text()[-3000:])
            time.sleep(0.05)

    def wait_for(self, step: int) -> float:
        """Seconds until a step after this one is done."""
        begun = time.monotonic()
        while self.step() <= step and not self.over:
            if time.monotonic() - begun > HANG_SECONDS:
                raise Hang(self.output.read_text()[-3000:])
            time.sleep(0.05)
        return time.monotonic() - begun


def lose_something(run: Disturbed, kind: str, rng: random.Random) -> dict[str, int] | None:
    """Parts that have to be replaced before a step counts as one after the loss, with the ids of their processes; None
    if nothing was lost, as the part had just ended.

    Where a server or worker is lost, worker 0 is among them: what it does until it notices is given up again.
    """
    cluster = run.cluster
    before = {part: run.pid(part) for part in PARTS}
    if kind in PARTS:
        if not before[kind]:
            return None
        try:
            os.kill(before[kind], signal.SIGKILL)
        except ProcessLookupError:
            return None
        lost = {kind} if kind == "planner" else {kind, "worker 0"}
        return {part: before[part] for part in lost}
    node = rng.choice(cluster.nodes)
    lost = {part for part, pid in before.items() if cluster.node_of(pid) == node}
    lost |= {"worker 0"} if lost - {"planner"} else set()
    if kind == "node":
        cluster.lose(node)
        cluster.start_node(node)
        return {part: before[part] for part in lost}
    cluster.link(node, up=False)
    seconds = rng.choice((2.0, 20.0))
    time.sleep(seconds)
    cluster.link(node, up=True)
    return {part: before[part] for part in lost} if seconds > GIVE_UP_SECONDS else {}


def result_in_storage(cluster: RayCluster, run: Disturbed, *options: str) -> dict[str, bytes]:
    """Rows and weights of the last commit, as somebody elsewhere has them."""
    target = cluster.shared / "result"
    shutil.rmtree(target, ignore_errors=True)
    words = [sys.executable, "-m", "foresee", "train", str(run.output.with_suffix(".yaml")), "--resume", *options]
    done = subprocess.run([*words, "--set", f"run={target}"], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        print(f"{run.storage} cannot be resumed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}", file=sys.stderr)
        return {}
    return result_of(target)


def result_of(run: Path) -> dict[str, bytes]:
    config = open_run(run)
    with open_tables(config, open_log(config)) as tables:
        rows = Rows.empty(tables.layout.num_rows, tables.layout)
        tables.store.read(np.arange(tables.layout.num_rows), rows)
    weights = (run / "checkpoints" / f"step-{NUM_STEPS:09d}" / "model.safetensors").read_bytes()
    return {"values": rows.values.tobytes(), "state": rows.state.tobytes(), "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", type=int, default=100)
    parser.add_argument("--a-run", type=int, default=12, help="losses of one run at most")
    parser.add_argument("--seconds-max", type=float, default=2700.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if (lacking := missing()) is not None:
        sys.exit(f"chaos-machines: {lacking}")
    rng, seconds = random.Random(given.seed), {"process": list[float](), "node": list[float](), "link": list[float]()}
    different = hangs = failed = runs = 0
    kinds = [*PARTS, *PARTS, *PARTS, "node", "node", "node", "link", "link"]
    deadline = time.monotonic() + given.seconds_max
    with ray_cluster(3) as cluster:
        tiny(cluster.shared / "log", seed=5, num_samples=500)
        plain = cluster.shared / "plain.yaml"
        plain.write_text(f"log: {cluster.shared}/log\nrun: plain{SETTINGS}")
        subprocess.run([sys.executable, "-m", "foresee", "train", str(plain)], check=True, capture_output=True)
        expected = result_of(cluster.shared / "plain")
        while sum(map(len, seconds.values())) < given.losses and time.monotonic() < deadline:
            run, number = Disturbed(cluster, runs), 0
            runs += 1
            try:
                run.wait_for(0)
                while number < given.a_run and sum(map(len, seconds.values())) < given.losses and not run.over:
                    time.sleep(rng.uniform(0.5, 2.5))
                    kind = rng.choice(kinds)
                    run.wait_for_others(dict.fromkeys(PARTS, 0))  # none of them is just being started
                    begun, step = time.monotonic(), run.step()
                    lost = lose_something(run, kind, rng)
                    if lost is None:
                        continue
                    run.wait_for_others(lost)
                    step = max(step, run.step())  # what the lost worker 0 still did counts as done
                    run.wait_for(step)
                    took = time.monotonic() - begun
                    if run.process.poll() is None:
                        seconds["process" if kind in PARTS else kind].append(took)
                        print(f"run {runs} step {step} {kind}: {took:.1f} s", file=sys.stderr, flush=True)
                    else:
                        print(f"run {runs} was over before the loss of {kind} showed", file=sys.stderr, flush=True)
                    number += 1
                run.wait_for(NUM_STEPS - 1)
                code = run.process.wait(HANG_SECONDS)
                failed += code != 0
                if code:
                    print(run.output.read_text()[-3000:], file=sys.stderr)
                elif result_in_storage(cluster, run) != expected:
                    different += 1
            except (Hang, subprocess.TimeoutExpired) as error:
                hangs += 1
                print(f"hang: {error}", file=sys.stderr)
                run.process.kill()
            shutil.rmtree(run.storage, ignore_errors=True)
    median = {name: round(statistics.median(them), 1) if them else None for name, them in seconds.items()}
    print(
        json.dumps(
            {
                "losses": sum(map(len, seconds.values())), "runs": runs, "different_bytes": different, "hangs": hangs,
                "failed_runs": failed, **{f"seconds_after_{name}": value for name, value in median.items()},
            }
        )
    )  # fmt: skip
    sys.exit(1 if different or hangs or failed else 0)


if __name__ == "__main__":
    main()
