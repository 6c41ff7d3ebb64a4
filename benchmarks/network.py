"""What a training step costs when rows come over a slow network: two trainers and two servers, each a host of its own.

The hosts are network namespaces on one switch, every link shaped in both directions (`shaped/hosts.py`). First
the ideal is timed, and the rate set so that the rows of a step without a cache alone take 3.15 times as long as an
ideal step at that rate: such a run spends 75 % of its step on embeddings, or more. DLRM with layers 512-256-64 and
512-256-1, Criteo's 26 columns (`shaped/log.py`), rows of 64, Adagrad with a state for each weight as in MLPerf's DLRM,
one thread each. The ideal is timed again after the other sides.

    ideal      the same trainers with all rows in a local tensor and no row traffic; dense gradients over the link
    ours       planner lookahead, placement location_aware; TLS and token included
    nocache    planner none: every distinct row is read and written in every step, over the same TLS
    torchrec   row-wise sharding over the two trainers' hosts (gloo, no TLS), if .venv-bench is there

With --disk-cold the servers keep their rows on disk, every row written before, and read them past the page cache
(FORESEE_DISK=io_uring), so that none is ever found in memory; without it, in memory.

Printed last: ours_over_ideal, nocache_over_ours, torchrec_over_ours, nocache_embedding_share (1 - ideal / nocache).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from foresee.store.disk import DiskStore
from foresee.store.layout import layout_from_dict
from foresee.store.server.shard import Share, disk_shard
from shaped.hosts import ADDRESSES, FAST_MBIT, make_secrets, missing, shape, shaped_hosts, start
from shaped.log import CRITEO, DIM, NUM_TRAINERS, Log, Trainee, make_log, own_share, table_sizes
from shaped.sides import NO_CACHE, OURS, SERVER_PORT, Taken, ideal_side, join, leave, planned_side

TRAINER_PORT = 29500
START_SECONDS, END_SECONDS = 60.0, 600.0
BENCH_PYTHON = Path(__file__).resolve().parent.parent / ".venv-bench" / "bin" / "python"
ROWS_OVER_IDEAL = 3.15
"""Rows of a step without a cache, in ideal steps, by bytes alone."""
APPROACHES = 3
ROW_BYTES = 8 * DIM + 16
"""On the wire: values, state, id and version."""


def train(arguments: argparse.Namespace) -> None:
    """A trainer's process: all turns of the ideal, ours and no cache. Trainer 0 prints what they took."""
    rank = int(arguments.rank)
    join(rank, TRAINER_PORT)
    log = make_log(arguments)
    trainee = Trainee(log, arguments.width)
    ideal = ideal_side(log, trainee, rank, arguments.ideal_steps)
    planned = planned_side(log, trainee, rank, arguments)
    ideal()  # compiles, and is not counted
    turns = []
    rate_mbit = arguments.rate or slow_enough(log, lambda rate: ideal_at(rate, ideal, rank, arguments.prefix))
    for _ in range(arguments.turns):
        ideals = [ideal_at(rate_mbit, ideal, rank, arguments.prefix)]
        ours = planned(OURS, arguments.warmup_steps, arguments.timed_steps)
        ideals.append(mean_of_trainers(ideal()))
        nocache = planned(NO_CACHE, arguments.nocache_steps, arguments.nocache_steps)
        ideals.append(mean_of_trainers(ideal()))
        sides = {"ideal": mean(ideals), "ours": astuple(ours), "nocache": astuple(nocache)}
        turns.append({**sides, "rate_mbit": rate_mbit})
    leave(rank, turns)


def ideal_at(rate_mbit: float, ideal: Callable[[], Taken], rank: int, prefix: str) -> Taken:
    """An ideal step with links of this rate, which stays."""
    dist.barrier()
    if rank == 0:
        shape(prefix, rate_mbit)
    dist.barrier()
    return mean_of_trainers(ideal())


def mean_of_trainers(taken: Taken) -> Taken:
    both = torch.tensor(astuple(taken))
    dist.all_reduce(both)
    return Taken(*(both / NUM_TRAINERS).tolist())


