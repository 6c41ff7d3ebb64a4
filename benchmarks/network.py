"""What a training step costs when rows come over a slow network: two trainers and two servers, each a host of its own.

The hosts are network namespaces on one switch, every link shaped in both directions (tc tbf). In every turn the ideal
is timed first, and the rate set so that the rows of a step without a cache alone take three times as long: such a run
spends 75 % of its step on embeddings, or more. DLRM with small MLPs, 26 features, tables of 3 % of Criteo's sizes,
Zipf-distributed ids, rows of 64, row-wise Adagrad, one thread each. The ideal is timed again after the other sides.

    ideal      the same trainers with all rows in a local tensor and no row traffic; dense gradients over the link
    ours       planner lookahead, placement location_aware, each trainer planning for itself; TLS and token included
    nocache    planner none: every distinct row is read and written in every step, over the same TLS
    torchrec   row-wise sharding over the two trainers' hosts (gloo, no TLS), if .venv-bench is there

Printed last: ours_over_ideal, nocache_over_ours, torchrec_over_ours, nocache_embedding_share (1 - ideal / nocache).
Needs root, `ip`, `tc` and `openssl`. A guard process takes hosts and processes down however this one ends.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from foresee.data import Batch, criteo_table_sizes, synthetic_rows
from foresee.models import DLRM, LogShape

DIM = 64
NUM_DENSE = 13
NUM_TRAINERS = 2
ADDRESSES = {"trainer0": "10.77.0.1", "trainer1": "10.77.0.2", "server0": "10.77.0.3", "server1": "10.77.0.4"}
"""Seen only inside the namespaces."""
SERVER_PORT, TRAINER_PORT, TORCHREC_PORT = 4440, 29500, 29501
START_SECONDS, END_SECONDS = 60.0, 600.0
BENCH_PYTHON = Path(__file__).resolve().parent.parent / ".venv-bench" / "bin" / "python"
OURS, NO_CACHE = "lookahead", "none"
FAST_MBIT = 1000.0
"""While the ideal is timed to find the rate."""
ROWS_OVER_IDEAL = 3.3
"""Rows of a step without a cache, in ideal steps; a little over 3, as the ideal's dense gradients slow down as well."""
ROW_BYTES = 4 * DIM + 16
"""On the wire: values, state, id and version."""

GUARD = """
cat > /dev/null
folder="$1"; shift
for turn in 1 2; do
    for name in "$@"; do ip netns pids "$name" | xargs -r kill -9; done
    sleep 0.1
done
for name in "$@"; do ip netns del "$name"; done
rm -rf "$folder"
"""
"""Reads until whoever holds the other end is gone; then ends all that lives in its namespaces, and removes them."""


@dataclass
class Log:
    """What all sides train on."""

    batches: list[Batch]
    table_sizes: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        return sum(self.table_sizes)


def make_log(arguments: argparse.Namespace) -> Log:
    sizes, size = criteo_table_sizes(arguments.table_scale), arguments.batch_size * NUM_TRAINERS
    rng = np.random.default_rng(0)
    num_steps = arguments.turns * (arguments.warmup_steps + arguments.timed_steps + 2 * arguments.nocache_steps)
    batches = [
        Batch(
            step=step,
            dense=rng.standard_normal((size, NUM_DENSE), np.float32),
            labels=(rng.random(size) < 0.3).astype(np.float32),
            rows=ids.reshape(-1),
            bag_offsets=None,
            num_features=len(sizes),
        )
        for step, ids in enumerate(
            synthetic_rows(batch_size=size, num_batches=num_steps + arguments.tail_steps, table_sizes=sizes)
        )
    ]
    return Log(batches, sizes)


def own_share(batch: Batch, rank: int) -> Batch:
    size = batch.num_samples // NUM_TRAINERS
    return batch.part(np.arange(rank * size, (rank + 1) * size, dtype=np.int32))


def make_model(log: Log, width: int) -> DLRM:
    torch.manual_seed(0)
    shape = LogShape(num_dense=NUM_DENSE, num_features=len(log.table_sizes))
    return DLRM(shape, DIM, bottom=(width,), top=(width,))


