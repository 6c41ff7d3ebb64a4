"""The sides that run in one trainer process: the ideal, and training from a plan with rows on servers."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from foresee.engine.cache import pool
from foresee.engine.exchange.mesh import TorchMesh
from foresee.engine.exchange.peers import PeerExchange
from foresee.engine.header import make_header
from foresee.engine.kernels import Threads, order_lookups, update_rows
from foresee.engine.optimizers import Adagrad
from foresee.engine.planned_step import Pooling, accesses_of
from foresee.engine.run import Run
from foresee.engine.tables import Tables
from foresee.plan import make_planner, plan
from foresee.plan.record import Header, Record
from foresee.run.worker import SWITCH_SECONDS
from foresee.store.contract import Rows
from foresee.store.remote import RemoteStore
from foresee.testing.traces import MemoryStream
from shaped.hosts import ADDRESSES
from shaped.log import DIM, LEARNING_RATE, NUM_TRAINERS, Log, Trainee, own_share

SERVER_PORT = 4440
OURS, NO_CACHE = "lookahead", "none"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a step took."""

    seconds: float
    cpu_seconds: float
    """Of this trainer's process, all threads."""


def time_steps(steps: Iterator[None], warmup: int, timed: int) -> Taken:
    """The mean over the timed steps, warm-up left out."""
    for _ in range(warmup):
        next(steps)
    dist.barrier()
    begun, cpu_begun = time.perf_counter(), time.process_time()
    for _ in range(timed):
        next(steps)
    cpu_seconds = time.process_time() - cpu_begun
    dist.barrier()
    return Taken((time.perf_counter() - begun) / timed, cpu_seconds / timed)


def ideal_side(log: Log, trainee: Trainee, rank: int, num_steps: int) -> Callable[[], Taken]:
    """All rows here; distinct rows and lookup orders are known before the clock starts."""
    optimizer, pooling = Adagrad(lr=LEARNING_RATE), Pooling.of([False] * len(log.table_sizes))
    values, state = np.full((log.num_rows, DIM), 0.01, np.float32), np.zeros((log.num_rows, DIM), np.float32)
    rows = Rows(values, state, np.zeros(log.num_rows, np.int32))
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
                pool(rows.values, unique, inverse, pooling.vectors(own), out.numpy(), threads)
                embeddings = out.view(own.num_samples, -1, DIM).requires_grad_()
                trainee.step(torch.from_numpy(own.dense), embeddings, torch.from_numpy(own.labels))
                assert embeddings.grad is not None
                gradients = embeddings.grad.view(-1, DIM).numpy()
                update_rows(optimizer, rows, unique, gradients, order, version=own.step + 1, threads=threads)
                yield

    return lambda: time_steps(steps(), 2, num_steps)


def planned_side(
    log: Log, trainee: Trainee, rank: int, arguments: argparse.Namespace
) -> Callable[[str, int, int], Taken]:
    """Rows on the servers; every call goes on at the step after the last one, from an empty cache.

    The plan is made before the clock starts, as the ideal's distinct rows are: a planner has a host of its own, and the
    hosts of this benchmark share too few cores for another one. What planning costs is measured by `planning.py`.
    """
    stream, pooling = MemoryStream(log.batches, num_rows=log.num_rows), Pooling.of([False] * len(log.table_sizes))
    touched = len(np.unique(np.concatenate([batch.rows for batch in log.batches])))
    servers = [f"grpc+tls://{ADDRESSES[f'server{i}']}:{SERVER_PORT}" for i in range(2)]
    certificate, first_step = (Path(arguments.folder) / "server.pem").read_bytes(), 0

    def seconds(planner: str, warmup: int, timed: int) -> Taken:
        nonlocal first_step
        store = RemoteStore(
            servers, worker=rank, num_workers=NUM_TRAINERS, run=f"from-{first_step}", tls_root_certificate=certificate
        )
        header = make_header(
            stream, planner=planner, cache_rows=int(touched * arguments.cache_share), first_step=first_step,
            num_workers=NUM_TRAINERS, placement="location_aware" if planner == OURS else "contiguous",
        )  # fmt: skip
        exchange = PeerExchange(store.layout, TorchMesh(), dense=trainee.sums)
        tables, records = Tables(store, Adagrad(lr=LEARNING_RATE)), own_records(stream, header, rank)
        run = Run(stream, tables, header, pooling, records=records, exchange=exchange, commit_at_end=False)

        def steps() -> Iterator[None]:
            for step in run:
                step.update_during_backward()
                trainee.step(step.dense, step.await_embeddings, step.labels)
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


def own_records(stream: MemoryStream, header: Header, rank: int) -> list[Record]:
    accesses = (accesses_of(batch) for batch in stream.batches(header.first_step))
    return [record for record in plan(make_planner(header, lambda _: iter(())), accesses) if record.worker == rank]


def join(rank: int, port: int) -> None:
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    where = f"tcp://{ADDRESSES['trainer0']}:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=NUM_TRAINERS)


def leave(rank: int, result: list[Any]) -> None:
    """Ends the process without waiting for threads of libraries that nobody needs any more."""
    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    os._exit(0)
