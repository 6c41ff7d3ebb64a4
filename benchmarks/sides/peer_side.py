"""The process of a peer of `benchmarks/larger_than_memory.py --written`: the same training loop as people write it.

In: the folder of the comparison and its sizes. Out: answers to "warm", "train" and "end" (`process.py`). A peer's turn
ends when what it changed is on the disk: ours writes as it goes.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from foresee import ClickLog, models
from sides.peer_rows import PEERS, PEERS_LEARN
from sides.process import serve
from sides.written_tables import EPSILON, LEARNING_RATE, optimizer, stream_of

THREADS = 2
"""Of torch, on all sides."""
WARM_PARTS = {"mapped": 1, "lmdb": 2}


class PeerSide:
    """A peer's process: the same training loop as people write it."""

    def __init__(self, arguments: argparse.Namespace) -> None:

        torch.set_num_threads(THREADS)
        torch.manual_seed(0)
        log = ClickLog.open(arguments.folder / "log")
        self.learn = PEERS_LEARN[arguments.optimizer]
        state_width = optimizer(arguments.optimizer).state_width(arguments.dim)
        self.rows = PEERS[arguments.side](arguments.folder, log.num_rows, arguments.dim + state_width)
        self.dim, self.num_steps = arguments.dim, arguments.steps
        # A row of LMDB brings more pages, so fewer steps fill the room for them.
        self.warm_steps = min(arguments.warm_steps // WARM_PARTS[arguments.side], arguments.epoch_steps)
        stream = stream_of(log, arguments.batch_size, arguments.epochs)
        self.batches = stream.batches(arguments.epoch_steps - self.warm_steps)
        self.model = models.DLRM(log, arguments.dim)
        self.adam = torch.optim.Adam(self.model.parameters(), fused=True)
        self.loss = nn.BCEWithLogitsLoss()

    def serve(self) -> None:
        serve({"warm": self.warm, "train": self.train, "end": self.end})

    def warm(self) -> dict[str, int]:
        """The last steps of the first epoch: then pages of rows fill what the limit leaves."""
        for _ in range(self.warm_steps):
            self.step()
        self.rows.settle()
        return {"own_bytes": own_bytes()}

    def train(self) -> dict[str, float]:
        begun = time.perf_counter()
        for _ in range(self.num_steps):
            self.step()
        stepped = time.perf_counter() - begun
        self.rows.settle()
        whole = time.perf_counter() - begun
        return {"seconds": whole / self.num_steps, "unsettled_seconds": stepped / self.num_steps}

    def step(self) -> None:
        batch = next(self.batches)
        ids, inverse = np.unique(batch.rows, return_inverse=True)
        rows = self.rows.read(ids)
        values = rows[:, : self.dim].detach().clone().requires_grad_()
        embeddings = values[torch.from_numpy(inverse)].view(batch.num_samples, -1, self.dim)
        logits = self.model(torch.from_numpy(batch.dense), embeddings)
        self.loss(logits, torch.from_numpy(batch.labels)).backward()
        self.adam.step()
        self.adam.zero_grad()
        assert values.grad is not None
        self.learn(rows, values.grad, LEARNING_RATE, EPSILON)
        self.rows.write(ids, rows)

    def end(self) -> dict[str, Any]:
        self.rows.close()
        return {}


def own_bytes() -> int:
    """Memory of this process that is no page of a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