class Trainee:
    """The dense side, the same for all; gradients are averaged over the link."""

    def __init__(self, log: Log, width: int) -> None:
        model = make_model(log, width)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.Adam(model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()

    def step(self, dense: Tensor, embeddings: Tensor, labels: Tensor) -> None:
        self.loss(self.model(dense, embeddings), labels).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def time_steps(steps: Iterator[None], warmup: int, timed: int) -> float:
    """Seconds a step, warm-up left out."""
    for _ in range(warmup):
        next(steps)
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(timed):
        next(steps)
    dist.barrier()
    return (time.perf_counter() - begun) / timed


def ideal_side(log: Log, trainee: Trainee, rank: int, num_steps: int) -> Callable[[], float]:
    """All rows here; distinct rows and lookup orders are known before the clock starts."""
    from foresee.engine.cache import pool
    from foresee.engine.kernels import Threads, order_lookups, update_rows
    from foresee.engine.optimizers import RowwiseAdagrad
    from foresee.engine.work import Pooling
    from foresee.store.contract import Rows

    optimizer, pooling = RowwiseAdagrad(lr=0.05), Pooling.of([False] * len(log.table_sizes))
    values = np.full((log.num_rows, DIM), 0.01, np.float32)
    rows = Rows(values, np.zeros((log.num_rows, 1), np.float32), np.zeros(log.num_rows, np.int32))
    known = []
    for batch in log.batches[: num_steps + 2]:
        own = own_share(batch, rank)
        unique, positions = np.unique(own.rows, return_inverse=True)
        inverse: NDArray[np.int32] = positions.astype(np.int32)
        known.append((own, unique.astype(np.int32), inverse, order_lookups(inverse, len(unique))))

    def steps() -> Iterator[None]:
        with Threads(1) as threads:
            for own, unique, inverse, order in known:
                out = torch.empty(own.num_samples * len(log.table_sizes), DIM)
                pool(rows.values, unique, inverse, own, pooling, out.numpy(), threads)
                embeddings = out.view(own.num_samples, -1, DIM).requires_grad_()
                trainee.step(torch.from_numpy(own.dense), embeddings, torch.from_numpy(own.labels))
                assert embeddings.grad is not None
                gradients = embeddings.grad.view(-1, DIM).numpy()
                update_rows(optimizer, rows, unique, gradients, order, version=own.step + 1, threads=threads)
                yield

    return lambda: time_steps(steps(), 2, num_steps)


def planned_side(
    log: Log, trainee: Trainee, rank: int, arguments: argparse.Namespace
) -> Callable[[str, int, int], float]:
    """Rows on the servers; every call goes on at the step after the last one, from an empty cache."""
    from foresee.engine.loop import Run, make_header
    from foresee.engine.mesh import TorchMesh
    from foresee.engine.optimizers import RowwiseAdagrad
    from foresee.engine.peers import PeerExchange
    from foresee.engine.tables import Tables
    from foresee.engine.work import Pooling
    from foresee.store.remote import RemoteStore
    from foresee.testing.streams import MemoryStream

    stream, optimizer = MemoryStream(log.batches, num_rows=log.num_rows), RowwiseAdagrad(lr=0.05)
    touched = len(np.unique(np.concatenate([batch.rows for batch in log.batches])))
    servers = [f"grpc+tls://{ADDRESSES[f'server{i}']}:{SERVER_PORT}" for i in range(2)]
    certificate, first_step = (Path(arguments.folder) / "server.pem").read_bytes(), 0

    def seconds(planner: str, warmup: int, timed: int) -> float:
        nonlocal first_step
        store = RemoteStore(
            servers, worker=rank, num_workers=NUM_TRAINERS, run=f"from-{first_step}", tls_root_certificate=certificate
        )
        header = make_header(
            stream, planner=planner, cache_rows=int(touched * arguments.cache_share), first_step=first_step,
            num_workers=NUM_TRAINERS, placement="location_aware" if planner == OURS else "contiguous",
        )  # fmt: skip
        exchange = PeerExchange(store.layout, TorchMesh())
        run = Run(
            stream, Tables(store, optimizer), header, Pooling.of([False] * len(log.table_sizes)), exchange=exchange,
            commit_at_end=False,
        )  # fmt: skip

        def steps() -> Iterator[None]:
            for step in run:
                trainee.step(step.dense, step.embeddings, step.labels)
                step.update()
                yield

        running = steps()
        result = time_steps(running, warmup, timed)
        running.close()  # type: ignore[attr-defined]
        exchange.close()
        dist.barrier()
        first_step = run.steps_done
        # What is still cached is not written: here only time counts, and the next turn begins at this step.
        if rank == 0:
            store.commit(first_step)
        dist.barrier()
        store.close()
        return result

    return seconds


def train(arguments: argparse.Namespace) -> None:
    """A trainer's process: all turns of the ideal, ours and no cache. Trainer 0 prints what they took."""
    rank = join(arguments, TRAINER_PORT)
    log = make_log(arguments)
    trainee = Trainee(log, arguments.width)
    ideal = ideal_side(log, trainee, rank, arguments.ideal_steps)
    planned = planned_side(log, trainee, rank, arguments)
    ideal()  # compiles, and is not counted
    turns = []
    for _ in range(arguments.turns):
        rate_mbit = arguments.rate or slow_enough(log, ideal_at(FAST_MBIT, ideal, rank, arguments.prefix))
        first = ideal_at(rate_mbit, ideal, rank, arguments.prefix)
        ours = planned(OURS, arguments.warmup_steps, arguments.timed_steps)
        second = ideal()
        nocache = planned(NO_CACHE, arguments.nocache_steps, arguments.nocache_steps)
        turns.append(
            {"ideal": (first + second + ideal()) / 3, "ours": ours, "nocache": nocache, "rate_mbit": rate_mbit}
        )
    leave(rank, turns)


def ideal_at(rate_mbit: float, ideal: Callable[[], float], rank: int, prefix: str) -> float:
    """Seconds of an ideal step, the mean of both trainers, with links of this rate, which stays."""
    dist.barrier()
    if rank == 0:
        shape(prefix, rate_mbit)
    dist.barrier()
    seconds = torch.tensor(ideal())
    dist.all_reduce(seconds)
    return float(seconds) / NUM_TRAINERS


def slow_enough(log: Log, ideal_seconds: float) -> float:
    """The rate at which reading and writing a trainer's rows of a step takes so many ideal steps."""
    num_rows = statistics.mean(len(np.unique(own_share(batch, 0).rows)) for batch in log.batches[:10])
    return round(2 * num_rows * ROW_BYTES * 8e-6 / (ROWS_OVER_IDEAL * ideal_seconds), 1)


def train_torchrec(arguments: argparse.Namespace) -> None:
    """A trainer's process of the peer: the same model and batches, rows sharded over both hosts."""
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
    from torchrec.distributed import DistributedModelParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, row_wise
    from torchrec.distributed.types import ShardingPlan
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

    rank = join(arguments, TORCHREC_PORT)
    log = make_log(arguments)
    names = [f"C{i}" for i in range(len(log.table_sizes))]
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=DIM, num_embeddings=size, feature_names=[name])
        for name, size in zip(names, log.table_sizes, strict=True)
    ]

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ebc = EmbeddingBagCollection(tables=tables, device=torch.device("meta"))
            self.dlrm = make_model(log, arguments.width)

        def forward(self, dense: Tensor, ids: Any) -> Tensor:
            pooled = self.ebc(ids).values().view(len(dense), len(names), DIM)
            logits: Tensor = self.dlrm(dense, pooled)
            return logits

    whole, sharder = Whole(), EmbeddingBagCollectionSharder()
    apply_optimizer_in_backward(RowWiseAdagrad, whole.ebc.parameters(), {"lr": 0.05})
    plan = construct_module_sharding_plan(
        whole.ebc, {name: row_wise() for name in names}, sharder, local_size=1, world_size=NUM_TRAINERS,
        device_type="cpu",
    )  # fmt: skip
    model = DistributedModelParallel(
        whole, device=torch.device("cpu"), plan=ShardingPlan({"ebc": plan}), sharders=[sharder]
    )
    dense_parameters = [value for name, value in model.named_parameters() if "dlrm" in name]
    optimizer, loss = torch.optim.Adam(dense_parameters, fused=True), nn.BCEWithLogitsLoss()
    offsets = np.concatenate([[0], np.cumsum(log.table_sizes)[:-1]])

    def steps() -> Iterator[None]:
        for batch in log.batches:
            own = own_share(batch, rank)
            ids = torch.from_numpy((own.rows.reshape(own.num_samples, -1) - offsets).T.copy().reshape(-1))
            lengths = torch.ones(len(ids), dtype=torch.int32)
            lookups = KeyedJaggedTensor(keys=names, values=ids, lengths=lengths)
            loss(model(torch.from_numpy(own.dense), lookups), torch.from_numpy(own.labels)).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    leave(rank, [time_steps(steps(), 2, arguments.torchrec_steps)])


