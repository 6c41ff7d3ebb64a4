"""Two trainers and two servers, each a host of its own on shaped links: measured, and predicted from other rates.

All of them share the cores of this machine, so `cores` is one for each trainer, and what servers and packets take of it
counts. Calibrated: the compute of a step on a run whose cache holds every row, before and after each measurement; reads
and writes of rows at the servers, TLS included, in seconds and in processor time; an all-to-all of nothing; and the
share of a link that an exchange gets while both ends send, such that one plan without placement, at a rate of its own
and measured between the others, is predicted as it was measured. Predicted: other rates, caches, placements, and no
cache. Plans are made before the clock starts, and rows are updated during backward, as `foresee train` does it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from foresee.engine.exchange.dense import Sums, shared
from foresee.engine.exchange.mesh import Lane, TorchMesh
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.run.worker import SWITCH_SECONDS
from foresee.store.contract import Rows, Store
from foresee.store.memory import MemoryStore
from foresee.store.remote import RemoteStore
from foresee.tools.cost import RowBytes, Speeds, predict
from shaped.hosts import ADDRESSES, call, make_secrets, missing, shaped_hosts, start
from simulated.processor import processor_seconds
from simulated.scene import (
    DIM,
    OPTIMIZER,
    Part,
    Scene,
    Taken,
    Trainee,
    cache_row_seconds,
    make_model,
    plan_part,
    store_speeds,
    time_steps,
)

NUM_TRAINERS, SAMPLES = 2, 512
SERVER_PORT, TRAINER_PORT = 4441, 29503
START_SECONDS, END_SECONDS = 60.0, 300.0
FAST_MBIT, CALIBRATED_MBIT = 1000.0, 175.0
GOODPUT = 0.95
"""What is left of a rate for what is in the packets: Ethernet, IP, TCP and TLS take the rest."""
ID_BYTES = 12
"""What goes with a row between a trainer and a server: its id and its version."""
WARMUP_STEPS, TIMED_STEPS, TAIL_STEPS = 6, 8, 4
FILLING_STEPS, COMPUTE_STEPS = 4, 10
STORE_TURNS, STORE_ROWS = 3, (400, 3600)
"""As many as steps read and write: one chunk, which is packed, sent and unpacked one after the other."""
REPEATS = 8
Turn = dict[str, tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One configuration."""

    rate_mbit: float
    planner: str
    cache_share: float

    @property
    def name(self) -> str:
        return f"two trainers at {self.rate_mbit:g} Mbit/s: {self.planner}, cache of {self.cache_share:.0%}"


CALIBRATED = Pair(rate_mbit=CALIBRATED_MBIT, planner="owner", cache_share=0.25)
CONFIGURATIONS = [
    Pair(rate_mbit=rate, planner=planner, cache_share=share)
    for rate in (100.0, 250.0)
    for planner, share in (("lookahead", 0.15), ("lookahead", 0.5), ("owner", 0.15), ("none", 0.15))
]
ORDER = [CALIBRATED, *CONFIGURATIONS[:4], CALIBRATED, *CONFIGURATIONS[4:], CALIBRATED]


def make_scene(num_turns: int) -> Scene:
    parts = num_turns * len(ORDER)
    num_steps = parts * (WARMUP_STEPS + TIMED_STEPS) + TAIL_STEPS
    return Scene.make(batch_size=NUM_TRAINERS * SAMPLES, num_steps=num_steps, table_scale=0.005)


class Measured(NamedTuple):
    """A configuration that was trained."""

    configuration: Pair
    part: Part
    seconds: float
    compute_seconds: float
    """Just before and after."""