def mean(taken: list[Taken]) -> tuple[float, ...]:
    return tuple(statistics.mean(values) for values in zip(*map(astuple, taken), strict=True))


def slow_enough(log: Log, ideal_at_rate: Callable[[float], Taken]) -> float:
    """The rate at which reading and writing a trainer's rows of a step takes so many ideal steps at that rate.

    An ideal step is longer on a slower link, as dense gradients go over it too: so the rate is approached.
    """
    num_rows = statistics.mean(len(np.unique(own_share(batch, 0).rows)) for batch in log.batches[:10])
    rate_mbit = FAST_MBIT
    for _ in range(APPROACHES):
        rate_mbit = 2 * num_rows * ROW_BYTES * 8e-6 / (ROWS_OVER_IDEAL * ideal_at_rate(rate_mbit).seconds)
    return round(rate_mbit, 1)


def start_servers(prefix: str, folder: Path, sizes: tuple[int, ...], *, disk_cold: bool) -> None:
    tables = [{"name": f"C{i}", "num_rows": size} for i, size in enumerate(sizes)]
    rows = {"width": DIM, "state_width": DIM, "optimizer": "adagrad", "seed": 0, "init_scale": 0.05}
    (folder / "layout.json").write_text(json.dumps({"tables": tables, **rows}))
    if disk_cold:
        os.environ["FORESEE_DISK"] = "io_uring"
    for shard in range(2):
        words = [
            sys.executable, "-m", "foresee", "serve", "--layout", str(folder / "layout.json"), "--shard", str(shard),
            "--num-shards", "2", "--host", ADDRESSES[f"server{shard}"], "--port", str(SERVER_PORT),
            "--port-file", str(folder / f"port{shard}"), "--parent", str(os.getpid()),
            "--tls-certificate", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"),
        ]  # fmt: skip
        if disk_cold:
            write_all_rows(folder / f"shard{shard}", {"tables": tables, **rows}, Share(shard, 2))
            words += ["--folder", str(folder / f"shard{shard}")]
        start(f"{prefix}-server{shard}", words, folder / f"server{shard}.log")
    deadline = time.monotonic() + START_SECONDS
    while not all((folder / f"port{shard}").exists() for shard in range(2)):
        if time.monotonic() > deadline:
            sys.exit("a server did not start:\n" + (folder / "server0.log").read_text())
        time.sleep(0.05)


def write_all_rows(folder: Path, layout: dict[str, Any], share: Share) -> None:
    """Makes the folder of a shard in which nobody's row is still to be made."""
    disk_shard(folder, layout_from_dict(layout), share).close()
    store = DiskStore.open(folder)
    store.initialise_all()
    print(f"shard {share.shard}: {store.bytes_when_full / 1e6:.0f} MB, {store.way}")
    store.close()


def run_trainers(role: str, python: str, prefix: str, folder: Path) -> list[Any]:
    """What trainer 0 printed; ends this script with a trainer's last lines if one fails."""
    outputs = [folder / f"{role}{rank}.log" for rank in range(NUM_TRAINERS)]
    words = [python, __file__, *sys.argv[1:], "--role", role, "--folder", str(folder), "--prefix", prefix, "--rank"]
    trainers = [start(f"{prefix}-trainer{rank}", [*words, str(rank)], outputs[rank]) for rank in range(NUM_TRAINERS)]
    deadline = time.monotonic() + END_SECONDS
    while any(trainer.poll() is None for trainer in trainers):
        failed = [rank for rank, trainer in enumerate(trainers) if trainer.poll() not in (None, 0)]
        if failed or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    codes = [trainer.poll() for trainer in trainers]
    if any(codes) or None in codes:
        said = "\n".join(output.read_text(errors="replace")[-3000:] for output in outputs)
        sys.exit(f"{role}: trainers ended with {codes}:\n{said}")
    result: list[Any] = json.loads(outputs[0].read_text().splitlines()[-1])
    return result