def join(arguments: argparse.Namespace, port: int) -> int:
    torch.set_num_threads(1)
    where = f"tcp://{ADDRESSES['trainer0']}:{port}"
    dist.init_process_group("gloo", init_method=where, rank=arguments.rank, world_size=NUM_TRAINERS)
    return int(arguments.rank)


def leave(rank: int, result: list[Any]) -> None:
    """Ends the process without waiting for threads of libraries that nobody needs any more."""
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)


@contextmanager
def shaped_hosts() -> Iterator[tuple[str, Path]]:
    """One namespace for each host and one for the switch; gives the prefix of their names, and a folder."""
    prefix, folder = f"foresee{os.getpid()}", tempfile.mkdtemp(prefix="foresee-network-")
    spaces = [f"{prefix}-{name}" for name in (*ADDRESSES, "switch")]
    guard = subprocess.Popen(
        ["sh", "-c", GUARD, "guard", folder, *spaces], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert guard.stdin is not None
    try:
        for space in spaces:
            call("ip", "netns", "add", space)
            call("ip", "-n", space, "link", "set", "lo", "up")
        switch = spaces[-1]
        call("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        call("ip", "-n", switch, "link", "set", "bridge", "up")
        for name, address in ADDRESSES.items():
            space = f"{prefix}-{name}"
            call("ip", "link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", name, "netns", switch)
            call("ip", "-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            call("ip", "-n", switch, "link", "set", name, "master", "bridge")
            call("ip", "-n", space, "link", "set", "eth0", "up")
            call("ip", "-n", switch, "link", "set", name, "up")
        shape(prefix, FAST_MBIT)
        yield prefix, Path(folder)
    finally:
        guard.stdin.close()
        guard.wait()


def shape(prefix: str, rate_mbit: float) -> None:
    """Both ends of every link."""
    shaping = f"root tbf rate {rate_mbit}mbit burst 256kb latency 50ms".split()
    for name in ADDRESSES:
        for space, device in ((f"{prefix}-{name}", "eth0"), (f"{prefix}-switch", name)):
            call("tc", "-n", space, "qdisc", "replace", "dev", device, *shaping)


def call(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def make_secrets(folder: Path) -> None:
    """A certificate for the servers' addresses and a token, for this run only."""
    addresses = ",".join(f"IP:{ADDRESSES[f'server{i}']}" for i in range(2))
    call(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
        "-subj", "/CN=foresee-benchmark", "-addext", f"subjectAltName={addresses}",
        "-keyout", str(folder / "server.key"), "-out", str(folder / "server.pem"),
    )  # fmt: skip
    os.environ["FORESEE_TOKEN"] = secrets.token_hex(32)


def start(host: str, words: list[str], output: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "LOCAL_WORLD_SIZE": "1"}
    with open(output, "wb") as file:
        return subprocess.Popen(
            ["ip", "netns", "exec", host, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            env=environment,
        )  # fmt: skip


def start_servers(prefix: str, folder: Path, table_sizes: tuple[int, ...]) -> None:
    tables = [{"name": f"C{i}", "num_rows": size} for i, size in enumerate(table_sizes)]
    rows = {"width": DIM, "state_width": 1, "optimizer": "rowwise_adagrad", "seed": 0, "init_scale": 0.05}
    (folder / "layout.json").write_text(json.dumps({"tables": tables, **rows}))
    for shard in range(2):
        words = [
            sys.executable, "-m", "foresee", "serve", "--layout", str(folder / "layout.json"), "--shard", str(shard),
            "--num-shards", "2", "--host", ADDRESSES[f"server{shard}"], "--port", str(SERVER_PORT),
            "--port-file", str(folder / f"port{shard}"), "--parent", str(os.getpid()),
            "--tls-certificate", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"),
        ]  # fmt: skip
        start(f"{prefix}-server{shard}", words, folder / f"server{shard}.log")
    deadline = time.monotonic() + START_SECONDS
    while not all((folder / f"port{shard}").exists() for shard in range(2)):
        if time.monotonic() > deadline:
            sys.exit("a server did not start:\n" + (folder / "server0.log").read_text())
        time.sleep(0.05)


def run_trainers(role: str, python: str, prefix: str, folder: Path) -> list[Any]:
    """What trainer 0 printed; ends this script with a trainer's last lines if one fails."""
    outputs = [folder / f"{role}{rank}.log" for rank in range(NUM_TRAINERS)]
    words = [python, __file__, *sys.argv[1:], "--role", role, "--folder", str(folder), "--prefix", prefix, "--rank"]
    trainers = [
        start(f"{prefix}-trainer{rank}", [*words, str(rank)], outputs[rank]) for rank in range(NUM_TRAINERS)
    ]
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


def missing() -> str | None:
    """What this machine lacks, as a sentence."""
    if os.geteuid() != 0:
        return "network namespaces need root; run this as root"
    tools = [tool for tool in ("ip", "tc", "openssl") if shutil.which(tool) is None]
    return f"this needs {', '.join(tools)}; install iproute2 and openssl" if tools else None


def report(turns: list[dict[str, float]], torchrec: float | None) -> None:
    """A line for each side; ratios are medians over turns. TorchRec ran once, at the rate of the last turn."""
    medians = {name: statistics.median(turn[name] for turn in turns) for name in ("ideal", "ours", "nocache")}
    if torchrec is not None:
        medians["torchrec"] = torchrec
    for name, seconds in medians.items():
        print(f"{name:>10}: {1e3 * seconds:8.1f} ms a step, {seconds / medians['ideal']:6.2f} x ideal")

    def ratio(name: str, other: str) -> float:
        return round(statistics.median(turn[name] / turn[other] for turn in turns), 3)

    figures = {
        "ours_over_ideal": ratio("ours", "ideal"),
        "nocache_over_ours": ratio("nocache", "ours"),
        "torchrec_over_ours": None if torchrec is None else round(torchrec / turns[-1]["ours"], 3),
        "nocache_embedding_share": round(1 - 1 / ratio("nocache", "ideal"), 3),
        "rate_mbit": statistics.median(turn["rate_mbit"] for turn in turns),
    }
    print(json.dumps(figures))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="more turns of more steps")
    parser.add_argument("--rate", type=float, help="Mbit/s of every link, instead of the one that is found")
    parser.add_argument("--batch-size", type=int, default=1024, help="samples of each trainer")
    parser.add_argument("--width", type=int, default=128, help="of the hidden layers")
    parser.add_argument("--table-scale", type=float, default=0.03)
    parser.add_argument("--cache-share", type=float, default=0.4, help="of the rows the log touches, a trainer")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--timed-steps", type=int, default=20)
    parser.add_argument("--ideal-steps", type=int, default=12)
    parser.add_argument("--nocache-steps", type=int, default=6, help="warm-up, and as many timed")
    parser.add_argument("--torchrec-steps", type=int, default=3)
    parser.add_argument("--tail-steps", type=int, default=20, help="of the log, which nobody trains")
    parser.add_argument("--without-torchrec", action="store_true")
    parser.add_argument("--role", choices=("trainer", "torchrec"), help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--prefix", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.full:
        arguments.turns, arguments.timed_steps, arguments.ideal_steps, arguments.nocache_steps = 5, 50, 30, 10
    return arguments


def main() -> None:
    arguments = parse()
    if arguments.role == "trainer":
        return train(arguments)
    if arguments.role == "torchrec":
        return train_torchrec(arguments)
    if (sentence := missing()) is not None:
        print(f"network: {sentence}", file=sys.stderr)
        sys.exit(2)
    torchrec = None
    with shaped_hosts() as (prefix, folder):
        make_secrets(folder)
        start_servers(prefix, folder, criteo_table_sizes(arguments.table_scale))
        turns = run_trainers("trainer", sys.executable, prefix, folder)
        if arguments.without_torchrec:
            print("TorchRec is left out, as asked.")
        elif BENCH_PYTHON.exists():
            torchrec = run_trainers("torchrec", str(BENCH_PYTHON), prefix, folder)[0]
        else:
            print("TorchRec is left out: there is no .venv-bench with it.")
    report(turns, torchrec)


if __name__ == "__main__":
    main()
