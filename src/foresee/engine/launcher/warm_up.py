"""Everything that a part of a run loads once it is started, loaded before it is needed.

In: nothing. Out: a process in which torch, Arrow and all modules of a run are imported and the compiled kernels are in
memory, without a thread of its own having been started for good: forks of it are whole. What is trained for that is a
toy, in memory and in a temporary folder. Nothing depends on this but time.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foresee.data.click_log import ClickLog
from foresee.data.tiny import tiny
from foresee.engine.loop import Run, make_header
from foresee.engine.optimizers import OPTIMIZERS, Optimizer
from foresee.engine.planning import planned_records
from foresee.engine.tables import Tables, layout_for
from foresee.engine.work import Pooling
from foresee.engine.workers.mesh import Finish, Lane
from foresee.engine.workers.peers import PeerExchange
from foresee.store.contract import Layout, Rows
from foresee.store.memory import MemoryStore
from foresee.store.remote.shards import scatter, split
from foresee.store.server.shard import Share, disk_shard, memory_shard

MODULES = (
    "foresee.cli.commands", "foresee.cli.worker", "foresee.cli.serve", "foresee.cli.plan_server",
    "foresee.engine.workers.worker", "foresee.engine.workers.worker_end",
    "foresee.engine.planner_service.process", "foresee.engine.evaluation", "foresee.store.server.process",
    "foresee.models",
)  # fmt: skip


class _OwnMesh:
    """One worker that sends everything to itself: the exchange's kernels without a network."""

    rank, num_workers = 0, 1

    def start(self, lane: Lane, sent: Tensor, sizes: list[int], expected: list[int]) -> Finish:
        return lambda: sent


def warm_up(optimizers: Sequence[str]) -> None:
    """Call it in a process that will fork, before it does; with the names of the row optimisers it will need."""
    for name in MODULES:
        importlib.import_module(name)
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    torch.optim.Adam(model.parameters()).step()  # imports much more than one would think
    with tempfile.TemporaryDirectory(prefix="foresee-warm-") as folder:
        log = tiny(Path(folder) / "log", num_samples=64)
        for name in optimizers:
            optimizer = OPTIMIZERS[name](lr=0.1)
            layout = layout_for(log, 4, optimizer, 0, 0.1)
            _train(log, optimizer, layout)
            _serve(Path(folder) / optimizer.name, layout)
        stream = log.batches(batch_size=8)
        for _ in planned_records(
            stream, make_header(stream, planner="lookahead", cache_rows=80, num_workers=2, placement="location_aware")
        ):
            pass


def _train(log: ClickLog, optimizer: Optimizer, layout: Layout) -> None:
    stream, tables = log.batches(batch_size=8), Tables(MemoryStore(layout), optimizer)
    header = make_header(stream, planner="lookahead", cache_rows=80)
    exchange = PeerExchange(layout, _OwnMesh())
    run = Run(
        stream, tables, header, Pooling.of(log.mean_features), exchange=exchange, commit_at_end=False
    )
    for step in run:
        step.embeddings.sum().backward()  # type: ignore[no-untyped-call]
        step.update()
    exchange.close()


def _serve(folder: Path, layout: Layout) -> None:
    at = np.array([3, 5])
    rows = Rows.empty(2, layout)
    for shard in (disk_shard(folder, layout, Share(1, 2)), memory_shard(layout, Share(1, 2))):
        for step in (1, 2):
            shard.read(at, rows)
            shard.write(at, rows)
            shard.read(at, rows)
            shard.commit(step)
        shard.close()
    scatter(rows, split(at, 1).of(0), rows)