class Trainer:
    """One of the two."""

    def __init__(self, rank: int, folder: Path, prefix: str, num_turns: int) -> None:
        self.rank, self.prefix = rank, prefix
        self.scene = make_scene(num_turns)
        self.sums = Sums()
        self.model = shared(make_model(self.scene), self.sums)
        self.certificate = (folder / "server.pem").read_bytes()
        self.servers = [int((folder / f"server{shard}.pid").read_text()) for shard in range(2)]
        self.first_step = 0
        repeated = -(-(2 + COMPUTE_STEPS) // FILLING_STEPS) + 2
        self.again = Scene.make(batch_size=SAMPLES, num_steps=FILLING_STEPS, table_scale=0.005, repeated=repeated)
        num_again = len(self.again.batches)
        self.cached = plan_part(self.again, planner="lookahead", cache_share=1.0, first_step=0, num_steps=num_again)
        self.mesh = TorchMesh()
        self.dense_bytes = 4.0 * sum(weight.numel() for weight in self.model.parameters())

    def turn(self) -> Turn:
        speeds, measured = self._speeds(), list[Measured]()
        before = self._compute_seconds()
        for some in ORDER:
            part, taken = self._measure(some)
            after = self._compute_seconds()
            measured.append(Measured(some, part, taken.seconds, (before + after) / 2))
            before = after
        fitted = [self._fitted(one, speeds) for one in measured if one.configuration is CALIBRATED]
        speeds = replace(speeds, exchange_link_share=statistics.median(fitted))
        others = [one for one in measured if one.configuration is not CALIBRATED]
        return {one.configuration.name: (self._predict(one, speeds), one.seconds) for one in others}

    def _speeds(self) -> Speeds:
        """All but what depends on the configuration, and what is fitted."""
        self._shape(CALIBRATED_MBIT)
        store = self._store()
        request, read_row, write_row, processor = self._store_speeds(store)
        store.close()
        row_wire = (store.layout.row_bytes + ID_BYTES) / wire(CALIBRATED_MBIT)
        read_row, write_row = max(0.0, read_row - row_wire), max(0.0, write_row - row_wire)
        row_seconds = cache_row_seconds(self.scene)  # packed and unpacked it is copied, too
        return Speeds(
            compute_seconds=0.0,
            compute_after_rows_share=self._after_rows_share(),
            cores=1,
            num_servers=2,
            request_seconds=request,
            read_row_seconds=read_row,
            write_row_seconds=write_row,
            served_row_seconds=max(0.0, processor - (read_row + write_row) / 2),
            cache_row_seconds=row_seconds,
            exchange_seconds=self._exchange_seconds(),
            exchange_row_seconds=row_seconds,
            dense_bytes=self.dense_bytes,
        )

    def _store_speeds(self, store: Store) -> tuple[float, float, float, float]:
        """(request, read of a row, write of a row) in seconds, and a trainer's share of all processor time, by row."""
        shuffled, requests = self.scene.shuffled, []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            store.read(shuffled[:1], Rows.empty(1, store.layout))
            requests.append(time.perf_counter() - begun)
        dist.barrier()
        own, served = time.process_time(), processor_seconds(self.servers)
        _, read_row, write_row = store_speeds(store, shuffled, turns=STORE_TURNS, probed=STORE_ROWS)
        own = time.process_time() - own
        dist.barrier()
        served = processor_seconds(self.servers) - served
        num_rows = STORE_TURNS * 3 * sum(STORE_ROWS)  # read, and read and written
        speeds = [statistics.median(requests), read_row, write_row, (own + served / NUM_TRAINERS) / num_rows]
        request, read_row, write_row, processor = self._mean(speeds)
        return request, read_row, write_row, processor

    def _fitted(self, calibrated: Measured, speeds: Speeds) -> float:
        """The share of a link that an exchange gets, with which this is predicted as it was measured."""
        low, high = 0.0, 1.0
        for _ in range(30):
            middle = (low + high) / 2
            too_fast = self._predict(calibrated, replace(speeds, exchange_link_share=middle)) < calibrated.seconds
            low, high = (low, middle) if too_fast else (middle, high)
        return high

    def _compute_seconds(self) -> float:
        """A step whose rows are all in the cache already, without the time that dense gradients take on the link."""
        return self._time(self._cached_run(), FILLING_STEPS + 2, COMPUTE_STEPS).seconds - self.dense_bytes / wire(
            FAST_MBIT
        )

    def _after_rows_share(self) -> float:
        """How much of a step's compute follows the gradients of its rows, by the training thread's processor time."""
        trainee, found = Trainee(self.model), list[float]()
        begun, there = time.thread_time(), 0.0

        def arrived(embeddings: torch.Tensor) -> None:
            nonlocal there
            there = time.thread_time()

        for step in self._cached_run():
            step.update_during_backward()
            step.embeddings.register_post_accumulate_grad_hook(arrived)  # type: ignore[no-untyped-call]
            trainee.step(step.dense, step.embeddings, step.labels)
            ended = time.thread_time()
            found.append((ended - there) / (ended - begun))
            step.update()
            begun = time.thread_time()
        return self._mean([statistics.median(found)])[0]

    def _cached_run(self) -> Run:
        self._shape(FAST_MBIT)
        tables, known = Tables(MemoryStore(self.again.layout), OPTIMIZER), self.cached
        return Run(self.again.stream, tables, known.header, self.again.pooling, known.records)

    def _exchange_seconds(self) -> float:
        """An all-to-all of next to nothing."""
        sizes, little, seconds = [1, 1], torch.zeros(2), []
        for _ in range(REPEATS):
            dist.barrier()
            begun = time.perf_counter()
            self.mesh.start(Lane.CRITICAL, little, sizes, sizes)()
            seconds.append(time.perf_counter() - begun)
        return self._mean([statistics.median(seconds)])[0]

    def _measure(self, some: Pair) -> tuple[Part, Taken]:
        """From an empty cache, at the step after the last one. The plan, and what a step took."""
        num_steps = WARMUP_STEPS + TIMED_STEPS + TAIL_STEPS
        part = plan_part(
            self.scene, planner=some.planner, cache_share=some.cache_share, first_step=self.first_step,
            num_steps=num_steps, num_workers=NUM_TRAINERS,
        )  # fmt: skip
        self._shape(some.rate_mbit)
        store = self._store()
        exchange = PeerExchange(store.layout, self.mesh, dense=self.sums)
        own = [record for record in part.records if record.worker == self.rank]
        run = Run(
            self.scene.stream, Tables(store, OPTIMIZER), part.header, self.scene.pooling, own, exchange=exchange,
            commit_at_end=False,
        )  # fmt: skip
        taken = self._time(run, WARMUP_STEPS, TIMED_STEPS)
        exchange.close()
        self._shape(FAST_MBIT)
        self.first_step = run.steps_done
        # What is still cached is not written: here only time counts.
        if self.rank == 0:
            store.commit(self.first_step)
        dist.barrier()
        store.close()
        return part, taken

    def _time(self, run: Run, warmup: int, timed: int) -> Taken:
        trainee = Trainee(self.model)

        def steps() -> Iterator[None]:
            for step in run:
                step.update_during_backward()
                trainee.step(step.dense, step.await_embeddings, step.labels)
                step.update()
                yield

        running = steps()
        taken = time_steps(running, warmup, timed)
        running.close()  # type: ignore[attr-defined]
        return Taken(*self._mean(taken))

    def _store(self) -> Store:
        servers = [f"grpc+tls://{ADDRESSES[f'server{i}']}:{SERVER_PORT}" for i in range(2)]
        return RemoteStore(
            servers, worker=self.rank, num_workers=NUM_TRAINERS, run=f"from-{self.first_step}",
            tls_root_certificate=self.certificate,
        )  # fmt: skip

    def _predict(self, one: Measured, speeds: Speeds) -> float:
        row = RowBytes(stored=self.scene.layout.row_bytes + ID_BYTES, value=4 * DIM, gradient=4 * DIM)
        trained = one.part.volumes.until_step(WARMUP_STEPS + TIMED_STEPS)
        rate = wire(one.configuration.rate_mbit)
        here = replace(
            speeds, compute_seconds=one.compute_seconds, trainer_bytes_per_second=rate, server_bytes_per_second=rate
        )
        return predict(trained, row, here, first_step=WARMUP_STEPS).step_seconds

    def _shape(self, rate_mbit: float) -> None:
        """Both ends of every link: a bucket so small that bursts do not matter, a queue so long that none is lost."""
        dist.barrier()
        if self.rank == 0:
            shaping = f"root tbf rate {rate_mbit}mbit burst 32kb latency 1000ms".split()
            for name in ADDRESSES:
                for space, device in ((f"{self.prefix}-{name}", "eth0"), (f"{self.prefix}-switch", name)):
                    call("tc", "-n", space, "qdisc", "replace", "dev", device, *shaping)
        dist.barrier()

    def _mean(self, figures: Sequence[float]) -> list[float]:
        """Of both trainers, so that both go on with the same."""
        both = torch.tensor(figures, dtype=torch.float64)
        dist.all_reduce(both)
        means: list[float] = (both / NUM_TRAINERS).tolist()
        return means


def wire(rate_mbit: float) -> float:
    """Bytes a second."""
    return rate_mbit * 1e6 / 8 * GOODPUT


def train(arguments: argparse.Namespace) -> None:
    """A trainer's process; trainer 0 prints the turns."""
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    where = f"tcp://{ADDRESSES['trainer0']}:{TRAINER_PORT}"
    dist.init_process_group("gloo", init_method=where, rank=arguments.rank, world_size=NUM_TRAINERS)
    trainer = Trainer(arguments.rank, Path(arguments.folder), arguments.prefix, arguments.turns)
    for _ in range(arguments.turns):
        found = trainer.turn()
        if arguments.rank == 0:
            print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def turns(count: int, script: Path) -> Iterator[Turn]:
    """All turns, or none where there are no namespaces; ends with a trainer's last lines if one fails."""
    if (sentence := missing()) is not None:
        print(f"two trainers are left out: {sentence}", file=sys.stderr)
        return
    with shaped_hosts() as (prefix, folder):
        make_secrets(folder)
        start_servers(prefix, folder, make_scene(1))
        yield from run_trainers(prefix, folder, count, script)


def start_servers(prefix: str, folder: Path, scene: Scene) -> None:
    tables = [{"name": table.name, "num_rows": table.num_rows} for table in scene.tables]
    rows = {"width": DIM, "state_width": 1, "optimizer": OPTIMIZER.name, "seed": 0, "init_scale": 0.05}
    (folder / "layout.json").write_text(json.dumps({"tables": tables, **rows}))
    for shard in range(2):
        words = [
            sys.executable, "-m", "foresee", "serve", "--layout", str(folder / "layout.json"), "--shard", str(shard),
            "--num-shards", "2", "--host", ADDRESSES[f"server{shard}"], "--port", str(SERVER_PORT),
            "--port-file", str(folder / f"port{shard}"), "--parent", str(os.getpid()),
            "--tls-certificate", str(folder / "server.pem"), "--tls-key", str(folder / "server.key"),
        ]  # fmt: skip
        server = start(f"{prefix}-server{shard}", words, folder / f"server{shard}.log")
        (folder / f"server{shard}.pid").write_text(str(server.pid))


def run_trainers(prefix: str, folder: Path, count: int, script: Path) -> Iterator[Turn]:
    outputs = [folder / f"trainer{rank}.log" for rank in range(NUM_TRAINERS)]
    wait_for([folder / f"port{shard}" for shard in range(2)], folder / "server0.log")
    words = [sys.executable, str(script), "--role", "trainer", "--turns", str(count), "--folder", str(folder)]
    trainers = [
        start(f"{prefix}-trainer{rank}", [*words, "--prefix", prefix, "--rank", str(rank)], outputs[rank])
        for rank in range(NUM_TRAINERS)
    ]
    deadline = time.monotonic() + END_SECONDS
    while any(trainer.poll() is None for trainer in trainers) and time.monotonic() < deadline:
        if any(trainer.poll() not in (None, 0) for trainer in trainers):
            break
        time.sleep(0.05)
    codes = [trainer.poll() for trainer in trainers]
    if any(code != 0 for code in codes):
        said = "\n".join(output.read_text(errors="replace")[-3000:] for output in outputs)
        sys.exit(f"trainers ended with {codes}:\n{said}")
    for line in outputs[0].read_text().splitlines():
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            yield {name: (predicted, measured) for name, (predicted, measured) in answer.items()}


def wait_for(files: list[Path], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(file.exists() for file in files):
        if time.monotonic() > deadline:
            sys.exit("a server did not start:\n" + log.read_text())
        time.sleep(0.05)