def report(turns: list[dict[str, Any]], torchrec: float | None, *, disk_cold: bool) -> None:
    """A line for each side; ratios are medians over turns. TorchRec ran once, after them."""
    ideal_seconds = statistics.median(turn["ideal"][0] for turn in turns)
    for name in ("ideal", "ours", "nocache"):
        seconds, cpu_seconds = (statistics.median(turn[name][k] for turn in turns) for k in range(2))
        print(
            f"{name:>10}: {1e3 * seconds:8.1f} ms a step, {seconds / ideal_seconds:6.2f} x ideal; "
            f"{1e3 * cpu_seconds:.1f} ms of a trainer's processor"
        )
    if torchrec is not None:
        print(f"  torchrec: {1e3 * torchrec:8.1f} ms a step, {torchrec / ideal_seconds:6.2f} x ideal")

    def ratio(name: str, other: str) -> float:
        return round(float(statistics.median(turn[name][0] / turn[other][0] for turn in turns)), 3)

    print("ours over ideal, by turn:", *(f"{turn['ours'][0] / turn['ideal'][0]:.3f}" for turn in turns))
    ours_seconds = statistics.median(turn["ours"][0] for turn in turns)
    figures = {
        "ours_over_ideal": ratio("ours", "ideal"),
        "nocache_over_ours": ratio("nocache", "ours"),
        "torchrec_over_ours": None if torchrec is None else round(torchrec / ours_seconds, 3),
        "nocache_embedding_share": round(1 - 1 / ratio("nocache", "ideal"), 3),
        "rate_mbit": turns[0]["rate_mbit"],
        "turns": len(turns),
        "disk_cold": disk_cold,
    }
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more turns of more steps")
    parser.add_argument("--disk-cold", action="store_true", help="servers on cold disks, every row written before")
    parser.add_argument("--log", choices=("criteo", "synthetic"), default="criteo" if CRITEO.exists() else "synthetic")
    parser.add_argument("--rate", type=float, help="Mbit/s of every link, instead of the one that is found")
    parser.add_argument("--batch-size", type=int, default=1024, help="samples of each trainer")
    parser.add_argument("--width", type=int, default=512, help="of the first hidden layers; the second have half of it")
    parser.add_argument("--cache-share", type=float, default=0.4, help="of the rows the log touches, a trainer")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--warmup-steps", type=int, default=12)
    parser.add_argument("--timed-steps", type=int, default=26)
    parser.add_argument("--ideal-steps", type=int, default=7)
    parser.add_argument("--nocache-steps", type=int, default=4, help="warm-up, and as many timed")
    parser.add_argument("--torchrec-steps", type=int, default=2)
    parser.add_argument("--tail-steps", type=int, default=20, help="of the log, which nobody trains")
    parser.add_argument("--without-torchrec", action="store_true")
    parser.add_argument("--role", choices=("trainer", "torchrec"), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--prefix", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.full:
        arguments.turns, arguments.warmup_steps, arguments.timed_steps = 5, 20, 50
        arguments.ideal_steps, arguments.nocache_steps = 30, 10
    return arguments


def main() -> None:
    arguments = parse()
    if arguments.role == "trainer":
        return train(arguments)
    if arguments.role == "torchrec":
        from shaped.torchrec_side import train_torchrec

        return train_torchrec(arguments)
    if (sentence := missing()) is not None:
        print(f"network: {sentence}", file=sys.stderr)
        sys.exit(2)
    torchrec = None
    with shaped_hosts() as (prefix, folder):
        make_secrets(folder)
        start_servers(prefix, folder, table_sizes(arguments.log), disk_cold=arguments.disk_cold)
        turns = run_trainers("trainer", sys.executable, prefix, folder)
        if arguments.without_torchrec:
            print("TorchRec is left out, as asked.")
        elif BENCH_PYTHON.exists():
            torchrec = run_trainers("torchrec", str(BENCH_PYTHON), prefix, folder)[0]
        else:
            print("TorchRec is left out: there is no .venv-bench with it.")
    report(turns, torchrec, disk_cold=arguments.disk_cold)


if __name__ == "__main__":
    main()
